"""Loss and metrics over a data set, weighted by examples: the ring does not matter."""

from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from edl_horovod.config.schema import JobConfig
from edl_horovod.errors import DataError
from edl_horovod.files import json_text
from edl_horovod.files.output_dir import staged
from edl_horovod.frameworks.base import Array, Collectives
from edl_horovod.frameworks.keras.batches import KerasBatches
from edl_horovod.frameworks.keras.model import MetricSums, call_functionally, metric_sums, running
from edl_horovod.job.events import EventLog
from edl_horovod.models.calling import call_declared, user_code
from edl_horovod.models.zoo import LoadedSpec
from edl_horovod.records.plan import DataPlan
from edl_horovod.ring.loop import Work
from edl_horovod.ring.membership.base import Membership
from edl_horovod.ring.state import Counters, RingState
from edl_horovod.ring.world import World
from edl_horovod.spec import Mode

__all__ = ["EvaluateWork", "Evaluator"]

SEGMENT_STEPS = 8
"""Steps between two collectives of an evaluation job; a lost rank costs at most these."""


class Evaluator:
    """Sums of examples, loss and metrics over the steps of a data set."""

    def __init__(
        self,
        loaded: LoadedSpec,
        model: keras.Model,
        stream: KerasBatches,
        plan: DataPlan,
        collectives: Collectives,
    ) -> None:
        """Trace the evaluation of one batch.

        Args:
            loaded: The user's spec.
            model: Built.
            stream: Of the data set, in `Mode.EVALUATION`.
            plan: Of the data set, not shuffled.
            collectives: Of the ring.

        Raises:
            UserCodeError: The spec's loss or metrics cannot be built for these examples.
        """
        self._loaded = loaded
        self._model = model
        self._stream = stream
        self._plan = plan
        self._collectives = collectives
        self._metrics: dict[str, MetricSums] = {}
        doing = f"Building the evaluation of {loaded.label}"
        with user_code(doing, root=loaded.zoo):
            self._sums = tf.function(self._trace, autograph=False).get_concrete_function(
                *stream.element_spec
            )

    @property
    def num_sums(self) -> int:
        """Length of a row of sums: examples, loss, metrics, and the membership's flag."""
        return 3 + sum(int(each.sums.shape[0]) for each in self._metrics.values())

    @property
    def names(self) -> list[str]:
        """Of the numbers that an evaluation gives, `loss` first."""
        return ["loss", *self._metrics]

    @property
    def num_steps(self) -> int:
        """Steps of one pass over the data set."""
        return self._plan.steps_per_epoch

    def restart(self, world: World, first_step: int) -> None:
        """Read this rank's lanes from a step on."""
        self._stream.restart(world.lanes(self._plan.num_lanes), first_step, self.num_steps)

    def local_sums(self, num_steps: int, membership: Membership | None = None) -> np.ndarray:
        """Sums over this rank's examples of the next steps, shape (num_sums,), float64.

        Args:
            num_steps: Of the data set.
            membership: Told of each batch; None where nobody watches.

        Raises:
            UserCodeError: Shapes in the model, the loss or a metric do not fit.
        """
        row = np.zeros(self.num_sums)
        for number in range(num_steps):
            if membership is not None:
                membership.doing("works", f"batch {number} of an evaluation")
            batch = self._stream.next_batch()
            if batch is not None:
                parts = batch.features, batch.labels
                with running("The evaluation", self._loaded, *parts):
                    row[:-1] += self._sums(*parts).numpy()
        return row

    def over_ring(self, row: np.ndarray, world: World) -> np.ndarray:
        """Rows of all ranks, added. All ranks call it after the same steps.

        Raises:
            CollectiveFailed: A member was lost.
        """
        return row if world.is_alone else self._collectives.sum(row, "edl.evaluate")

    def metrics(self, row: np.ndarray) -> dict[str, float]:
        """The evaluation's numbers over all examples, `loss` first.

        Args:
            row: Sums of all ranks.

        Raises:
            DataError: There is no example, so nothing has a mean.
        """
        if row[0] == 0:
            raise DataError(
                "The evaluation data gave no examples. Received: "
                f"{self._plan.num_records} records. Look whether create_dataset filters them all."
            )
        values = {"loss": float(row[1] / row[0])}
        start = 2
        for name, metric in self._metrics.items():
            stop = start + metric.sums.shape[0]
            values[name] = metric.value(row[start:stop], row[0])
            start = stop
        return values

    def _trace(self, features: Any, labels: Any) -> tf.Tensor:
        count = tf.cast(tf.shape(tf.nest.flatten(features)[0])[0], tf.float32)
        outputs, _, extra_losses = call_functionally(self._model, features, training=False)
        loss = call_declared(self._loaded.spec.create_loss, {"outputs": outputs, "labels": labels})
        loss = tf.add_n([loss, *(tf.cast(extra, loss.dtype) for extra in extra_losses)])
        self._metrics = metric_sums(self._loaded, Mode.EVALUATION, outputs, labels, count)
        numbers = [[count], [tf.cast(loss, tf.float32) * count]]
        return tf.cast(
            tf.concat([*numbers, *(m.sums for m in self._metrics.values())], 0), tf.float64
        )


class EvaluateWork(Work):
    """The `evaluate` task: sums are the state; a lost rank costs at most one segment."""

    def __init__(
        self,
        config: JobConfig,
        evaluator: Evaluator,
        plan: DataPlan,
        collectives: Collectives,
        events: EventLog,
    ) -> None:
        """Start with empty sums.

        Args:
            config: The job.
            evaluator: Of the data set.
            plan: Of the data set.
            collectives: Of the ring.
            events: Told of the progress by the leader.
        """
        self._config = config
        self._evaluator = evaluator
        self._plan = plan
        self._events = events
        self._total = Array(np.zeros(evaluator.num_sums))
        self.state = RingState({"total": self._total}, Counters(), collectives)

    def records_seen(self) -> int:
        """Records of the segments that are done."""
        done = min(self.state.step * SEGMENT_STEPS, self._evaluator.num_steps)
        return self._plan.records_seen(done)

    def run(self, world: World, membership: Membership) -> bool:
        """Evaluate segment after segment; `state.step` counts segments."""
        num_steps = self._evaluator.num_steps
        self._evaluator.restart(world, self.state.step * SEGMENT_STEPS)
        while (first := self.state.step * SEGMENT_STEPS) < num_steps:
            row = self._evaluator.local_sums(min(SEGMENT_STEPS, num_steps - first), membership)
            row[-1] = membership.wants_change()
            membership.doing("waits", f"segment {self.state.step}")
            row = self._evaluator.over_ring(row, world)
            self._total.assign(self._total.numpy() + np.append(row[:-1], 0.0))
            self.state.commit()
            membership.progress(self.state.step)
            if world.is_leader:
                self._events.write(
                    "progress",
                    records=self.records_seen(),
                    total_records=self._plan.num_records,
                    size=world.size,
                )
            if row[-1] > 0:
                return False
        return True

    def finish(self, world: World) -> dict[str, Any]:
        """The means; every rank has them, the leader writes them where that is wanted."""
        row = self._total.numpy()
        metrics = self._evaluator.metrics(row)
        if self._config.output:
            if world.is_leader:
                _write_metrics(self._config, metrics)
            self._evaluator.over_ring(row, world)  # All ranks: each has done the last segment.
        return {
            "steps": self._evaluator.num_steps,
            "metrics": metrics,
            "examples": int(row[0]),
            "output": self._config.output,
        }


def _write_metrics(config: JobConfig, metrics: dict[str, float]) -> None:
    output = Path(config.output)
    with staged(output, "evaluation", overwrite=config.overwrite, job=config.job_dir) as folder:
        (folder / "metrics.json").write_text(json_text.dumps(metrics, indent=2) + "\n")
