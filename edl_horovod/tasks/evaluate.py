"""Loss and metrics over a data set, weighted by examples: the ring does not matter."""

import contextlib
from dataclasses import replace
from pathlib import Path
from typing import Self

import numpy as np

from edl_horovod.config.schema import JobConfig
from edl_horovod.errors import DataError
from edl_horovod.files import json_text
from edl_horovod.files.output_dir import staged
from edl_horovod.frameworks.base import Batches, Collectives, Framework
from edl_horovod.frameworks.models import Evaluation, Model
from edl_horovod.frameworks.values import Array, EvaluationSums
from edl_horovod.frameworks.world import World
from edl_horovod.job.events import EventLog
from edl_horovod.job.identity import WorkerIdentity
from edl_horovod.job.outcome import Success
from edl_horovod.records.plan import DataPlan
from edl_horovod.ring.loop import Work
from edl_horovod.ring.membership.base import Membership
from edl_horovod.ring.state import Counters, RingState
from edl_horovod.spec import Mode
from edl_horovod.tasks.opening import OpenData, open_trained
from edl_horovod.tasks.progress import report_records

__all__ = ["EvaluateWork", "Evaluator", "make_warm"]

SEGMENT_STEPS = 8
"""Steps between two collectives of an evaluation job; a lost rank costs at most these."""


def make_warm(
    config: JobConfig,
    framework: Framework,
    events: EventLog,
    _: WorkerIdentity,
    stack: contextlib.ExitStack,
) -> Work:
    """Load the trained model and open the data; see `tasks.warm`."""
    trained = open_trained(config, framework, Mode.EVALUATION, events, stack)
    evaluator = Evaluator.of(trained.model, trained.data, framework.collectives)
    return EvaluateWork(config, evaluator, framework.collectives, events)


class Evaluator:
    """Sums of examples, loss and metrics over the steps of a data set."""

    def __init__(
        self, evaluation: Evaluation, batches: Batches, plan: DataPlan, collectives: Collectives
    ) -> None:
        """Read nothing yet.

        Args:
            evaluation: Makes the sums of a batch.
            batches: Of the data set, in `Mode.EVALUATION`.
            plan: Of the data set, not shuffled.
            collectives: Of the ring.
        """
        self.evaluation = evaluation
        self._batches = batches
        self.plan = plan
        self._collectives = collectives

    @classmethod
    def of(cls, model: Model, data: OpenData, collectives: Collectives) -> Self:
        """An evaluator of a model on data that was opened in `Mode.EVALUATION`.

        Raises:
            UserCodeError: The spec's loss or metrics cannot be built for these examples.
        """
        evaluation = model.evaluation(data.batches.element_spec)
        return cls(evaluation, data.batches, data.plan, collectives)

    @property
    def num_steps(self) -> int:
        """Steps of one pass over the data set."""
        return self.plan.steps_per_epoch

    def restart(self, world: World, first_step: int) -> None:
        """Read this rank's lanes from a step on."""
        self._batches.restart(world.lanes(self.plan.num_lanes), first_step, self.num_steps)

    def local_sums(self, num_steps: int, membership: Membership) -> EvaluationSums:
        """Add the sums over this rank's examples of the next steps.

        Args:
            num_steps: Of the data set.
            membership: Told of each batch.

        Raises:
            UserCodeError: Shapes in the model, the loss or a metric do not fit.
        """
        sums = self.evaluation.zeros
        for number in range(num_steps):
            with membership.doing("works", f"batch {number} of an evaluation"):
                batch = self._batches.next_batch()
                if batch is not None:
                    sums += self.evaluation.sums(batch)
        return sums

    def over_ring(self, sums: EvaluationSums, world: World) -> EvaluationSums:
        """Add the sums of all ranks, which all call it after the same steps.

        Raises:
            CollectiveFailed: A member was lost.
        """
        if world.is_alone:
            return sums
        return EvaluationSums.of(self._collectives.sum(sums.vector, "edl.evaluate"))

    def from_leader(self, value: float, world: World) -> float:
        """What the leader has as this value; all ranks call it after the same steps.

        Raises:
            CollectiveFailed: A member was lost.
        """
        if world.is_alone:
            return value
        share = np.array(value if world.is_leader else 0.0)
        return float(self._collectives.sum(share, "edl.from_leader"))

    def metrics(self, sums: EvaluationSums) -> dict[str, float]:
        """The evaluation's numbers over all examples, `loss` first.

        Raises:
            DataError: There is no example, so nothing has a mean.
        """
        if not sums.num_examples:
            raise DataError(
                "The evaluation data gave no examples.",
                received=f"{self.plan.num_records} records",
                hint="Look whether create_dataset filters them all.",
            )
        return self.evaluation.values(sums)


class EvaluateWork(Work):
    """The `evaluate` task: sums are the state; a lost rank costs at most one segment."""

    def __init__(
        self, config: JobConfig, evaluator: Evaluator, collectives: Collectives, events: EventLog
    ) -> None:
        """Start with empty sums; the leader tells `events` of the progress."""
        self._config = config
        self._evaluator = evaluator
        self._plan = evaluator.plan
        self._events = events
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
        with membership.doing("works", "between two segments"):
            while (first := self.state.step * SEGMENT_STEPS) < num_steps:
                sums = self._evaluator.local_sums(min(SEGMENT_STEPS, num_steps - first), membership)
                sums = replace(sums, wants_change=float(membership.wants_change()))
                with membership.doing("waits", f"segment {self.state.step}"):
                    sums = self._evaluator.over_ring(sums, world)
                self._total.assign(self._total.numpy() + replace(sums, wants_change=0.0).vector)
                self.state.commit()
                membership.progress(self.state.step)
                report_records(
                    self._events,
                    world,
                    num_done=self.records_seen(),
                    num_records=self._plan.num_records,
                )
                if sums.wants_change > 0:
                    return False
        return True

    def finish(self, world: World) -> Success:
        """The means; every rank has them, the leader writes them where that is wanted."""
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
