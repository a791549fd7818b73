"""Evaluate a Keras model: the loss and metrics of batches as sums that add up."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from edl_horovod.frameworks.keras.functional import MetricSums, num_examples, running
from edl_horovod.frameworks.keras.objective import Objective
from edl_horovod.frameworks.values import Batch, EvaluationSums
from edl_horovod.models.calling import user_code
from edl_horovod.models.zoo import LoadedSpec
from edl_horovod.spec import Mode

__all__ = ["KerasEvaluation"]


class KerasEvaluation:
    """The traced evaluation of one batch."""

    def __init__(self, loaded: LoadedSpec, model: keras.Model, element_spec: Any) -> None:
        """Trace the evaluation.

        Args:
            loaded: The user's spec.
            model: The built model.
            element_spec: `tf.TypeSpec`s of a batch's features, labels, and weights if any.

        Raises:
            UserCodeError: The loss or a metric cannot be built for these examples, or its values
                cannot be added up.
        """
        self._loaded = loaded
        self._objective = Objective(loaded, model, element_spec, Mode.EVALUATION)
        self._metrics: list[MetricSums] = []
        with user_code(f"Building the evaluation of {loaded.label}", root=loaded.zoo):
            self._sums = tf.function(self._trace, autograph=False).get_concrete_function(
                element_spec
            )
        size = sum(metric.size for metric in self._metrics)
        self.names = ["loss", *self._values(np.zeros(size), 1.0)]
        self.zeros = EvaluationSums.zeros(size)

    def sums(self, batch: Batch) -> EvaluationSums:
        """Compute the sums of a batch."""
        self._objective.require_mean(batch.examples)
        with running("The evaluation", self._loaded, batch.examples):
            count, loss, weight, *metrics = self._sums(batch.examples).numpy()
        return EvaluationSums(count, loss, weight, np.array(metrics))

    def values(self, sums: EvaluationSums) -> dict[str, float]:
        """Compute the loss and the metrics by name from the sums of at least one example."""
        # Keras defines a fully masked loss as 0.
        loss = sums.mean_loss if sums.loss_weight else 0.0
        return {"loss": loss, **self._values(sums.metrics, sums.num_examples)}

    def _values(self, sums: NDArray[np.float64], count: float) -> dict[str, float]:
        values: dict[str, float] = {}
        start = 0
        for metric in self._metrics:
            stop = start + metric.size
            counted = metric.counted(sums[start:stop], count)
            named = metric.values(counted, count)
            values |= {name: float(value) for name, value in named.items()}
            start = stop
        return values

    def _trace(self, examples: tuple[Any, ...]) -> tf.Tensor:
        count = tf.cast(num_examples(examples[0]), tf.float32)
        outcome = self._objective.of_batch(*examples)
        self._metrics = outcome.metrics
        loss = tf.stack([outcome.loss.total, outcome.loss.weight])
        numbers = [[count], tf.cast(loss, tf.float32)]
        return tf.cast(tf.concat([*numbers, *(m.sums for m in outcome.metrics)], 0), tf.float64)
