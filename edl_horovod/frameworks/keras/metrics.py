"""Keras metrics on a ring: their state is summed over batches and ranks, then yields the value.

The AUC or precision of a data set is not the mean over its batches. The state that Keras keeps for
such a metric is a sum over examples, so it can be computed in any batches on any rank and added up.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from edl_horovod.errors import UserCodeError
from edl_horovod.models.calling import call_declared
from edl_horovod.models.zoo import LoadedSpec
from edl_horovod.spec import Mode

TRIED_EXAMPLES = (3, 5)
"""The numbers of examples in the two parts of a batch that must add up."""


@dataclass(frozen=True)
class MetricCall:
    """A Keras metric and the arguments of its update for one batch."""

    metric: keras.metrics.Metric
    labels: Any
    outputs: Any
    label: str
    """Name of the metric in messages."""

    def counts(self) -> tf.Tensor:
        """Compute the metric's state after this batch alone, as one row of float32.

        Raises:
            UserCodeError: The metric's state is not a sum over the examples.
        """
        with tf.init_scope():  # Eagerly, not in the graph that is being traced.
            require_sums(self)
        return row_of(_after(self.metric, zeros_of(self.metric), self.labels, self.outputs))


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


def split_sums(metrics: Sequence[MetricSums], row: Any) -> Iterator[tuple[MetricSums, Any]]:
    """Yield each metric with its part of a row, such as the sums or the states of all metrics."""
    start = 0
    for metric in metrics:
        stop = start + metric.size
        yield metric, row[start:stop]
        start = stop


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
    name = f"create_metrics of {loaded.label}"
    sums = []
    for key, value in sorted(_created(loaded, mode, outputs, labels, weights).items()):
        if metric := as_keras_metric(value):
            value = MetricCall(metric, labels, outputs, f"{key} of {name}")
        if isinstance(value, MetricCall):
            if mode is Mode.TRAINING:
                raise UserCodeError(
                    f"{value.label} is a Keras metric, which needs a whole data set and is only"
                    " computed in evaluations.",
                    received=f"{type(value.metric).__name__} in mode training",
                    hint="Return it where mode is Mode.EVALUATION.",
                )
            sums.append(MetricSums(key, value.counts(), value.metric))
        else:
            sums.append(MetricSums(key, _mean_sum(value, count, f"{key} of {name}")))
    return sums


def metric_totals(
    loaded: LoadedSpec, mode: Mode, outputs: Any, labels: Any, weights: Any, count: int
) -> dict[str, float]:
    """Compute the sums of the spec's metrics by name, without Keras metrics; see `metric_sums`.

    Raises:
        UserCodeError: A metric is not a scalar, one value an example, or a Keras metric.
    """
    totals: dict[str, float] = {}
    for key, value in _created(loaded, mode, outputs, labels, weights).items():
        if isinstance(value, MetricCall) or as_keras_metric(value) is not None:
            continue
        label = f"{key} of create_metrics of {loaded.label}"
        shape = tuple(np.shape(value))
        if shape and shape[0] != count:
            raise _not_a_mean(label, shape)
        totals[key] = float(_mean_sum(value, tf.constant(float(count)), label)[0])
    return totals


def _created(
    loaded: LoadedSpec, mode: Mode, outputs: Any, labels: Any, weights: Any
) -> dict[str, Any]:
    available = {"mode": mode, "outputs": outputs, "labels": labels, "predictions": outputs}
    available["sample_weight"] = weights
    metrics = call_declared(loaded.spec.create_metrics, available) or {}
    return require_dict(metrics, f"create_metrics of {loaded.label}")


def as_keras_metric(metric: Any) -> keras.metrics.Metric | None:
    """Return a Keras metric, instantiated if it is a class; None for anything else."""
    if isinstance(metric, type) and issubclass(metric, keras.metrics.Metric):
        metric = metric()
    return metric if isinstance(metric, keras.metrics.Metric) else None


def row_of(values: Sequence[Any]) -> tf.Tensor:
    """Concatenate the values of a metric's variables into one row of float32."""
    return tf.concat([tf.reshape(tf.cast(value, tf.float32), [-1]) for value in values], 0)


def result_of(metric: keras.metrics.Metric, counts: Any) -> Any:
    """Compute a metric's result from `counts`, the sum of the state rows of all batches.

    Returns a scalar tensor, or a dict of scalar tensors by name.
    """
    sizes = [int(np.prod(variable.shape)) for variable in metric.variables]
    state = [
        tf.cast(tf.reshape(piece, variable.shape), variable.dtype)
        for piece, variable in zip(tf.split(counts, sizes), metric.variables, strict=True)
    ]
    return metric.stateless_result(state)


def require_sums(call: MetricCall) -> None:
    """Check with random examples that a metric's state adds up over batches.

    Raises:
        UserCodeError: It does not, or the metric rejects these examples or does not return one
            number.
    """
    metric, label = call.metric, call.label
    rng = np.random.default_rng(0)
    arguments = (call.labels, call.outputs)
    parts = [random_examples(arguments, number, rng) for number in TRIED_EXAMPLES]
    joined = tf.nest.map_structure(lambda *tensors: tf.concat(tensors, 0), *parts)
    try:
        metric.update_state(*joined)  # Some create their variables here.
        metric.reset_state()
        is_empty = not any(np.any(np.asarray(variable)) for variable in metric.variables)
        value = metric.stateless_result(_after(metric, zeros_of(metric), *joined))
        adds_up = is_empty and _adds_up(metric, parts, joined, rng)
    except (TypeError, ValueError, tf.errors.OpError) as e:
        shapes = [tf.nest.map_structure(lambda tensor: tensor.shape, value) for value in arguments]
        raise UserCodeError(
            f"{label} cannot be computed from labels of shape {shapes[0]} and outputs of shape"
            f" {shapes[1]}: {e}"
        ) from e
    if not adds_up:
        raise not_a_sum(metric, label)
    require_number(metric, value, label)


def not_a_sum(metric: keras.metrics.Metric, label: str) -> UserCodeError:
    """Build the error for a metric whose state does not add up over batches."""
    return UserCodeError(
        f"{label} cannot be summed over a ring: the state of {type(metric).__name__} depends on"
        " the order or the size of the batches. Make update_state only add sums over the"
        " examples to variables that start at 0, and compute the value in result."
    )


def is_sum(first: Any, second: Any, whole: Any) -> bool:
    """Whether the values of two parts add up to that of the whole, up to rounding."""
    return np.allclose(first + second, whole, rtol=1e-4, atol=1e-5)


def require_dict(value: Any, label: str, hint: str = "") -> dict[str, Any]:
    """Return a value that must be a dict.

    Raises:
        UserCodeError: It is not.
    """
    if isinstance(value, dict):
        return value
    raise UserCodeError(f"{label} must return a dict.", received=type(value).__name__, hint=hint)


def require_number(metric: keras.metrics.Metric, value: Any, label: str) -> None:
    """Reject a metric whose result is not one number.

    Raises:
        UserCodeError: The result is a dict or an array.
    """
    if isinstance(value, dict) or np.ndim(value):
        raise UserCodeError(
            f"{label} must return one number.",
            received=(
                f"{type(metric).__name__} with a result of"
                f" {'a dict' if isinstance(value, dict) else f'shape {np.shape(value)}'}"
            ),
            hint=(
                "Average it over the classes (average='macro'), or return one metric for each"
                " class."
            ),
        )


def _adds_up(metric: keras.metrics.Metric, parts: list[Any], joined: Any, rng: Any) -> bool:
    """Whether the state is independent of batch order, batch size and the previous state."""
    empty = zeros_of(metric)
    start = [tf.cast(rng.integers(1, 9, size=zero.shape), zero.dtype) for zero in empty]
    first, second, whole = (row_of(_after(metric, empty, *part)) for part in (*parts, joined))
    later = row_of(_after(metric, start, *joined))
    return is_sum(first, second, whole) and is_sum(row_of(start), whole, later)


def random_examples(like: Any, number: int, rng: Any) -> Any:
    """Generate examples like those of a batch: floats in [0, 1), integers 0 or 1, empty strings.

    An example with several integers has at least one that is not 0, because 0 may be masked.

    Args:
        like: Tensors or `tf.TypeSpec`s of a batch, in any structure.
        number: The number of examples.
        rng: A NumPy random generator.
    """

    def example(tensor: Any) -> Any:
        if isinstance(tensor, tf.RaggedTensor | tf.RaggedTensorSpec):
            dense = example(tf.TensorSpec(tensor.shape, tensor.dtype))
            return tf.RaggedTensor.from_tensor(dense, ragged_rank=tensor.ragged_rank)
        if isinstance(tensor, tf.SparseTensor | tf.SparseTensorSpec):
            return tf.sparse.from_dense(example(tf.TensorSpec(tensor.shape, tensor.dtype)))
        example_shape = tensor.shape.as_list()[1:] if tensor.shape.rank else []
        shape = [number, *(size or 1 for size in example_shape)]
        if tensor.dtype == tf.string:
            return tf.fill(shape, "")
        if tensor.dtype.is_floating:
            return tf.constant(rng.random(shape).astype(tensor.dtype.as_numpy_dtype))
        integers = rng.integers(0, 2, (number, int(np.prod(shape[1:]))))
        if integers.shape[1] > 1:
            integers[:, 0] = 1
        return tf.cast(integers.reshape(shape), tensor.dtype)

    return tf.nest.map_structure(example, like)


def zeros_of(metric: keras.metrics.Metric) -> list[tf.Tensor]:
    """Build a metric's state before the first example."""
    return [tf.zeros(variable.shape, variable.dtype) for variable in metric.variables]


def _after(metric: keras.metrics.Metric, state: Any, labels: Any, outputs: Any) -> list[Any]:
    return list(metric.stateless_update_state(state, labels, outputs))


def _mean_sum(value: Any, count: tf.Tensor, label: str) -> tf.Tensor:
    value = tf.cast(tf.convert_to_tensor(value), tf.float32)
    if value.shape.rank is None:
        raise _not_a_mean(label, value.shape)
    # Several values of an example, such as shape (examples, 1), count as their mean.
    value = tf.reduce_mean(value, list(range(1, value.shape.rank)))
    return tf.reshape(value * count if value.shape.rank == 0 else tf.reduce_sum(value), [1])


def _not_a_mean(label: str, shape: Any) -> UserCodeError:
    return UserCodeError(
        f"{label} must be a scalar, one value an example, or a Keras metric.",
        received=f"shape {shape}",
    )
