"""What a training does with its validation data: evaluations between steps, and when to stop."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from edl_horovod.config.schema import EarlyStoppingConfig
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
        config: EarlyStoppingConfig,
        weights: Mapping[str, Variable],
        events: EventLog,
    ) -> None:
        """Begin with no evaluation; `weights` are the model's variables, by name.

        Raises:
            ConfigError: The number to watch is none of the evaluation's.
        """
        self._evaluator = evaluator
        self._metric = config.metric
        self._events = events
        # The sums of the last evaluation: the leader at the end writes its metrics.
        self._last = Array(evaluator.evaluation.zeros.vector)
        self.stopping: EarlyStopping | None = None
        if config.metric:
            names, num_sums = evaluator.evaluation.names, self._last.numpy().size
            self.stopping = EarlyStopping(config, weights, names=names, num_sums=num_sums)

    @property
    def variables(self) -> dict[str, Variable]:
        """What the ring's state must hold, by name."""
        watched = self.stopping.variables if self.stopping is not None else {}
        return {"evaluation": self._last, **watched}

    @property
    def best_weights(self) -> list[str]:
        """Names of those variables that are as large as the model's."""
        if self.stopping is None:
            return []
        return [name for name in self.stopping.variables if name.startswith(BEST_WEIGHTS)]

    @property
    def is_over(self) -> bool:
        """Whether the training has not become better for as long as may be."""
        return self.stopping is not None and self.stopping.is_over

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
        if self.stopping is not None:
            self.stopping.after_evaluation(step, metrics, sums.vector)
        if world.is_leader and not (may_be_reported and self._was_reported(step)):
            examples = int(sums.num_examples)
            self._events.write(EvaluationEvent(step=step, metrics=metrics, examples=examples))
            if self.stopping is not None and self.stopping.is_over:
                at, best = self.stopping.best
                best_was = f"the best {self._metric} was {best:.4g}, at step {at:,}"
                self._events.write(LogEvent(message=f"training stops early: {best_was}"))

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
