"""A user's Keras model as pure functions of a batch: outputs, losses and metrics."""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from edl_horovod.errors import UserCodeError
from edl_horovod.frameworks.keras.metrics import Measured, as_keras_metric, value_of
from edl_horovod.models.calling import call_declared, user_code
from edl_horovod.models.zoo import LoadedSpec
from edl_horovod.spec import Mode

__all__ = ["MetricSums", "call_functionally", "metric_sums", "running"]


def call_functionally(
    model: keras.Model, features: Any, *, training: bool, moving: Sequence[tf.Tensor] | None = None
) -> tuple[Any, list[tf.Tensor], list[tf.Tensor]]:
    """Call a model so that nothing of it changes; what would have changed comes out.

    `Model.stateless_call` does the same for the layer's `call` alone, without what `__call__` adds
    (`training` for models that do not declare it, casts); the scope is the public way to both.

    Args:
        model: Built.
        features: A batch.
        training: As in Keras.
        moving: Values to use for the non-trainable variables; None for their own.

    Returns:
        Outputs (in float32 where layers compute in less), the non-trainable variables' new values,
        and the layers' extra losses.
    """
    variables = model.non_trainable_variables
    values = [variable.value for variable in variables] if moving is None else moving
    mapping = [*zip(variables, values, strict=True)]
    mapping += [(variable, variable.value) for variable in model.trainable_variables]
    with keras.StatelessScope(state_mapping=mapping, collect_losses=True) as scope:
        outputs = model(features, training=training)
        losses = list(model.losses)
    outputs = tf.nest.map_structure(_at_least_float32, outputs)
    return outputs, [scope.get_current_value(variable) for variable in variables], losses


@contextlib.contextmanager
def running(doing: str, loaded: LoadedSpec, features: Any, labels: Any) -> Iterator[None]:
    """Turn what an op of the user's functions says of its inputs into a `UserCodeError`.

    Shapes of which only the batch is unknown when a function is traced may not fit when it runs.
    """
    try:
        yield
    except tf.errors.InvalidArgumentError:
        given = tf.nest.map_structure(tf.TensorSpec.from_tensor, (features, labels))
        with user_code(f"{doing} of {loaded.label} for {given}", root=loaded.zoo):
            raise


@dataclass(frozen=True)
class MetricSums:
    """A metric of a batch, as numbers that add up over batches of any size and over ranks."""

    sums: tf.Tensor
    """Shape (numbers,), float32."""
    metric: keras.metrics.Metric | None
    """Makes the value of them; None where the value is their mean over the examples."""

    @property
    def size(self) -> int:
        """How many numbers these are."""
        return int(self.sums.shape[0])

    def value(self, sums: np.ndarray, count: float) -> float:
        """The metric over all batches."""
        return float(sums[0] / count) if self.metric is None else value_of(self.metric, sums)


def metric_sums(
    loaded: LoadedSpec, mode: Mode, outputs: Any, labels: Any, count: tf.Tensor
) -> dict[str, MetricSums]:
    """The user's metrics as sums over a batch's examples.

    Args:
        loaded: The user's spec.
        mode: Handed to `create_metrics`.
        outputs: What the model returned.
        labels: The batch's labels.
        count: Number of examples, a float scalar.

    Raises:
        UserCodeError: `create_metrics` returned something other than a dict of scalars, of one
            value an example, or (not in training) of Keras metrics that add up.
    """
    available = {"mode": mode, "outputs": outputs, "labels": labels, "predictions": outputs}
    metrics = call_declared(loaded.spec.create_metrics, available) or {}
    name = f"create_metrics of {loaded.label}"
    if not isinstance(metrics, dict):
        raise UserCodeError(f"{name} must return a dict.", received=type(metrics).__name__)
    found = {}
    for key in sorted(metrics):
        value = metrics[key]
        if metric := as_keras_metric(value):
            value = Measured(metric, labels, outputs, f"{key} of {name}")
        if isinstance(value, Measured):
            _require_evaluation(value, mode)
            found[key] = MetricSums(value.counts(), value.metric)
        else:
            found[key] = MetricSums(_mean_sum(value, count, f"{key} of {name}"), None)
    return found


def _require_evaluation(measured: Measured, mode: Mode) -> None:
    if mode is Mode.TRAINING:
        raise UserCodeError(
            f"{measured.label} is a Keras metric, which needs a whole data set and is computed in"
            " evaluations only.",
            received=f"{type(measured.metric).__name__} in mode training",
            cure="Return it where mode is Mode.EVALUATION.",
        )


def _mean_sum(value: Any, count: tf.Tensor, label: str) -> tf.Tensor:
    value = tf.cast(tf.convert_to_tensor(value), tf.float32)
    if value.shape.rank not in (0, 1):
        raise UserCodeError(
            f"{label} must be a scalar, one value an example, or a Keras metric.",
            received=f"shape {value.shape}",
        )
    return tf.reshape(value * count if value.shape.rank == 0 else tf.reduce_sum(value), [1])


def _at_least_float32(value: Any) -> Any:
    is_short = value.dtype in (tf.float16, tf.bfloat16)
    return tf.cast(value, tf.float32) if is_short else value
