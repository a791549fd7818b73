"""Training in local rounds: replicas of the model take steps of their own between two sums.

A round is a step of the job: the ring's state, checkpoints, evaluations and joins are at its ends.
The steps of the warm-up, before the first round, are synchronous steps of the framework (T. Lin et
al., "Don't Use Large Mini-Batches, Use Local SGD", ICLR 2020, post-local SGD).
A replica belongs to the job and owns a lane of the records; a rank runs the replicas of its lanes
one after the other, each from the values at the round's start. So the result does not depend on the
ring. `average` is S. Stich, "Local SGD Converges Fast and Communicates Little", ICLR 2019; `diloco`
is A. Douillard et al., "DiLoCo: Distributed Low-Communication Training of Language Models", 2023,
algorithm 1, whose outer optimizer is SGD with Nesterov momentum.
"""

import itertools
import math
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
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
class _Replica:
    """What a replica has computed in a round."""

    changes: Values
    """The changes of its variables, as `_widened`: times its weight, except for integers."""
    state: Values
    """Its optimizer's state, for `inner_state=keep`."""
    numbers: NDArray[np.float64]
    """A row with the indices below, then the sums of the metrics, then for each metric the sum of
    its values, times the examples, and these examples."""


_WANTS_CHANGE, _ACTIVE, _WEIGHT, _EXAMPLES, _LOSS, _BAD, _METRICS = range(7)
"""Indices into a row of numbers: the flag of `StepSums.wants_change`, replicas with examples, their
weight in the mean, the examples, the loss of each step times its examples, and steps that are not
finite."""


class Participation(Protocol):
    """Decides which replicas a rank contributes to a round, and how much they count."""

    def contributed(
        self, number: int, lanes: Sequence[int], done: Collection[int], collectives: Collectives
    ) -> tuple[list[int], int]:
        """The lanes of the replicas that this rank contributes, and the number of ranks.

        All ranks of a ring call it at the beginning of each round.

        Args:
            number: The round.
            lanes: The lanes of this rank.
            done: Lanes whose replicas it has computed already, in an attempt that a loss ended.
            collectives: Exchange numbers over the ring.

        Raises:
            CollectiveFailed: A member was lost.
        """

    def begin(self, number: int) -> None:
        """Prepare for a round of local steps, which this rank is about to compute.

        Args:
            number: The round.

        Raises:
            EdlError: It must not compute the round.
        """

    def weight(self, num_examples: float) -> float:
        """The weight of a replica with these examples in the mean."""

    def check(self, number: int, changes: Values, *, is_finite: bool) -> None:
        """Look at what a replica has computed, before it is sent.

        Args:
            number: The round.
            changes: The changes of its variables.
            is_finite: Whether its losses and gradients are.

        Raises:
            EdlError: It must not be sent.
        """


class VirtualReplicas:
    """The replicas of one job, each of which has one rank that contributes it."""

    def __init__(self, num_replicas: int) -> None:
        self._num_replicas = num_replicas
        self._id = int.from_bytes(os.urandom(7), "little")

    def contributed(
        self, number: int, lanes: Sequence[int], done: Collection[int], collectives: Collectives
    ) -> tuple[list[int], int]:
        """The replicas of this rank, without those that others have computed already."""
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

    def begin(self, number: int) -> None:
        """Do nothing: any rank may compute any round."""

    def weight(self, num_examples: float) -> float:
        """The examples."""
        return num_examples

    def check(self, number: int, changes: Values, *, is_finite: bool) -> None:
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
    ) -> None:
        """Train replicas with this step.

        Args:
            step: Trains one replica, as if it were alone.
            collectives: Sum over the ring.
            config: The settings of the rounds.
            compression: How the changes of the model's trained variables are sent.
            participation: Decides which replicas this rank contributes; None: those of its lanes.
        """
        self._compression = compression
        self._participation = participation or VirtualReplicas(config.replicas)
        self._step, self._collectives, self._config = step, collectives, config
        self._inner = dict(step.variables)
        self._slots = {name: _value(self._inner[name]) for name in step.slots}
        has_own_state = config.inner_state != "average"
        self._unsummed = frozenset(self._slots) if has_own_state else frozenset()
        self._num_done = Array(np.int64(0))
        """The steps of the job that are done: those of the warm-up, and then rounds."""
        self._outer: OuterOptimizer | None = None
        if config.method == "diloco":
            self._outer = step.outer_optimizer(config.outer_learning_rate, config.outer_momentum)
        self._kept: dict[str, Array] = {}
        if config.inner_state == "keep":
            copies = config.replicas
            self._kept = {n: Array(np.repeat(v[None], copies, 0)) for n, v in self._slots.items()}
        self._done: dict[int, _Replica] = {}
        """The replicas that this rank has computed in the round `_done_in`."""
        self._done_in = -1
        self._metric_names: tuple[str, ...] | None = None
        self._num_metric_sums = 0
        self._is_waiting, self._is_warmup = False, False
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
        """The variables of a replica at the ends of rounds, and those of the rounds."""
        of_rounds: dict[str, Variable] = {}
        if self._outer is not None:
            of_rounds |= {f"outer/{name}": part for name, part in self._outer.variables.items()}
        of_rounds |= {f"replicas/{n}": part for n, part in self._kept.items()}
        return {**self._inner, **of_rounds, "rounds": self._num_done}

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
        """The names of the model's variables that rounds train."""
        return self._step.trained

    @property
    def slots(self) -> Sequence[str]:
        """The names of what the optimizer keeps for these."""
        return self._step.slots

    @property
    def groups(self) -> Sequence[StateGroup]:
        """None: a joining rank receives all of the state at once, at the end of a round."""
        return ()

    def step(
        self, batch: Batch | None, *, wants_change: bool, is_alone: bool, salt: int
    ) -> StepSums:
        """Run one round, or step of the warm-up; either all of it takes effect or nothing."""
        number = int(self._num_done.numpy())
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
            self._done, self._done_in = {}, number
        start = {name: _value(variable) for name, variable in self._inner.items()}
        try:
            self._try_metrics()
            with self.doing("waits", "which replicas are left", "exchange"):
                own_lanes = [] if batch is None else list(batch.features.batches.lanes)
                lanes, num_ranks = own_lanes, 1
                if not is_alone:
                    lanes, num_ranks = self._participation.contributed(
                        number, own_lanes, self._done, self._collectives
                    )
            for lane in lanes:
                if lane not in self._done:
                    assert batch is not None
                    self._participation.begin(number)
                    state = self._optimizer_state(lane, number)
                    batches = batch.features.steps_of(lane)
                    self._done[lane] = self._replica(number, lane, batches, start, state)
        finally:
            _assign(self._inner, start)
        changes, slots, numbers = self._local_sums([(lane, self._done[lane]) for lane in lanes])
        numbers[_WANTS_CHANGE] = float(wants_change)
        computed_at = time.monotonic()
        if not is_alone:
            self._is_waiting = True
            try:
                # All ranks call it in each round, also those without replicas.
                changes, slots, numbers = self._over_ring(changes, slots, numbers, num_ranks)
            finally:
                self._is_waiting = False
        summed_at = time.monotonic()
        results = self._results(numbers)
        if results.is_finite:
            if results.num_examples:
                self._end_round(start, changes, numbers)
            for name, values in slots.items():
                self._kept[name].assign(values)
        return replace(
            results,
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
        return self._step.is_waiting() if self._is_warmup else self._is_waiting

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
            return self._slots
        return {name: slots.numpy()[lane] for name, slots in self._kept.items()}

    def _replica(
        self,
        number: int,
        lane: int,
        batches: Iterator[Batch | None],
        start: Values,
        optimizer_state: Values,
    ) -> _Replica:
        """Train a replica for a round, from the values at its start and its optimizer's state."""
        _assign(self._inner, {**start, **optimizer_state})
        self._step.begin_round()
        numbers = self._zeros()
        for place, batch in enumerate(batches):
            if batch is not None:
                with self.doing("works", f"local step {place} of replica {lane}"):
                    sums = self._step.step(batch, wants_change=False, is_alone=True, salt=lane)
                numbers += self._numbers_of(sums)
        weight = numbers[_WEIGHT] = self._participation.weight(numbers[_EXAMPLES])
        numbers[_ACTIVE] = float(numbers[_EXAMPLES] > 0)
        after = {name: _value(variable) for name, variable in self._inner.items()}
        changes = {}
        for name, value in after.items():
            if name not in self._unsummed:
                change = _widened(value) - _widened(start[name])
                changes[name] = change if _counts(value) else change * change.dtype.type(weight)
        self._participation.check(number, changes, is_finite=not numbers[_BAD])
        return _Replica(changes, {name: after[name] for name in self._kept}, numbers)

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

    def _local_sums(
        self, replicas: Sequence[tuple[int, _Replica]]
    ) -> tuple[Values, Values, NDArray[np.float64]]:
        """Sum up the replicas of this rank, in the order of their lanes."""
        numbers = self._zeros()
        slots = {name: np.zeros_like(variable.numpy()) for name, variable in self._kept.items()}
        changes = {
            name: np.zeros_like(_widened(_value(variable)))
            for name, variable in self._inner.items()
            if name not in self._unsummed
        }
        for lane, replica in replicas:
            numbers += replica.numbers
            for name, change in replica.changes.items():
                changes[name] += change
            for name, value in replica.state.items():
                slots[name][lane] = value
        return changes, slots, numbers

    def _over_ring(
        self, changes: Values, slots: Values, numbers: NDArray[np.float64], num_ranks: int
    ) -> tuple[Values, Values, NDArray[np.float64]]:
        """Sum up what the ranks have; one message for each type of number."""
        arrays = {f"c/{n}": v for n, v in changes.items()} | {f"k/{n}": v for n, v in slots.items()}
        totals: Values = {}
        # Only of weights: a rounded second moment of an optimizer could become negative.
        rounded = {
            key: arrays.pop(key)
            for name in self._step.trained
            if self._compression != "none" and arrays[key := f"c/{name}"].dtype == np.float32
        }
        if rounded:
            name = f"edl.rounds.{self._compression}"
            totals |= sum_compressed(
                rounded, self._collectives, self._compression, num_ranks=num_ranks, name=name
            )
        for kind in sorted({value.dtype.name for value in arrays.values()}):
            members = {n: v for n, v in arrays.items() if v.dtype.name == kind}
            flat = np.concatenate([value.reshape(-1) for value in members.values()])
            total = self._collectives.sum(flat, f"edl.rounds.{kind}")
            ends = np.cumsum([value.size for value in members.values()])
            parts = np.split(total, ends[:-1])
            totals |= {
                name: part.reshape(value.shape)
                for (name, value), part in zip(members.items(), parts, strict=True)
            }
        numbers = self._collectives.sum(numbers, "edl.rounds.numbers")
        return (
            {name: totals[f"c/{name}"] for name in changes},
            {name: totals[f"k/{name}"] for name in slots},
            numbers,
        )

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

    def _end_round(self, start: Values, changes: Values, numbers: NDArray[np.float64]) -> None:
        """Set a replica's variables to their values after the round, equally on all ranks."""
        weight, active = numbers[_WEIGHT], numbers[_ACTIVE]
        mean_changes = {
            name: np.rint(total / active).astype(np.int64)
            if _counts(start[name])
            else total / total.dtype.type(weight)
            for name, total in changes.items()
        }
        if self._outer is not None:
            self._outer.apply({name: mean_changes.pop(name) for name in self._step.trained})
        after = {
            name: _narrowed(_widened(start[name]) + change, start[name].dtype)
            for name, change in mean_changes.items()
        }
        _assign(self._inner, after)


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


def _narrowed(wide: NDArray[Any], kind: np.dtype[Any]) -> NDArray[Any]:
    """Values in the type of a variable, from those of `_widened`."""
    values = wide[..., 0] + 1j * wide[..., 1] if kind.kind == "c" else wide
    return np.asarray(values, kind)


def _assign(variables: Mapping[str, Variable], values: Values) -> None:
    for name, value in values.items():
        variables[name].assign(value)
