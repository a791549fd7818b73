"""What a training does with its validation data: evaluations between steps, and when to stop."""

import time
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from edl_horovod.config.schema import TrainConfig
from edl_horovod.frameworks.values import Array, EvaluationSums, Variable
from edl_horovod.frameworks.world import World
from edl_horovod.job.events import EvaluationEvent, EventLog, LogEvent
from edl_horovod.ring.early_stopping import BEST_WEIGHTS, EarlyStopping
from edl_horovod.ring.membership.base import Membership
from edl_horovod.tasks.evaluate import Evaluator

__all__ = ["Validation"]


class Validation:
    """The evaluations of a training; what the ranks must know of them is in the ring's state."""

    def __init__(
        self,
        evaluator: Evaluator,
        config: TrainConfig,
        weights: Mapping[str, Variable],
        events: EventLog,
    ) -> None:
        """Begin with no evaluation; `weights` are the model's variables, by name.

        Raises:
            ConfigError: The number to watch is none of the evaluation's.
        """
        self._evaluator = evaluator
        self._metric = config.early_stopping.metric
        self._max_seconds = config.max_seconds
        self._events = events
        self._counted_until = time.monotonic()
        self._seconds = Array(0.0)
        # The sums of the last evaluation: the leader at the end writes its metrics.
        self._last = Array(evaluator.evaluation.zeros.vector)
        self.stopping: EarlyStopping | None = None
        if self._metric:
            names, num_sums = evaluator.evaluation.names, self._last.numpy().size
            self.stopping = EarlyStopping(
                config.early_stopping, weights, names=names, num_sums=num_sums
            )

    @property
    def variables(self) -> dict[str, Variable]:
        """What the ring's state must hold, by name."""
        watched = self.stopping.variables if self.stopping is not None else {}
        return {"evaluation": self._last, "train_seconds": self._seconds, **watched}

    @property
    def best_weights(self) -> list[str]:
        """Names of those variables that are as large as the model's."""
        if self.stopping is None:
            return []
        return [name for name in self.stopping.variables if name.startswith(BEST_WEIGHTS)]

    @property
    def is_over(self) -> bool:
        """Whether the training has not become better for as long as may be, or had its time."""
        return self._is_time_over or (self.stopping is not None and self.stopping.is_over)

    @property
    def _is_time_over(self) -> bool:
        return 0 < self._max_seconds <= float(self._seconds.numpy())

    def enter_ring(self) -> None:
        """Count the time from now on."""
        self._counted_until = time.monotonic()

    def evaluate(
        self, step: int, world: World, membership: Membership, *, may_be_reported: bool
    ) -> None:
        """Evaluate the model on the ring; all ranks do, after the same step.

        Args:
            step: Steps that are done.
            world: The ring.
            membership: Told what this rank does.
            may_be_reported: Whether a former leader may have told of this evaluation already.

        Raises:
            CollectiveFailed: A member was lost.
            DataError: The data gave no examples.
        """
        self._evaluator.restart(world, 0)
        local = self._evaluator.local_sums(self._evaluator.num_steps, membership)
        membership.doing("waits", f"evaluation after step {step}")
        sums = self._evaluator.over_ring(local, world)
        metrics = self._evaluator.metrics(sums)
        self._last.assign(sums.vector)
        if self._max_seconds:
            now = time.monotonic()
            # All ranks: the settings decide. Clocks differ, so the leader's counts for all.
            spent = self._evaluator.from_leader(now - self._counted_until, world)
            self._seconds.assign(self._seconds.numpy() + spent)
            self._counted_until = now
        if self.stopping is not None:
            self.stopping.after_evaluation(step, metrics, sums.vector)
        if world.is_leader and not (may_be_reported and self._was_reported(step)):
            examples = int(sums.num_examples)
            self._events.write(EvaluationEvent(step=step, metrics=metrics, examples=examples))
            if self.stopping is not None and self.stopping.is_over:
                at, best = self.stopping.best
                best_was = f"the best {self._metric} was {best:.4g}, at step {at:,}"
                self._events.write(LogEvent(message=f"training stops early: {best_was}"))
            elif self._is_time_over:
                bound = f"{self._max_seconds:,.0f} s, which train.max_seconds allows"
                self._events.write(LogEvent(message=f"training ends after {bound}"))

    def metrics(self) -> dict[str, float]:
        """Those of the last evaluation; empty where there was none."""
        return self._metrics_of(self._last.numpy())

    def final_metrics(self) -> dict[str, float]:
        """Those of the weights that the trained model has."""
        best = self.stopping.best_sums if self.stopping is not None else None
        return (self._metrics_of(best) if best is not None else {}) or self.metrics()

    def restore_best(self) -> None:
        """Give the model its best weights, where that is wanted."""
        if self.stopping is not None:
            self.stopping.restore_best()

    def _metrics_of(self, vector: NDArray[np.float64]) -> dict[str, float]:
        sums = EvaluationSums.of(vector)
        return self._evaluator.metrics(sums) if sums.num_examples else {}

    def _was_reported(self, step: int) -> bool:
        return self._events.has(
            lambda event: isinstance(event, EvaluationEvent) and event.step == step
        )
