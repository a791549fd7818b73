"""Loss and metrics over a data set, weighted by examples, so independent of the ring.

A training evaluates its validation data between steps, and may stop if it no longer improves.
"""

import contextlib
import math
import time
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from edl_horovod.config.schema import EarlyStoppingConfig, JobConfig, TrainConfig
from edl_horovod.errors import ConfigError, DataError, did_you_mean
from edl_horovod.files import json_text
from edl_horovod.files.output_dir import staged
from edl_horovod.frameworks.base import Collectives, Evaluation, Framework, Model
from edl_horovod.frameworks.batches import StepBatches
from edl_horovod.frameworks.values import Array, EvaluationSums, Variable
from edl_horovod.frameworks.world import World
from edl_horovod.job.account import Cause
from edl_horovod.job.events import EvaluationEvent, EventLog, LogEvent
from edl_horovod.job.identity import WorkerIdentity
from edl_horovod.job.outcome import Success
from edl_horovod.records.plan import DataPlan
from edl_horovod.ring.loop import Work
from edl_horovod.ring.membership.base import Membership
from edl_horovod.ring.state import Counters, RingState
from edl_horovod.spec import Mode
from edl_horovod.tasks.federated import Party
from edl_horovod.tasks.opening import OpenData, Opening
from edl_horovod.tasks.progress import report_records

SEGMENT_STEPS = 8
"""Steps between two collectives of an evaluation job; a lost rank costs at most these."""
BEST_WEIGHTS = "best/"
"""Prefix of the names of the best weights in the ring's state."""


def make_warm(
    config: JobConfig,
    framework: Framework,
    events: EventLog,
    _: WorkerIdentity,
    stack: contextlib.ExitStack,
) -> Work:
    """Load the trained model and open the data; see `tasks.warm`."""
    trained = Opening(config, framework, events, stack).trained(Mode.EVALUATION)
    evaluator = Evaluator.of(trained.model, trained.data, framework.collectives)
    return EvaluateWork(config, evaluator, framework.collectives, events)


class Evaluator:
    """Sums of examples, loss and metrics over the steps of a data set."""

    def __init__(
        self,
        evaluation: Evaluation,
        batches: StepBatches,
        plan: DataPlan,
        collectives: Collectives,
        *,
        party: Party | None = None,
    ) -> None:
        """Prepare; `restart` begins to read.

        Args:
            evaluation: Computes the sums of a batch.
            batches: The batches of the data set, in `Mode.EVALUATION`.
            plan: The plan of the data set, not shuffled.
            collectives: The ring's collectives.
            party: The party that this rank is. Each then has a data set of its own, of which it
                reads all, and files of its own.
        """
        self.evaluation, self.plan, self.party = evaluation, plan, party
        self._batches, self._collectives = batches, collectives

    @classmethod
    def of(
        cls, model: Model, data: OpenData, collectives: Collectives, *, party: Party | None = None
    ) -> Self:
        """Create the evaluator of a model on data that was opened in `Mode.EVALUATION`.

        Raises:
            UserCodeError: The spec's loss or metrics cannot be built for these examples.
        """
        evaluation = model.evaluation(data.batches.element_spec)
        return cls(evaluation, data.batches, data.plan, collectives, party=party)

    @property
    def num_steps(self) -> int:
        """Steps of one pass over the data set."""
        return self.plan.steps_per_epoch

    def restart(self, world: World, first_step: int) -> None:
        """Read this rank's lanes from a step on."""
        num_lanes = self.plan.num_lanes
        lanes = world.lanes(num_lanes) if self.party is None else range(num_lanes)
        self._batches.restart(lanes, first_step, self.num_steps)

    def local_sums(
        self, num_steps: int, membership: Membership, *, input_cause: Cause | None = None
    ) -> EvaluationSums:
        """Add the sums over this rank's examples of the next steps.

        Args:
            num_steps: The number of steps to add.
            membership: Records the activity of this rank.
            input_cause: What the waits for examples are booked as; None: the same as the rest.

        Raises:
            UserCodeError: Shapes in the model, the loss or a metric do not fit.
        """
        sums = self.evaluation.zeros
        for number in range(num_steps):
            phase = f"batch {number} of an evaluation"
            with membership.doing("works", f"examples of {phase}", input_cause):
                batch = self._batches.next_batch()
            if batch is not None:
                with membership.doing("works", phase):
                    sums += self.evaluation.sums(batch)
        return sums

    def is_skipped(self, step: int, world: World) -> bool:
        """Whether the parties must not evaluate after a step; all ranks call it.

        Raises:
            CollectiveFailed: A member was lost.
        """
        if self.party is None:
            return False
        return self.party.skips_evaluation(step, world, self._collectives)

    def over_ring(self, sums: EvaluationSums, world: World) -> EvaluationSums:
        """Add the sums of all ranks; all of them call it after the same steps.

        Raises:
            CollectiveFailed: A member was lost.
        """
        if world.is_alone:
            return sums
        return EvaluationSums.of(self._collectives.sum(sums.vector, "edl.evaluate"))

    def of_training(self, step: int, sums: EvaluationSums, world: World) -> EvaluationSums | None:
        """Do the same after a step of a training.

        Returns None on all ranks if they are parties, too few of which have examples for a secure
        sum.

        Raises:
            CollectiveFailed: A member was lost.
            OutputError: As for `SecureSums.masks`.
        """
        if self.party is None or self.party.secure_sums is None or world.is_alone:
            return self.over_ring(sums, world)
        return self.party.secure_evaluation(step, sums, self.party.secure_sums, self._collectives)

    def by_party(self, sums: EvaluationSums, world: World) -> dict[str, dict[str, float]]:
        """The numbers of the parties that share them, by name; all ranks call it.

        Raises:
            CollectiveFailed: A member was lost.
        """
        if self.party is None:
            return {}
        shared = self.party.evaluations(sums, world, self._collectives)
        return {name: self.evaluation.values(of_party) for name, of_party in shared.items()}

    def from_leader(self, value: float, world: World) -> float:
        """Return the leader's value; all ranks call it after the same steps.

        Raises:
            CollectiveFailed: A member was lost.
        """
        if world.is_alone:
            return value
        summand = np.array(value if world.is_leader else 0.0)
        return float(self._collectives.sum(summand, "edl.from_leader"))

    def metrics(self, sums: EvaluationSums) -> dict[str, float]:
        """The evaluation's numbers over all examples, `loss` first.

        Raises:
            DataError: There are no examples, so there is no mean.
        """
        if not sums.num_examples:
            raise DataError(
                "The evaluation data gave no examples.",
                received=f"{self.plan.num_records} records",
                hint="Check whether create_dataset filters all of them out.",
            )
        return self.evaluation.values(sums)


class EvaluateWork(Work):
    """The `evaluate` task: sums are the state; a lost rank costs at most one segment."""

    def __init__(
        self, config: JobConfig, evaluator: Evaluator, collectives: Collectives, events: EventLog
    ) -> None:
        """The leader reports its progress to `events`."""
        self._config, self._events = config, events
        self._evaluator, self._plan = evaluator, evaluator.plan
        self._total = Array(evaluator.evaluation.zeros.vector)
        self.state = RingState({"total": self._total}, Counters(), collectives)

    def records_seen(self) -> int:
        """Records of the segments that are done."""
        done = min(self.state.step * SEGMENT_STEPS, self._evaluator.num_steps)
        return self._plan.records_seen(done)

    def run(self, world: World, membership: Membership) -> bool:
        """Evaluate segment after segment; `state.step` counts segments."""
        num_steps = self._evaluator.num_steps
        self._evaluator.restart(world, self.state.step * SEGMENT_STEPS)
        with membership.doing("works", "between two segments", "between"):
            while (first := self.state.step * SEGMENT_STEPS) < num_steps:
                num_next = min(SEGMENT_STEPS, num_steps - first)
                with membership.doing("works", f"segment {self.state.step}", "computing"):
                    sums = self._evaluator.local_sums(num_next, membership, input_cause="input")
                sums = replace(sums, wants_change=float(membership.wants_change()))
                with membership.doing("waits", f"segment {self.state.step}", "exchange"):
                    sums = self._evaluator.over_ring(sums, world)
                self._total.assign(self._total.numpy() + replace(sums, wants_change=0.0).vector)
                self.state.commit()
                membership.progress(self.state.step)
                report_records(self._events, world, self.records_seen(), self._plan.num_records)
                if sums.wants_change > 0:
                    return False
        return True

    def finish(self, world: World) -> Success:
        """Compute the metrics on every rank; the leader writes them if `output` is set."""
        sums = EvaluationSums.of(self._total.numpy())
        metrics = self._evaluator.metrics(sums)
        if self._config.output:
            if world.is_leader:
                _write_metrics(self._config, metrics)
            self._evaluator.over_ring(sums, world)  # All ranks: each has done the last segment.
        return Success(
            steps=self._evaluator.num_steps,
            metrics=metrics,
            examples=int(sums.num_examples),
            output=self._config.output,
        )


def _write_metrics(config: JobConfig, metrics: dict[str, float]) -> None:
    output = Path(config.output)
    with staged(output, "evaluation", overwrite=config.overwrite, job=config.job_dir) as folder:
        (folder / "metrics.json").write_text(json_text.dumps(metrics, indent=2) + "\n")


@dataclass(frozen=True)
class _Seen:
    """The results of the evaluations so far that decide about an early stop."""

    best: float = math.inf
    """The watched metric of the best evaluation, with a sign such that smaller is better."""
    num_without_gain: float = 0.0
    """Number of evaluations since the best one."""
    best_step: float = -1.0
    """The step of the best evaluation; -1 for none."""
    question: float = 0.0
    """Checksum of the metric, its mode and the validation data."""


class EarlyStopping:
    """Decides after each evaluation whether the training continues.

    Everything that it knows is in variables of the ring's state, so newcomers and resumed trainings
    know it as well. Every rank passes it the same reduced numbers, so all decide the same.
    """

    def __init__(
        self,
        config: EarlyStoppingConfig,
        weights: Mapping[str, Variable],
        *,
        names: Sequence[str],
        num_sums: int,
        data: str = "",
    ) -> None:
        """Begin with no evaluation.

        Args:
            config: The watched metric, and the patience.
            weights: The model's variables, by name.
            names: The names of an evaluation's numbers.
            num_sums: Length of an evaluation's sums as one vector.
            data: Fingerprint of the validation data.

        Raises:
            ConfigError: The watched metric is not among them.
        """
        if config.metric not in names:
            raise ConfigError(
                "train.early_stopping.metric must be one of the evaluation's numbers:"
                f" {', '.join(names)}.",
                received=f"train.early_stopping.metric={config.metric}",
                hint=did_you_mean(config.metric, names),
            )
        self._config = config
        self._sign = 1.0 if config.mode == "min" else -1.0
        self._threshold = -math.inf if config.threshold is None else self._sign * config.threshold
        question = f"{config.metric} {config.mode} {data}"
        self._question = float(zlib.crc32(question.encode()))
        self._stored = Array(astuple(_Seen()))
        self._weights = dict(weights) if config.restore_best else {}
        self._best_weights = {name: Array(value.numpy()) for name, value in self._weights.items()}
        self._weights_step = Array(-1.0)
        self._best_sums = Array(np.zeros(num_sums))

    @property
    def variables(self) -> dict[str, Variable]:
        """Variables that must be part of the ring's state, by name."""
        best = {f"{BEST_WEIGHTS}{name}": value for name, value in self._best_weights.items()}
        if best:
            best["best_weights_step"] = self._weights_step
        return {"early_stopping": self._stored, "best_evaluation": self._best_sums, **best}

    @property
    def _seen(self) -> _Seen:
        """The results so far; none where a resumed training asks for something else than before."""
        seen = _Seen(*self._stored.numpy().tolist())
        has_weights = not self._best_weights or self._weights_step.numpy() == seen.best_step
        return seen if seen.question == self._question and has_weights else _Seen()

    @property
    def is_over(self) -> bool:
        """Whether the patience is exhausted, or an evaluation has reached the threshold."""
        seen = self._seen
        return seen.num_without_gain >= self._config.patience or seen.best <= self._threshold

    @property
    def best(self) -> tuple[int, float]:
        """The step and the watched metric of the best evaluation."""
        seen = self._seen
        return int(seen.best_step), self._sign * seen.best

    @property
    def best_sums(self) -> NDArray[np.float64] | None:
        """The sums of the evaluation whose weights are restored; None if none are restored."""
        has_best = self._best_weights and self._seen.best_step >= 0
        return self._best_sums.numpy() if has_best else None

    def after_evaluation(
        self, step: int, metrics: Mapping[str, float], sums: NDArray[np.float64]
    ) -> None:
        """Add an evaluation, reduced over the ring; all ranks call it."""
        value, seen = self._sign * metrics[self._config.metric], self._seen
        if value < seen.best - self._config.min_delta or value <= self._threshold:
            seen = _Seen(value, best_step=step)
            self._weights_step.assign(step)
            self._best_sums.assign(sums)
            for name, best in self._best_weights.items():
                best.assign(self._weights[name].numpy())
        else:
            seen = replace(seen, num_without_gain=seen.num_without_gain + 1)
        self._stored.assign(astuple(replace(seen, question=self._question)))

    def restore_best(self) -> None:
        """Set the model to the weights of the best evaluation, if `restore_best` is configured."""
        if self._seen.best_step >= 0:
            for name, best in self._best_weights.items():
                self._weights[name].assign(best.numpy())


class NoValidation:
    """The validation of a training without validation data."""

    variables: Mapping[str, Variable] = MappingProxyType({})
    best_weights: Sequence[str] = ()
    is_over = False

    def enter_ring(self) -> None:
        """Do nothing."""

    def end_step(self) -> None:
        """Do nothing."""

    def metrics(self) -> dict[str, float]:
        """No metrics."""
        return {}

    def final_metrics(self) -> dict[str, float]:
        """No metrics."""
        return {}

    def restore_best(self) -> None:
        """Do nothing."""


class Validation:
    """The evaluations of a training; their results are part of the ring's state."""

    def __init__(
        self,
        evaluator: Evaluator,
        config: TrainConfig,
        weights: Mapping[str, Variable],
        events: EventLog,
    ) -> None:
        """Begin without evaluations; `weights` are the model's variables, by name.

        Raises:
            ConfigError: The evaluation does not compute the watched metric.
        """
        self._evaluator = evaluator
        self._metric = config.early_stopping.metric
        self._max_seconds = config.max_seconds
        self._events = events
        self._counted_until = self._stepped_at = time.monotonic()
        self._uncounted_seconds = 0.0
        """Training time in former rings since the last evaluation."""
        self._seconds = Array(0.0)
        # The sums of the last evaluation, whose metrics the leader writes at the end.
        self._last = Array(evaluator.evaluation.zeros.vector)
        self.stopping: EarlyStopping | None = None
        if self._metric:
            # Parties have data of their own, but the same decision.
            data = evaluator.plan.data_fingerprint if evaluator.party is None else ""
            self.stopping = EarlyStopping(
                config.early_stopping,
                weights,
                names=evaluator.evaluation.names,
                num_sums=self._last.numpy().size,
                data=data,
            )

    @property
    def variables(self) -> Mapping[str, Variable]:
        """Variables that must be part of the ring's state, by name."""
        watched = self.stopping.variables if self.stopping is not None else {}
        return {"evaluation": self._last, "train_seconds": self._seconds, **watched}

    @property
    def best_weights(self) -> Sequence[str]:
        """Names of the variables that hold the best weights; together as large as the model."""
        if self.stopping is None:
            return []
        return [name for name in self.stopping.variables if name.startswith(BEST_WEIGHTS)]

    @property
    def is_over(self) -> bool:
        """Whether the patience is exhausted, or train.max_seconds have passed."""
        return self._is_time_over or (self.stopping is not None and self.stopping.is_over)

    @property
    def _is_time_over(self) -> bool:
        return 0 < self._max_seconds <= float(self._seconds.numpy())

    def enter_ring(self) -> None:
        """Begin to count training time in a ring, without the standstill before."""
        self._uncounted_seconds += self._stepped_at - self._counted_until
        self._counted_until = self._stepped_at = time.monotonic()

    def end_step(self) -> None:
        """Note when the last step ended."""
        self._stepped_at = time.monotonic()

    def evaluate(
        self, step: int, world: World, membership: Membership, *, may_be_reported: bool
    ) -> None:
        """Evaluate the model on the ring; all ranks call it after the same step.

        Args:
            step: Number of steps that are done.
            world: The ring.
            membership: Records the activity of this rank.
            may_be_reported: Whether a former leader may have written the event already.

        Raises:
            CollectiveFailed: A member was lost.
            DataError: The data gave no examples.
            PartyError: This party's loss or a metric is not finite.
        """
        party, waiting = self._evaluator.party, f"evaluation after step {step}"
        sums, parties = None, {}
        with membership.doing("waits", waiting, "evaluation"):
            is_skipped = self._evaluator.is_skipped(step, world)
        if not is_skipped:
            self._evaluator.restart(world, 0)
            local = self._evaluator.local_sums(self._evaluator.num_steps, membership)
            if party is not None:
                # Before the sum, which would spoil the numbers of all.
                party.check_evaluation(step, local)
        with membership.doing("waits", waiting, "evaluation"):
            if not is_skipped:
                sums = self._evaluator.of_training(step, local, world)
            if sums is not None:
                parties = self._evaluator.by_party(local, world)
            if self._max_seconds:
                now = time.monotonic()
                # All ranks call it: the settings decide. Clocks differ, so the leader's time
                # counts.
                spent = self._uncounted_seconds + now - self._counted_until
                spent = self._evaluator.from_leader(spent, world)
        if self._max_seconds:
            self._seconds.assign(self._seconds.numpy() + spent)
            self._counted_until = self._stepped_at = now
            self._uncounted_seconds = 0.0
        if sums is None:
            return
        metrics = self._evaluator.metrics(sums)
        self._last.assign(sums.vector)
        if self.stopping is not None:
            self.stopping.after_evaluation(step, metrics, sums.vector)
        writes = world.is_leader or party is not None
        if writes and not (may_be_reported and self._was_reported(step)):
            examples = int(sums.num_examples)
            event = EvaluationEvent(
                step=step, metrics=metrics, examples=examples, parties=parties or None
            )
            self._events.write(event)
            if self.stopping is not None and self.stopping.is_over:
                at, best = self.stopping.best
                best_was = f"the best {self._metric} was {best:.4g}, at step {at:,}"
                self._events.write(LogEvent(message=f"training stops early: {best_was}"))
            elif self._is_time_over:
                bound = f"{self._max_seconds:,.0f} s, which train.max_seconds allows"
                self._events.write(LogEvent(message=f"training ends after {bound}"))

    def metrics(self) -> dict[str, float]:
        """The metrics of the last evaluation; empty if there was none."""
        return self._metrics_of(self._last.numpy())

    def final_metrics(self) -> dict[str, float]:
        """The metrics of the weights in the trained model."""
        best = self.stopping.best_sums if self.stopping is not None else None
        return (self._metrics_of(best) if best is not None else {}) or self.metrics()

    def restore_best(self) -> None:
        """Set the model to its best weights, if `restore_best` is configured."""
        if self.stopping is not None:
            self.stopping.restore_best()

    def _metrics_of(self, vector: NDArray[np.float64]) -> dict[str, float]:
        sums = EvaluationSums.of(vector)
        return self._evaluator.metrics(sums) if sums.num_examples else {}

    def _was_reported(self, step: int) -> bool:
        return self._events.has(
            lambda event: isinstance(event, EvaluationEvent) and event.step == step
        )
