"""Ending a training that no longer gets better, decided alike on all ranks."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf

from edl_horovod.config.schema import EarlyStoppingConfig
from edl_horovod.errors import ConfigError, did_you_mean
from edl_horovod.ring.checkpoint import OPTIONAL

__all__ = ["EarlyStopping"]

BEST, NUM_VAIN, BEST_STEP = range(3)


class EarlyStopping:
    """What the evaluations have shown so far.

    All of it is in variables that the ring's state holds, so a newcomer and a training that goes on
    know it. Every rank feeds it the same reduced numbers and comes to the same decision.
    """

    def __init__(
        self,
        config: EarlyStoppingConfig,
        weights: Mapping[str, tf.Variable],
        *,
        names: Sequence[str],
        num_sums: int,
    ) -> None:
        """Begin with no evaluation.

        Args:
            config: What is watched, and for how long.
            weights: The model's variables, by name.
            names: Of an evaluation's numbers.
            num_sums: Length of an evaluation's row of sums.

        Raises:
            ConfigError: The number that is watched is not among them.
        """
        if config.metric not in names:
            raise ConfigError(
                "train.early_stopping.metric must be one of the evaluation's numbers: "
                f"{', '.join(names)}. Received: train.early_stopping.metric={config.metric}."
                f"{did_you_mean(config.metric, names)}"
            )
        self._config = config
        self._sign = 1.0 if config.mode == "min" else -1.0
        self._seen = tf.Variable([math.inf, 0.0, -1.0], dtype=tf.float64)
        self._weights = dict(weights) if config.restore_best else {}
        self._best_weights = {
            name: tf.Variable(tf.convert_to_tensor(value)) for name, value in self._weights.items()
        }
        self._best_row = tf.Variable(np.zeros(num_sums))

    @property
    def variables(self) -> dict[str, tf.Variable]:
        """What the ring's state must hold, by name."""
        best = {f"{OPTIONAL}best/{name}": v for name, v in self._best_weights.items()}
        return {
            f"{OPTIONAL}early_stopping": self._seen,
            f"{OPTIONAL}best_evaluation": self._best_row,
            **best,
        }

    @property
    def is_over(self) -> bool:
        """Whether the training has not become better for as long as may be."""
        return bool(self._seen.numpy()[NUM_VAIN] >= self._config.patience)

    @property
    def best(self) -> tuple[int, float]:
        """Step and watched number of the best evaluation."""
        seen = self._seen.numpy()
        return int(seen[BEST_STEP]), float(self._sign * seen[BEST])

    @property
    def best_row(self) -> np.ndarray | None:
        """The sums of the evaluation whose weights are restored; None where none are."""
        return self._best_row.numpy() if self._best_weights else None

    def after_evaluation(self, step: int, metrics: Mapping[str, float], row: np.ndarray) -> None:
        """Take note of an evaluation; all ranks do.

        Args:
            step: Where it was made.
            metrics: Its numbers, reduced over the ring.
            row: Its sums.
        """
        value = self._sign * metrics[self._config.metric]
        best, num_vain, best_step = self._seen.numpy().tolist()
        if value < best - self._config.min_delta:
            self._seen.assign([value, 0.0, float(step)])
            self._best_row.assign(row)
            for variable_name, variable in self._best_weights.items():
                variable.assign(self._weights[variable_name])
        else:
            self._seen.assign([best, num_vain + 1.0, best_step])

    def restore_best(self) -> None:
        """Give the model the weights of the best evaluation, if that is wanted and there is one."""
        if self._seen.numpy()[BEST_STEP] >= 0:
            for name, variable in self._best_weights.items():
                self._weights[name].assign(variable)
