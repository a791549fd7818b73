"""Loss and metrics of a Keras model over a batch, as sums."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from edl_horovod.frameworks.keras.functional import (
    MetricSums,
    call_functionally,
    metric_sums,
    running,
)
from edl_horovod.frameworks.values import Batch, EvaluationSums
from edl_horovod.models.calling import call_declared, user_code
from edl_horovod.models.zoo import LoadedSpec
from edl_horovod.spec import Mode

__all__ = ["KerasEvaluation"]


class KerasEvaluation:
    """The evaluation of a batch, traced."""

    def __init__(self, loaded: LoadedSpec, model: keras.Model, element_spec: Any) -> None:
        """Trace it; `element_spec` has the `tf.TypeSpec`s of features and labels.

        Raises:
            UserCodeError: The spec's loss or metrics cannot be built for these examples.
        """
        self._loaded = loaded
        self._model = model
        self._metrics: dict[str, MetricSums] = {}
        with user_code(f"Building the evaluation of {loaded.label}", root=loaded.zoo):
            self._sums = tf.function(self._trace, autograph=False).get_concrete_function(
                *element_spec
            )
        self.names = ["loss", *self._metrics]
        self.zeros = EvaluationSums.zeros(sum(each.size for each in self._metrics.values()))

    def sums(self, batch: Batch) -> EvaluationSums:
        """The sums of a batch; see `base.Evaluation`."""
        parts = batch.features, batch.labels
        with running("The evaluation", self._loaded, *parts):
            num_examples, loss, *metrics = self._sums(*parts).numpy()
        return EvaluationSums(num_examples, loss, np.array(metrics))

    def values(self, sums: EvaluationSums) -> dict[str, float]:
        """The numbers by name."""
        values = {"loss": float(sums.loss / sums.num_examples)}
        start = 0
        for name, metric in self._metrics.items():
            stop = start + metric.size
            values[name] = metric.value(sums.metrics[start:stop], sums.num_examples)
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
