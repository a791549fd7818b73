"""What a training does with its validation data: evaluations between steps, and when to stop."""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from edl_horovod.config.schema import EarlyStoppingConfig, TrainConfig
from edl_horovod.errors import ConfigError, did_you_mean
from edl_horovod.frameworks.values import Array, EvaluationSums, Variable
from edl_horovod.frameworks.world import World
from edl_horovod.job.events import EvaluationEvent, EventLog, LogEvent
from edl_horovod.ring.membership.base import Membership
from edl_horovod.tasks.evaluate import Evaluator

__all__ = ["BEST_WEIGHTS", "EarlyStopping", "NoValidation", "Validation"]

BEST_WEIGHTS = "best/"
"""Start of the names of the weights that it keeps."""


@dataclass(frozen=True)
class _Seen:
    """What the evaluations have shown so far."""

    best: float = math.inf
    """The watched number of the best evaluation, its sign such that less is better."""
    num_without_gain: float = 0.0
    """Evaluations since the best one."""
    best_step: float = -1.0
    """Where the best one was made; -1 for none."""


class EarlyStopping:
    """Decides after each evaluation whether the training goes on.

    All that it knows is in variables that the ring's state holds, so a newcomer and a resumed
    training know it too. Every rank feeds it the same reduced numbers, so all decide the same.
    """

    def __init__(
        self,
        config: EarlyStoppingConfig,
        weights: Mapping[str, Variable],
        *,
        names: Sequence[str],
        num_sums: int,
    ) -> None:
        """Begin with no evaluation.

        Args:
            config: What is watched, and for how long.
            weights: The model's variables, by name.
            names: Of an evaluation's numbers.
            num_sums: Length of an evaluation's sums as one vector.

        Raises:
            ConfigError: The number that is watched is not among them.
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
        self._stored = Array(astuple(_Seen()))
        self._weights = dict(weights) if config.restore_best else {}
        self._best_weights = {name: Array(value.numpy()) for name, value in self._weights.items()}
        self._best_sums = Array(np.zeros(num_sums))

    @property
    def variables(self) -> dict[str, Variable]:
        """What the ring's state must hold, by name."""
        best = {f"{BEST_WEIGHTS}{name}": value for name, value in self._best_weights.items()}
        return {"early_stopping": self._stored, "best_evaluation": self._best_sums, **best}

    @property
    def _seen(self) -> _Seen:
        return _Seen(*self._stored.numpy().tolist())

    @property
    def is_over(self) -> bool:
        """Whether the training has not become better for as long as may be."""
        return self._seen.num_without_gain >= self._config.patience

    @property
    def best(self) -> tuple[int, float]:
        """Step and watched number of the best evaluation."""
        seen = self._seen
        return int(seen.best_step), self._sign * seen.best

    @property
    def best_sums(self) -> NDArray[np.float64] | None:
        """The sums of the evaluation whose weights are restored; None where none are."""
        return self._best_sums.numpy() if self._best_weights else None

    def after_evaluation(
        self, step: int, metrics: Mapping[str, float], sums: NDArray[np.float64]
    ) -> None:
        """Take note of an evaluation, reduced over the ring; all ranks do."""
        value, seen = self._sign * metrics[self._config.metric], self._seen
        if value < seen.best - self._config.min_delta:
            seen = _Seen(value, best_step=step)
            self._best_sums.assign(sums)
            for name, best in self._best_weights.items():
                best.assign(self._weights[name].numpy())
        else:
            seen = replace(seen, num_without_gain=seen.num_without_gain + 1)
        self._stored.assign(astuple(seen))

    def restore_best(self) -> None:
        """Give the model the weights of the best evaluation, if that is wanted and there is one."""
        if self._seen.best_step >= 0:
            for name, best in self._best_weights.items():
                self._weights[name].assign(best.numpy())


class NoValidation:
    """Stands for the validation of a training that has no data for one."""

    variables: Mapping[str, Variable] = MappingProxyType({})
    best_weights: Sequence[str] = ()
    is_over = False

    def enter_ring(self) -> None:
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
    def variables(self) -> Mapping[str, Variable]:
        """What the ring's state must hold, by name."""
        watched = self.stopping.variables if self.stopping is not None else {}
        return {"evaluation": self._last, "train_seconds": self._seconds, **watched}

    @property
    def best_weights(self) -> Sequence[str]:
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
        with membership.doing("waits", f"evaluation after step {step}"):
            sums = self._evaluator.over_ring(local, world)
            if self._max_seconds:
                now = time.monotonic()
                # All ranks: the settings decide. Clocks differ, so the leader's counts for all.
                spent = self._evaluator.from_leader(now - self._counted_until, world)
        metrics = self._evaluator.metrics(sums)
        self._last.assign(sums.vector)
        if self._max_seconds:
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
