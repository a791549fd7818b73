"""Training in local rounds: replicas of the model take steps of their own between two sums.

A round is a step of the job: the ring's state, checkpoints, evaluations and joins are at its ends.
The steps of the warm-up, before the first round, are synchronous steps of the framework (T. Lin et
al., "Don't Use Large Mini-Batches, Use Local SGD", ICLR 2020, post-local SGD).
A replica belongs to the job and owns a lane of the records; a rank runs the replicas of its lanes
one after the other, each from the values at the round's start. So the result does not depend on the
ring. `average` is S. Stich, "Local SGD Converges Fast and Communicates Little", ICLR 2019; `diloco`
is A. Douillard et al., "DiLoCo: Distributed Low-Communication Training of Language Models", 2023,
algorithm 1, whose outer optimizer is SGD with Nesterov momentum.

With several fragments, the sums of the first ones travel while the last local steps run. These are
the staggered sums of A. Douillard et al., "Streaming DiLoCo with overlapping communication", 2025,
except that all of them arrive by the round's end, where all ranks are equal: what a fragment learns
after its sum has started does not count.
"""

import itertools
import math
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from edl_horovod.config.schema import Compression, LocalConfig
from edl_horovod.frameworks.base import Collectives, Model, OuterOptimizer, Step
from edl_horovod.frameworks.batches import StepBatches
from edl_horovod.frameworks.epoch_callbacks import EpochCallbacks
from edl_horovod.frameworks.values import Array, Batch, StateGroup, StepSums, Variable
from edl_horovod.records.plan import DataPlan, EpochOrder, Ids, StepSpans
from edl_horovod.records.steps import NO_IDS
from edl_horovod.tasks.compressed_sums import sum_compressed
from edl_horovod.tasks.secure_sums import (
    SecureSums,
    from_fixed_point,
    from_limbs,
    to_fixed_point,
    to_limbs,
)

Values = dict[str, NDArray[Any]]


def plan_of_local_steps(plan: DataPlan, num_steps: int) -> DataPlan:
    """The plan of the local steps, from the plan of rounds with `num_steps` of them.

    It counts the steps of the warm-up in the same way, as one step each.
    """
    global_batch = plan.global_batch // num_steps
    return replace(plan, global_batch=global_batch, warmup_steps=0, warmup_batch=0)


class RoundPlan(Protocol):
    """Which local steps are in a round, counted over all epochs."""

    @property
    def warmup_steps(self) -> int:
        """Steps of the job before the rounds."""

    def local_steps(self, number: int) -> range:
        """The local steps of a round."""

    def record_ids(self, number: int, lanes: range) -> Ids:
        """The records of a round on some lanes, for the ledger."""


class RoundsOfJob:
    """The rounds of a job whose lanes belong to its replicas; no round crosses an epoch's end."""

    def __init__(self, plan: DataPlan, num_steps: int) -> None:
        """Cut the steps of an epoch into rounds.

        Args:
            plan: The plan of rounds.
            num_steps: Local steps of a round.
        """
        self._plan, self.warmup_steps = plan, plan.warmup_steps
        self._local = plan_of_local_steps(plan, num_steps)
        self._order: tuple[int, EpochOrder] | None = None
        """The last epoch, and its order."""

    def local_steps(self, number: int) -> range:
        """The local steps of a round."""
        span, step_records = self._plan.spans(1)[number], self._local.global_batch
        start = span.epoch * self._local.steps_per_epoch
        return range(start + span.first // step_records, start - (-span.last // step_records))

    def record_ids(self, number: int, lanes: range) -> Ids:
        """The records of a round on some lanes."""
        span = self._plan.spans(1)[number]
        if self._order is None or self._order[0] != span.epoch:
            self._order = span.epoch, self._plan.order(span.epoch)
        return self._order[1].between(span.first, span.last, lanes)


@dataclass(frozen=True)
class _Round:
    """Reads the examples of a round; stands for the features of its batch."""

    batches: "RoundBatches"
    number: int

    def steps_of(self, lane: int) -> Iterator[Batch | None]:
        """The examples of a replica's local steps."""
        return self.batches.steps_of(self.number, lane)


class RoundBatches:
    """Has the interface of `StepBatches`, for rounds; each has the local steps of all lanes.

    Each lane has batches of its own, which continue from one round to the next. Before the rounds
    come the steps of the warm-up, whose batches have the examples of all lanes of the rank.
    """

    def __init__(
        self, make_batches: Callable[[], StepBatches], rounds: RoundPlan, *, warmup: StepBatches
    ) -> None:
        """Read rounds.

        Args:
            make_batches: Makes the batches of local steps.
            rounds: The local steps of each round.
            warmup: Batches of local steps, for the warm-up; the caller closes them.
        """
        self._make_batches, self._rounds, self._warmup = make_batches, rounds, warmup
        self.lanes = range(0)
        self._next_round, self._last_round = 0, 0
        self._batches: dict[int, StepBatches] = {}
        """By lane."""
        self._at: dict[int, int] = {}
        """The local step that comes next in the batches of a lane, if they are being read."""
        self.record_ids = NO_IDS

    def close(self) -> None:
        """Stop prefetching."""
        for batches in self._batches.values():
            batches.close()

    def expect(
        self, lanes: range, first_step: int, last_step: int, spans: StepSpans | None = None
    ) -> None:
        """Start in a thread the `restart` that is expected next, if that is in the warm-up.

        A round is long beside its first examples.
        """
        if first_step < self._rounds.warmup_steps:
            self._warmup.expect(lanes, first_step, min(last_step, self._rounds.warmup_steps))

    def restart(
        self, lanes: range, first_step: int, last_step: int, spans: StepSpans | None = None
    ) -> None:
        """Read the steps of the job from `first_step` up to, but not including, `last_step`."""
        self.lanes, self._next_round, self._last_round = lanes, first_step, last_step
        is_warmup = first_step < self._rounds.warmup_steps
        if is_warmup:
            self._warmup.restart(lanes, first_step, min(last_step, self._rounds.warmup_steps))
        read_lanes = () if is_warmup else lanes
        for lane in set(self._at).difference(read_lanes):
            # It reads nothing more ahead.
            self._batches[lane].restart(range(lane, lane + 1), 0, 0)
            del self._at[lane]
        for lane in read_lanes:
            self._read_from(lane, first_step)

    def next_batch(self) -> Batch | None:
        """Return the next round of this rank, or its examples of the next step of the warm-up."""
        number, self._next_round = self._next_round, self._next_round + 1
        if number < self._rounds.warmup_steps:
            batch = self._warmup.next_batch()
            self.record_ids = self._warmup.record_ids
            return batch
        self.record_ids = self._rounds.record_ids(number, self.lanes)
        return Batch(_Round(self, number), None, len(self.record_ids))

    def steps_of(self, number: int, lane: int) -> Iterator[Batch | None]:
        """Read the local steps of a round on one lane."""
        self._read_from(lane, number)
        for step in self._rounds.local_steps(number):
            self._at[lane] = step + 1
            yield self._batches[lane].next_batch()

    def _read_from(self, lane: int, number: int) -> None:
        """Begin to read a lane at the first local step of a round, unless that comes next."""
        first = self._rounds.local_steps(number).start
        if lane not in self._batches:
            self._batches[lane] = self._make_batches()
        if self._at.get(lane) != first and number < self._last_round:
            last = self._rounds.local_steps(self._last_round - 1).stop
            self._batches[lane].restart(range(lane, lane + 1), first, last)
            self._at[lane] = first


@dataclass(frozen=True)
class _Part:
    """What replicas add to the sum of a fragment: one replica, those of a rank, or all."""

    changes: Values
    """The changes of its variables, flat and as `_widened`: times the replica's weight, except for
    integers."""
    state: Values
    """The optimizer's state, for `inner_state=keep`: flat, or a row for each replica of the job."""
    numbers: NDArray[np.float64]
    """A row with the indices below, then the sums of the metrics, then for each metric the sum of
    its values, times the examples, and these examples. All of them up to the fragment's end."""


@dataclass
class _Replica:
    """What a replica has computed in a round so far."""

    parts: list[_Part] = field(default_factory=list)
    """The fragments that it has reached."""
    local: Values = field(default_factory=dict)
    """The values of the variables that are not summed, but stay here, after its last step."""
    num_steps: int = 0
    """Local steps that it has taken."""


_WANTS_CHANGE, _ACTIVE, _WEIGHT, _EXAMPLES, _LOSS, _BAD, _METRICS = range(7)
"""Indices into a row of numbers: the flag of `StepSums.wants_change`, replicas with examples, their
weight in the mean, the examples, the loss of each step times its examples, and steps that are not
finite."""


class Participation(Protocol):
    """Decides which replicas a rank contributes to a round, and how much they count."""

    @property
    def secure_sums(self) -> SecureSums | None:
        """Hides from the other ranks what this rank contributes; None if nothing has to."""

    def contributed(
        self,
        number: int,
        lanes: Sequence[int],
        done: Collection[int],
        collectives: Collectives | None,
    ) -> tuple[list[int], int]:
        """The lanes of the replicas that this rank contributes, and the number of ranks.

        All ranks of a ring call it at the beginning of each round. If no rank contributes, the
        round changes nothing.

        Args:
            number: The round.
            lanes: The lanes of this rank.
            done: Lanes whose replicas it has computed already, in an attempt that a loss ended.
            collectives: Exchange numbers over the ring; None if this rank is alone.

        Raises:
            CollectiveFailed: A member was lost.
            ConfigError: There are too few ranks.
        """

    def takes_step(self, seconds: float) -> bool:
        """Whether a replica takes its next local step, so many seconds after the round's begin."""

    def begin(self, number: int) -> None:
        """Prepare for a round of local steps, which this rank is about to compute.

        Args:
            number: The round.

        Raises:
            EdlError: It must not compute the round.
        """

    def weight(self, num_examples: float) -> float:
        """The weight of a replica with these examples in the mean."""

    def check(self, number: int, changes: Values, *, weight: float, is_finite: bool) -> None:
        """Look at what a replica has computed, before it is sent.

        Args:
            number: The round.
            changes: The changes of the model's variables: times its weight, except for integers.
            weight: Its weight in the mean.
            is_finite: Whether its losses, gradients and other variables are.

        Raises:
            EdlError: It must not be sent.
        """


class VirtualReplicas:
    """The replicas of one job, each of which has one rank that contributes it."""

    secure_sums: SecureSums | None = None

    def __init__(self, num_replicas: int) -> None:
        self._num_replicas = num_replicas
        self._id = int.from_bytes(os.urandom(7), "little")

    def contributed(
        self,
        number: int,
        lanes: Sequence[int],
        done: Collection[int],
        collectives: Collectives | None,
    ) -> tuple[list[int], int]:
        """The replicas of this rank, without those that others have computed already."""
        if collectives is None:
            return list(lanes), 1
        row = [int(lane in done) for lane in range(self._num_replicas)]
        # All ranks call it at the beginning of each round.
        rows = collectives.gather_rows([*row, self._id], "edl.rounds.done")
        holders = [rows[rows[:, lane] == 1, -1] for lane in range(self._num_replicas)]
        contributed = [
            lane
            for lane, ids in enumerate(holders)
            if (ids[0] == self._id if len(ids) else lane in lanes)
        ]
        return contributed, len(rows)

    def takes_step(self, seconds: float) -> bool:
        """Always: the result must not depend on time."""
        return True

    def begin(self, number: int) -> None:
        """Do nothing: any rank may compute any round."""

    def weight(self, num_examples: float) -> float:
        """The examples."""
        return num_examples

    def check(self, number: int, changes: Values, *, weight: float, is_finite: bool) -> None:
        """Do nothing: all ranks see in the sum what is not finite."""


class LocalRounds:
    """Implements `base.Step` for rounds, by the step of one replica."""

    def __init__(
        self,
        step: Step,
        collectives: Collectives,
        config: LocalConfig,
        compression: Compression = "none",
        participation: Participation | None = None,
        local_names: Collection[str] = (),
    ) -> None:
        """Train replicas with this step.

        Args:
            step: Trains one replica, as if it were alone.
            collectives: Sum over the ring.
            config: The settings of the rounds.
            compression: How the changes of the model's trained variables are sent.
            participation: Decides which replicas this rank contributes; None: those of its lanes.
            local_names: The model's variables that are not summed: each rank, which then has one
                replica, goes on with its own values.
        """
        self._compression = compression
        self._participation = participation or VirtualReplicas(config.replicas)
        self._step, self._collectives, self._config = step, collectives, config
        self._inner = dict(step.variables)
        self._local_names = frozenset(local_names)
        of_replicas: Sequence[str] = ()
        if config.inner_state == "reset":
            of_replicas = step.optimizer_state()
        elif config.inner_state == "keep":
            # Not the numbers of steps, which are about the same in all replicas.
            of_replicas = step.slots
        self._first_state = {name: _value(self._inner[name]) for name in of_replicas}
        """The variables of the optimizer that are not summed, in a new optimizer."""
        self._unsummed = self._local_names | self._first_state.keys()
        self._exact = frozenset(self._inner) - frozenset(step.model_variables)
        """Learning rates, what schedules count and the like: few numbers of any size."""
        self._num_done = Array(np.int64(0))
        """The steps of the job that are done: those of the warm-up, and then rounds."""
        self._outer: OuterOptimizer | None = None
        if config.method == "diloco":
            self._outer = step.outer_optimizer(config.outer_learning_rate, config.outer_momentum)
        self._kept: dict[str, Array] = {}
        if config.inner_state == "keep":
            copies = config.replicas
            first = self._first_state.items()
            self._kept = {name: Array(np.repeat(v[None], copies, 0)) for name, v in first}
        last = config.fragments - 1
        self._ends = [config.steps - (last - n) * config.fragment_steps for n in range(last)]
        """The local steps of a round before the sum of each fragment but the last."""
        self._done: dict[int, _Replica] = {}
        """The replicas that this rank has computed in the round `_done_in`."""
        self._done_in = -1
        self._metric_names: tuple[str, ...] | None = None
        self._num_metric_sums = 0
        self._is_warmup = False
        self._computed_at: float | None = None
        """When this rank had computed its replicas of the present round; None if it has not."""
        self.doing: Callable[..., AbstractContextManager[None]] = _unwatched
        """`Membership.doing` of the present ring: a round is long, a local step is not."""

    @property
    def model(self) -> Model:
        """The model that is trained."""
        return self._step.model

    @property
    def model_variables(self) -> Mapping[str, Variable]:
        """The model's variables."""
        return self._step.model_variables

    @property
    def variables(self) -> dict[str, Variable]:
        """The variables of a replica at the ends of rounds, and those of the rounds.

        Those that stay at each rank are not among them.
        """
        of_rounds: dict[str, Variable] = {}
        if self._outer is not None:
            of_rounds |= {f"outer/{name}": part for name, part in self._outer.variables.items()}
        of_rounds |= {f"replicas/{n}": part for n, part in self._kept.items()}
        shared = {n: part for n, part in self._inner.items() if n not in self._local_names}
        return {**shared, **of_rounds, "rounds": self._num_done}

    @property
    def metric_names(self) -> Sequence[str]:
        """The names of the metrics of a step."""
        self._try_metrics()
        assert self._metric_names is not None
        return self._metric_names

    @property
    def num_metric_sums(self) -> int:
        """Number of the sums from which metrics are computed."""
        self._try_metrics()
        return self._num_metric_sums

    @property
    def trained(self) -> Sequence[str]:
        """The names of the model's variables that rounds train, and sum."""
        return [name for name in self._step.trained if name not in self._local_names]

    @property
    def slots(self) -> Sequence[str]:
        """The names of what the optimizer keeps for these."""
        return self._step.slots

    def optimizer_state(self) -> Sequence[str]:
        """The names of the variables that have their first values in a new optimizer."""
        return self._step.optimizer_state()

    @property
    def groups(self) -> Sequence[StateGroup]:
        """None: a joining rank receives all of the state at once, at the end of a round."""
        return ()

    def step(
        self, batch: Batch | None, *, wants_change: bool, is_alone: bool, salt: int
    ) -> StepSums:
        """Run one round, or step of the warm-up; either all of it takes effect or nothing."""
        number = int(self._num_done.numpy())
        self._computed_at = None
        self._is_warmup = number < self._config.warmup_steps
        if self._is_warmup:
            results = self._step.step(
                batch, wants_change=wants_change, is_alone=is_alone, salt=salt
            )
        else:
            results = self._round(number, batch, wants_change=wants_change, is_alone=is_alone)
        if results.is_finite:
            self._num_done.assign(number + 1)
            self._done = {}
        return results

    def _round(
        self, number: int, batch: Batch | None, *, wants_change: bool, is_alone: bool
    ) -> StepSums:
        if self._done_in != number:
            # Others have ended the round in which a loss ended this rank's attempt. What stays here
            # keeps what it has learned, as the sum has what the rest of the model has.
            for replica in self._done.values() if number > self._done_in else ():
                _assign(self._inner, replica.local)
            self._done, self._done_in = {}, number
        self._try_metrics()
        with self.doing("waits", "which replicas are left", "exchange"):
            own_lanes = [] if batch is None else list(batch.features.batches.lanes)
            lanes, num_ranks = self._participation.contributed(
                number, own_lanes, self._done, None if is_alone else self._collectives
            )
        start = {name: _value(variable) for name, variable in self._inner.items()}

        def add_up(fragment: int, parts: Mapping[int, _Part]) -> _Part:
            local = self._local_sum(fragment, parts, start)
            local.numbers[_WANTS_CHANGE] = float(wants_change)
            if is_alone:
                return local
            # All ranks call it for all fragments of each round, also those without replicas.
            if (secure_sums := self._participation.secure_sums) is not None:
                return self._over_ring_securely(secure_sums, number, local)
            return self._over_ring(local, fragment, num_ranks)

        began = time.monotonic()
        replicas = {lane: self._done.get(lane) or _Replica() for lane in lanes}
        reached = {lane: replica.parts for lane, replica in replicas.items()}
        with _Sums(reached, self._config.fragments, add_up) as sums:
            sums.start()
            try:
                for lane in sorted(replicas.keys() - self._done.keys()):
                    assert batch is not None
                    self._participation.begin(number)
                    replica, batches = replicas[lane], batch.features.steps_of(lane)
                    _assign(self._inner, {**start, **self._optimizer_state(lane, number)})
                    for part in self._parts(number, lane, batches, start, replica, began):
                        replica.parts.append(part)
                        sums.start()
                    self._done[lane] = replica
            finally:
                _assign(self._inner, start)
            computed_at = self._computed_at = time.monotonic()
            totals = sums.wait()
            self._computed_at = None
        summed_at = time.monotonic()
        results = self._results(totals[-1].numbers)
        if results.is_finite:
            self._end_round(start, totals, has_examples=results.num_examples > 0)
            for lane in lanes if results.num_examples else ():
                _assign(self._inner, self._done[lane].local)
        return replace(
            results,
            local_steps=sum(self._done[lane].num_steps for lane in lanes),
            exchange_seconds=summed_at - computed_at,
            apply_seconds=time.monotonic() - summed_at,
        )

    def scale_learning_rate(self, factor: float) -> None:
        """Multiply the learning rate of the local steps."""
        self._step.scale_learning_rate(factor)

    def outer_optimizer(self, learning_rate: float, momentum: float) -> OuterOptimizer:
        """The outer optimizer of a replica's step."""
        return self._step.outer_optimizer(learning_rate, momentum)

    def begin_round(self) -> None:
        """Do nothing: a round begins by itself."""

    def finalize(self) -> None:
        """Set the model to its final values."""
        self._step.finalize()

    def rehearse(self, batch: Batch) -> None:
        """Rehearse a local step."""
        self._step.rehearse(batch)

    def is_waiting(self) -> bool:
        """Whether this rank has computed its part and waits for the others."""
        return self._step.is_waiting() if self._is_warmup else self._computed_at is not None

    def waited_seconds(self) -> float:
        """How long this rank has waited for the others in a round that has just failed."""
        if self._is_warmup:
            return self._step.waited_seconds()
        return 0.0 if self._computed_at is None else time.monotonic() - self._computed_at

    def callbacks(
        self, *, num_epochs: int, steps_per_epoch: int | None, per_step: bool
    ) -> EpochCallbacks | None:
        """Create the user's callbacks; None if there are none."""
        return self._step.callbacks(
            num_epochs=num_epochs, steps_per_epoch=steps_per_epoch, per_step=per_step
        )

    def _try_metrics(self) -> None:
        """Find out which metrics a step has, by one without examples, which has no other effect.

        Otherwise it would count as a step in the state of the random numbers.
        """
        if self._metric_names is None:
            before = {name: _value(variable) for name, variable in self._inner.items()}
            try:
                sums = self._step.step(None, wants_change=False, is_alone=True, salt=0)
            finally:
                _assign(self._inner, before)
            self._metric_names = tuple(sums.metrics)
            self._num_metric_sums = len(sums.metric_sums)

    def _optimizer_state(self, lane: int, number: int) -> Values:
        """What a replica's optimizer begins a round with, where it is not the job's state.

        `inner_state` says what happens at a round's end. So all replicas begin the first round with
        a copy of the state that the warm-up has left.
        """
        if number == self._config.warmup_steps:
            return {}
        if self._config.inner_state == "reset":
            return self._first_state
        return {name: slots.numpy()[lane] for name, slots in self._kept.items()}

    def _parts(
        self,
        number: int,
        lane: int,
        batches: Iterator[Batch | None],
        start: Values,
        replica: _Replica,
        began: float,
    ) -> Iterator[_Part]:
        """Train a replica for a round, and yield each fragment as soon as its sum may begin.

        Args:
            number: The round.
            lane: The replica's lane.
            batches: Those of its local steps.
            start: The values of the variables at the round's start.
            replica: Receives the number of its steps, and the values of what is not summed.
            began: When this rank's local steps began, as `time.monotonic` has it.
        """
        self._step.begin_round()
        numbers, num_started = self._zeros(), 0
        for place, batch in enumerate(self._awaited(lane, batches)):
            # Asked when the examples are there: to wait for them takes time, too.
            if not self._participation.takes_step(time.monotonic() - began):
                break
            if place in self._ends:
                yield self._part(number, num_started, start, numbers)
                num_started += 1
            if batch is not None:
                with self.doing("works", f"local step {place} of replica {lane}"):
                    sums = self._step.step(batch, wants_change=False, is_alone=True, salt=lane)
                numbers += self._numbers_of(sums)
            replica.num_steps += 1
        # Several of them if this round is shorter, as the last of an epoch may be.
        for fragment in range(num_started, self._config.fragments):
            yield self._part(number, fragment, start, numbers)
        replica.local = {name: _value(self._inner[name]) for name in self._local_names}

    def _awaited(self, lane: int, batches: Iterator[Batch | None]) -> Iterator[Batch | None]:
        """The batches of a replica's local steps, with each wait for one booked as such."""
        for place in itertools.count():
            with self.doing("works", f"examples of local step {place} of replica {lane}", "input"):
                try:
                    batch = next(batches)
                except StopIteration:
                    return
            yield batch

    def _part(
        self, number: int, fragment: int, start: Values, numbers: NDArray[np.float64]
    ) -> _Part:
        """A fragment of the replica that is in the variables."""
        numbers = numbers.copy()
        weight = numbers[_WEIGHT] = self._participation.weight(numbers[_EXAMPLES])
        numbers[_ACTIVE] = float(numbers[_EXAMPLES] > 0)
        after = {
            name: np.array(self._cut(variable.numpy(), fragment))
            for name, variable in self._inner.items()
        }
        changes = {}
        for name, value in after.items():
            if name not in self._unsummed:
                change = _change(_widened(value), _widened(self._cut(start[name], fragment)))
                changes[name] = change if _counts(value) else change * change.dtype.type(weight)
        of_model = {name: change for name, change in changes.items() if name not in self._exact}
        others = [changes[name] for name in changes.keys() & self._exact]
        is_finite = not numbers[_BAD] and all(np.isfinite(change).all() for change in others)
        self._participation.check(number, of_model, weight=weight, is_finite=is_finite)
        return _Part(changes, {name: after[name] for name in self._kept}, numbers)

    def _cut(self, values: NDArray[Any], fragment: int) -> NDArray[Any]:
        """The elements of a variable that belong to a fragment, which has an equal part of each.

        So a weight and its slots are in the same fragment. Integers are whole, in the last one: the
        elements of a counter, or of a random generator's state, depend on each other.
        """
        flat, num_fragments = values.reshape(-1), self._config.fragments
        if _counts(values):
            return flat if fragment == num_fragments - 1 else flat[:0]
        first, last = (flat.size * end // num_fragments for end in (fragment, fragment + 1))
        return flat[first:last]

    def _zeros(self) -> NDArray[np.float64]:
        assert self._metric_names is not None
        return np.zeros(_METRICS + self._num_metric_sums + 2 * len(self._metric_names))

    def _numbers_of(self, sums: StepSums) -> NDArray[np.float64]:
        assert self._metric_names is not None
        row, count = self._zeros(), sums.num_examples
        row[_EXAMPLES], row[_BAD] = count, float(not sums.is_finite)
        if count:
            row[_LOSS] = count * sums.loss
            pairs = [
                (count * sums.metrics[name], count) if name in sums.metrics else (0.0, 0)
                for name in self._metric_names
            ]
            row[_METRICS:] = [*sums.metric_sums, *itertools.chain.from_iterable(pairs)]
        return row

    def _local_sum(self, fragment: int, parts: Mapping[int, _Part], start: Values) -> _Part:
        """Sum up a fragment of the replicas of this rank, in the order of their lanes."""
        numbers = self._zeros()
        changes = {
            name: np.zeros_like(_widened(self._cut(value, fragment)))
            for name, value in start.items()
            if name not in self._unsummed
        }
        num_replicas = self._config.replicas
        states = {}
        for name in self._kept:
            blank = self._cut(start[name], fragment)
            states[name] = np.zeros((num_replicas, blank.size), blank.dtype)
        for lane, part in parts.items():
            numbers += part.numbers
            for name, change in part.changes.items():
                changes[name] += change
            for name, value in part.state.items():
                states[name][lane] = value
        return _Part(changes, states, numbers)

    def _over_ring(self, local: _Part, fragment: int, num_ranks: int) -> _Part:
        """Sum up what the ranks have of a fragment; one message for each type of number."""
        whole = {f"c/{n}": v for n, v in local.changes.items()}
        whole |= {f"k/{n}": v for n, v in local.state.items()}
        arrays = {name: value for name, value in whole.items() if value.size}
        prefix = f"edl.rounds.{fragment}"
        # Only of weights: a rounded second moment of an optimizer could become negative.
        rounded = {
            key: arrays.pop(key)
            for name in self.trained
            if self._compression != "none"
            and (key := f"c/{name}") in arrays
            and arrays[key].dtype == np.float32
        }
        if rounded:
            name = f"{prefix}.{self._compression}"
            whole |= sum_compressed(
                rounded, self._collectives, self._compression, num_ranks=num_ranks, name=name
            )
        whole |= _sum_by_type(arrays, self._collectives.sum, prefix)
        numbers = self._collectives.sum(local.numbers, f"{prefix}.numbers")
        return _Part(
            {name: whole[f"c/{name}"] for name in local.changes},
            {name: whole[f"k/{name}"] for name in local.state},
            numbers,
        )

    def _over_ring_securely(self, secure_sums: SecureSums, number: int, local: _Part) -> _Part:
        """Do what `_over_ring` does for a round of one fragment, but hide what each rank has."""
        numbers, changes = local.numbers, local.changes
        masks = secure_sums.masks(
            number, contributes=numbers[_ACTIVE] > 0, collectives=self._collectives
        )
        if masks is None:
            # All ranks call it, as none has masks. They send only whether they want a change.
            flags = self._zeros()
            flags[_WANTS_CHANGE] = numbers[_WANTS_CHANGE]
            numbers = self._collectives.sum(flags, "edl.rounds.numbers")
            return _Part({name: np.zeros_like(it) for name, it in changes.items()}, {}, numbers)

        def add_up(values: NDArray[Any], name: str) -> NDArray[Any]:
            return self._collectives.sum(masks.add_to(values), name)

        exact = {n: v for n, v in changes.items() if n in self._exact and not _counts(v)}
        # All ranks call them, also those without replicas.
        sums = _sum_exactly({"": numbers, **exact}, add_up, "edl.rounds.numbers")
        numbers = sums.pop("")
        assert numbers[_ACTIVE] == masks.num_summands, "the masks do not cancel"
        # No mean of changes is beyond the range, so no sum of changes times weights is beyond this.
        bound = secure_sums.value_range * float(numbers[_WEIGHT])
        integers = {
            name: value if _counts(value) else to_fixed_point(value, bound)
            for name, value in changes.items()
            if name not in exact
        }
        totals = _sum_by_type(integers, add_up, "edl.rounds")
        for name in integers:
            if not _counts(changes[name]):
                totals[name] = from_fixed_point(totals[name], bound)
        return _Part(totals | sums, {}, numbers)

    def _results(self, numbers: NDArray[np.float64]) -> StepSums:
        assert self._metric_names is not None
        count = float(numbers[_EXAMPLES])
        end = _METRICS + self._num_metric_sums
        pairs = zip(self._metric_names, numbers[end::2], numbers[end + 1 :: 2], strict=True)
        return StepSums(
            num_examples=round(count),
            loss=float(numbers[_LOSS] / count) if count else math.nan,
            wants_change=bool(numbers[_WANTS_CHANGE] > 0),
            metrics={name: float(total / part) for name, total, part in pairs if part},
            metric_sums=numbers[_METRICS:end],
            has_finite_gradients=not numbers[_BAD],
        )

    def _end_round(self, start: Values, totals: Sequence[_Part], *, has_examples: bool) -> None:
        """Set all variables to their values after the round, equally on all ranks."""
        if has_examples:
            means = [_means(total) for total in totals]
            mean_changes = {}
            for name in means[0]:
                wide = _widened(start[name])
                mean_changes[name] = np.concatenate([it[name] for it in means]).reshape(wide.shape)
            if self._outer is not None:
                self._outer.apply({name: mean_changes.pop(name) for name in self.trained})
            after = {
                name: _narrowed(_widened(start[name]) + change, start[name].dtype)
                for name, change in mean_changes.items()
            }
            _assign(self._inner, after)
        for name, variable in self._kept.items():
            states = np.concatenate([total.state[name] for total in totals], 1)
            variable.assign(states.reshape(variable.shape))


class _Sums:
    """The sums of a round's fragments over the ring, one after the other, beside the local steps.

    So all ranks have the same order of collectives. None of them waits for another otherwise.
    """

    def __init__(
        self,
        replicas: Mapping[int, Sequence[_Part]],
        num_fragments: int,
        add_up: Callable[[int, Mapping[int, _Part]], _Part],
    ) -> None:
        """Prepare the sums.

        Args:
            replicas: The fragments that each replica of this rank has reached so far, by lane.
            num_fragments: The number of fragments.
            add_up: Sums up a fragment over the ring, given those of this rank; runs in a thread.
        """
        self._replicas, self._num_fragments, self._add_up = replicas, num_fragments, add_up
        self._pool = ThreadPoolExecutor(1, "sums of a round")
        self._sums: list[Future[_Part]] = []

    def __enter__(self) -> "_Sums":
        return self

    def __exit__(self, *error: object) -> None:
        """Wait for the sum that is travelling, if any."""
        self._pool.shutdown(cancel_futures=True)

    def start(self) -> None:
        """Start the sums of the fragments that all replicas of this rank have reached."""
        while len(self._sums) < self._num_fragments:
            fragment = len(self._sums)
            if any(len(parts) <= fragment for parts in self._replicas.values()):
                break
            parts = {lane: parts[fragment] for lane, parts in self._replicas.items()}
            self._sums.append(self._pool.submit(self._sum, fragment, parts, self._sums[-1:]))

    def wait(self) -> list[_Part]:
        """The sums, once all have ended.

        Raises:
            CollectiveFailed: A member was lost.
        """
        return [total.result() for total in self._sums]

    def _sum(
        self, fragment: int, parts: Mapping[int, _Part], before: Sequence[Future[_Part]]
    ) -> _Part:
        for earlier in before:
            earlier.result()  # If it has failed, so has the ring, and this one does not begin.
        return self._add_up(fragment, parts)


def _means(total: _Part) -> Values:
    """The mean changes of a fragment; zeros if no replica has had an example up to its end."""
    weight, active = (total.numbers[index] or 1.0 for index in (_WEIGHT, _ACTIVE))
    return {
        name: np.rint(change / active).astype(np.int64)
        if _counts(change)
        else change / change.dtype.type(weight)
        for name, change in total.changes.items()
    }


def _sum_by_type(
    arrays: Values, add_up: Callable[[NDArray[Any], str], NDArray[Any]], prefix: str
) -> Values:
    """Sum up arrays over the ring by `Collectives.sum`, one message for each type of number."""
    totals: Values = {}
    for kind in sorted({value.dtype.name for value in arrays.values()}):
        members = {n: v for n, v in arrays.items() if v.dtype.name == kind}
        totals |= _split(add_up(_joined(members), f"{prefix}.{kind}"), members)
    return totals


def _sum_exactly(
    arrays: Values, add_up: Callable[[NDArray[Any], str], NDArray[Any]], name: str
) -> Values:
    """Sum up real numbers of any size over the ring with all of their digits, in one message."""
    total = _split(from_limbs(add_up(to_limbs(_joined(arrays)), name)), arrays)
    return {name: value.astype(arrays[name].dtype) for name, value in total.items()}


def _joined(arrays: Values) -> NDArray[Any]:
    return np.concatenate([value.reshape(-1) for value in arrays.values()])


def _split(flat: NDArray[Any], arrays: Values) -> Values:
    """Arrays of the shapes of others, from the elements of all."""
    ends = np.cumsum([value.size for value in arrays.values()])
    parts = zip(arrays.items(), np.split(flat, ends[:-1]), strict=True)
    return {name: part.reshape(value.shape) for (name, value), part in parts}


def _unwatched(state: str, phase: str, cause: str = "") -> AbstractContextManager[None]:
    return nullcontext()


def _value(variable: Variable) -> NDArray[Any]:
    return np.array(variable.numpy())


def _counts(value: NDArray[Any]) -> bool:
    """Whether a variable has integers, which are counters or the states of random generators."""
    return value.dtype.kind in "iub"


def _widened(value: NDArray[Any]) -> NDArray[Any]:
    """Values in a type in which they can be added up, and which a ring can sum.

    Integers have 64 bits, floating-point numbers at least 32, and a complex number is two of them.
    """
    if _counts(value):
        return value.astype(np.int64)
    if value.dtype.kind == "c":
        return np.stack([value.real, value.imag], -1)
    return value if value.dtype.kind == "f" and value.itemsize >= 4 else value.astype(np.float32)


def _change(after: NDArray[Any], before: NDArray[Any]) -> NDArray[Any]:
    """The change of values; none where an infinite one, such as that of a mask, has stayed."""
    with np.errstate(invalid="ignore"):
        change: NDArray[Any] = after - before
    if not _counts(change) and not np.isfinite(change).all():
        change[after == before] = 0
    return change


def _narrowed(wide: NDArray[Any], kind: np.dtype[Any]) -> NDArray[Any]:
    """Values in the type of a variable, from those of `_widened`."""
    values = wide[..., 0] + 1j * wide[..., 1] if kind.kind == "c" else wide
    return np.asarray(values, kind)


def _assign(variables: Mapping[str, Variable], values: Values) -> None:
    for name, value in values.items():
        variables[name].assign(value)
