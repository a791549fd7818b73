"""Ending a training that no longer gets better, decided in the same way on all ranks."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, replace

import numpy as np
from numpy.typing import NDArray

from edl_horovod.config.schema import EarlyStoppingConfig
from edl_horovod.errors import ConfigError, did_you_mean
from edl_horovod.frameworks.values import Array, Variable

__all__ = ["BEST_WEIGHTS", "EarlyStopping"]

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
