"""Call a user's Keras model without side effects, and compute its metrics as sums."""

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from edl_horovod.errors import UserCodeError
from edl_horovod.frameworks.keras.metrics import MetricCall, as_keras_metric, result_of
from edl_horovod.models.calling import call_declared, user_code
from edl_horovod.models.zoo import LoadedSpec
from edl_horovod.spec import Mode

__all__ = [
    "MetricSums",
    "at_least_float32",
    "metric_sums",
    "num_examples",
    "repeated",
    "running",
    "some_examples",
    "without_effects",
]


@contextlib.contextmanager
def without_effects(
    model: keras.Model,
    *,
    non_trainable: Sequence[tf.Tensor] | None = None,
    metrics: Iterable[keras.metrics.Metric] = (),
) -> Iterator[keras.StatelessScope]:
    """Keep the model's variables unchanged; the scope holds the values that they would get.

    `Model.stateless_call` only wraps the layer's `call`, without the additions of `__call__`
    (casts, `training` for models that do not declare it). The scope is the public API that covers
    both. It also collects the layers' extra losses, for `model.losses`.

    Args:
        model: The built model.
        non_trainable: Values to use for the non-trainable variables; None for their current values.
        metrics: Built metrics whose variables are 0 at the start of the scope.
    """
    variables = model.non_trainable_variables
    values = [variable.value for variable in variables] if non_trainable is None else non_trainable
    mapping = [*zip(variables, values, strict=True)]
    mapping += [(variable, variable.value) for variable in model.trainable_variables]
    metric_variables = [variable for metric in metrics for variable in metric.variables]
    mapping += [
        (variable, tf.zeros(variable.shape, variable.dtype)) for variable in metric_variables
    ]
    with keras.StatelessScope(state_mapping=mapping, collect_losses=True) as scope:
        yield scope


@contextlib.contextmanager
def running(doing: str, loaded: LoadedSpec, examples: tuple[Any, ...]) -> Iterator[None]:
    """Raise a `UserCodeError` for an op of the user's functions that rejects its inputs.

    Shapes with unknown sizes may be valid when a function is traced and fail when it runs.
    """
    try:
        yield
    except tf.errors.InvalidArgumentError:
        specs = tf.nest.map_structure(tf.type_spec_from_value, examples)
        with user_code(f"{doing} of {loaded.label} for {specs}", root=loaded.zoo):
            raise


@dataclass(frozen=True)
class MetricSums:
    """A metric of a batch as sums, which add up over batches of any size and over ranks."""

    name: str
    sums: tf.Tensor
    """Shape (numbers,), float32."""
    metric: keras.metrics.Metric | None = None
    """Computes the value from the sums; None if the value is their mean over the examples."""
    is_per_batch: bool = False
    """Whether the metric counts a batch once; `sums` is then weighted by its examples."""
    reported: frozenset[str] | None = None
    """Names of the values to report; None for all."""

    @property
    def size(self) -> int:
        """The number of sums."""
        return int(self.sums.shape[0])

    def counted(self, sums: Any, count: Any) -> Any:
        """Compute the metric's state from the sums over a ring and their number of examples."""
        return sums / count if self.is_per_batch else sums

    def values(self, counted: Any, count: Any) -> dict[str, tf.Tensor]:
        """Compute the scalar values by name from the metric's state after `count` examples."""
        if self.metric is None:
            return {self.name: counted[0] / count}
        result = result_of(self.metric, counted)
        named = result if isinstance(result, dict) else {self.name: result}
        return {
            k: value for k, value in named.items() if self.reported is None or k in self.reported
        }


def metric_sums(
    loaded: LoadedSpec, mode: Mode, outputs: Any, labels: Any, weights: Any, count: tf.Tensor
) -> list[MetricSums]:
    """Compute the spec's metrics as sums over a batch's examples.

    Args:
        loaded: The user's spec.
        mode: Passed to `create_metrics`.
        outputs: The model's outputs.
        labels: The batch's labels.
        weights: Example weights for metrics that take `sample_weight`; None for equal weights.
        count: Number of examples, a float scalar.

    Raises:
        UserCodeError: `create_metrics` returned something other than a dict of scalars, of one
            value an example, or (not in training) of Keras metrics that add up.
    """
    available = {"mode": mode, "outputs": outputs, "labels": labels, "predictions": outputs}
    available["sample_weight"] = weights
    metrics = call_declared(loaded.spec.create_metrics, available) or {}
    name = f"create_metrics of {loaded.label}"
    if not isinstance(metrics, dict):
        raise UserCodeError(f"{name} must return a dict.", received=type(metrics).__name__)
    sums = []
    for key in sorted(metrics):
        value = metrics[key]
        if metric := as_keras_metric(value):
            value = MetricCall(metric, labels, outputs, f"{key} of {name}")
        if isinstance(value, MetricCall):
            _require_evaluation(value, mode)
            sums.append(MetricSums(key, value.counts(), value.metric))
        else:
            sums.append(MetricSums(key, _mean_sum(value, count, f"{key} of {name}")))
    return sums


def num_examples(features: Any) -> tf.Tensor:
    """Compute the number of examples in a batch, an int32 scalar."""
    first = tf.nest.flatten(features)[0]
    if isinstance(first, tf.RaggedTensor):
        return tf.cast(first.nrows(), tf.int32)
    if isinstance(first, tf.SparseTensor):
        return tf.cast(first.dense_shape[0], tf.int32)
    return tf.shape(first)[0]


def some_examples(batch: Any, first: Any, last: Any) -> Any:
    """Slice a batch's examples from index `first` up to, but excluding, `last`."""

    def sliced(value: Any) -> Any:
        if not isinstance(value, tf.SparseTensor):
            return value[first:last]
        begin, end = tf.cast(first, tf.int64), tf.cast(last, tf.int64)
        rest = value.dense_shape[1:]
        size = tf.concat([[end - begin], rest], 0)
        return tf.sparse.slice(value, tf.concat([[begin], tf.zeros_like(rest)], 0), size)

    return tf.nest.map_structure(sliced, batch)


def repeated(batch: Any, times: int) -> Any:
    """Concatenate `times` copies of a batch."""

    def tiled(value: Any) -> Any:
        if isinstance(value, tf.SparseTensor):
            return tf.sparse.concat(0, [value] * times)
        return tf.concat([value] * times, 0)

    return tf.nest.map_structure(tiled, batch)


def at_least_float32(outputs: Any) -> Any:
    """Cast a model's outputs of less than 32 bits to float32."""
    return tf.nest.map_structure(_at_least_float32, outputs)


def _require_evaluation(call: MetricCall, mode: Mode) -> None:
    if mode is Mode.TRAINING:
        raise UserCodeError(
            f"{call.label} is a Keras metric, which needs a whole data set and is only computed"
            " in evaluations.",
            received=f"{type(call.metric).__name__} in mode training",
            hint="Return it where mode is Mode.EVALUATION.",
        )


def _mean_sum(value: Any, count: tf.Tensor, label: str) -> tf.Tensor:
    value = tf.cast(tf.convert_to_tensor(value), tf.float32)
    if value.shape.rank is None:
        raise UserCodeError(
            f"{label} must be a scalar, one value an example, or a Keras metric.",
            received=f"shape {value.shape}",
        )
    # Several values of an example, such as shape (examples, 1), count as their mean.
    value = tf.reduce_mean(value, list(range(1, value.shape.rank)))
    return tf.reshape(value * count if value.shape.rank == 0 else tf.reduce_sum(value), [1])


def _at_least_float32(value: Any) -> Any:
    is_short = value.dtype in (tf.float16, tf.bfloat16)
    return tf.cast(value, tf.float32) if is_short else value
