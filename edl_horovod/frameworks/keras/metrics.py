"""Keras metrics on a ring: their state is summed over batches and ranks, then yields the value.

The AUC or precision of a data set is not the mean over its batches. The state that Keras keeps for
such a metric is a sum over examples, so it can be computed in any batches on any rank and added up.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from edl_horovod.errors import UserCodeError

__all__ = [
    "MetricCall",
    "as_keras_metric",
    "as_tensors",
    "first_examples",
    "random_examples",
    "require_number",
    "require_sums",
    "result_of",
    "row_of",
    "value_of",
]

_TRIED_EXAMPLES = (3, 5)


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
        after = _after(self.metric, _zeros(self.metric), self.labels, self.outputs)
        return row_of(after)


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
    return metric.stateless_result(_as_state(metric, counts))


def value_of(metric: keras.metrics.Metric, counts: np.ndarray) -> float:
    """Compute a single-valued metric's result from `counts` as a float."""
    return float(result_of(metric, counts))


def require_sums(call: MetricCall) -> None:
    """Check with random examples that a metric's state adds up over batches.

    Raises:
        UserCodeError: It does not, or the metric rejects these examples or does not return one
            number.
    """
    metric, label = call.metric, call.label
    rng = np.random.default_rng(0)
    arguments = (call.labels, call.outputs)
    parts = [random_examples(arguments, number, rng) for number in _TRIED_EXAMPLES]
    joined = tf.nest.map_structure(lambda *arrays: np.concatenate(arrays), *parts)
    try:
        metric.update_state(*joined)  # Some create their variables here.
        metric.reset_state()
        is_empty = not any(np.any(np.asarray(variable)) for variable in metric.variables)
        value = metric.stateless_result(_after(metric, _zeros(metric), *joined))
        adds_up = is_empty and _adds_up(metric, parts, joined, rng)
    except (TypeError, ValueError, tf.errors.OpError) as e:
        shapes = [tf.nest.map_structure(lambda tensor: tensor.shape, value) for value in arguments]
        raise UserCodeError(
            f"{label} cannot be computed from labels of shape {shapes[0]} and outputs of shape"
            f" {shapes[1]}: {e}"
        ) from e
    if not adds_up:
        raise UserCodeError(
            f"{label} cannot be summed over a ring: the state of {type(metric).__name__} depends on"
            " the order or the size of the batches. Make update_state only add sums over the"
            " examples to variables that start at 0, and compute the value in result."
        )
    require_number(metric, value, label)


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
    empty = _zeros(metric)
    start = [tf.cast(rng.integers(1, 9, size=zero.shape), zero.dtype) for zero in empty]
    first, second = (_after(metric, empty, *part) for part in parts)
    state = _after(metric, empty, *joined)
    later_state = _after(metric, start, *joined)
    return all(
        np.allclose(a + b, total, rtol=1e-4, atol=1e-5)
        and np.allclose(base + total, later, rtol=1e-4, atol=1e-5)
        for a, b, total, base, later in zip(first, second, state, start, later_state, strict=True)
    )


def random_examples(like: Any, number: int, rng: Any) -> Any:
    """Generate examples like those of a batch: floats in [0, 1), integers 0 or 1, empty strings.

    An example with several integers has at least one that is not 0, because 0 may be masked.

    Args:
        like: Tensors or `tf.TypeSpec`s of a batch, in any structure.
        number: The number of examples.
        rng: A NumPy random generator.
    """

    def array(tensor: Any) -> Any:
        if isinstance(tensor, tf.RaggedTensor | tf.RaggedTensorSpec):
            dense = tf.constant(array(tf.TensorSpec(tensor.shape, tensor.dtype)))
            return tf.RaggedTensor.from_tensor(dense, ragged_rank=tensor.ragged_rank)
        if isinstance(tensor, tf.SparseTensor | tf.SparseTensorSpec):
            return tf.sparse.from_dense(array(tf.TensorSpec(tensor.shape, tensor.dtype)))
        example_shape = tensor.shape.as_list()[1:] if tensor.shape.rank else []
        shape = [number, *(size or 1 for size in example_shape)]
        if tensor.dtype == tf.string:
            return np.full(shape, b"")
        dtype = tensor.dtype.as_numpy_dtype
        if tensor.dtype.is_floating:
            return rng.random(shape).astype(dtype)
        integers = rng.integers(0, 2, (number, int(np.prod(shape[1:]))))
        if integers.shape[1] > 1:
            integers[:, 0] = 1
        return integers.reshape(shape).astype(dtype)

    return tf.nest.map_structure(array, like)


def first_examples(like: Any) -> Any:
    """Generate one random example like those of a batch, as tensors."""
    return as_tensors(random_examples(like, 1, np.random.default_rng(0)))


def as_tensors(values: Any) -> Any:
    """Convert the arrays in a structure to tensors and keep everything else."""
    return tf.nest.map_structure(
        lambda value: tf.constant(value) if isinstance(value, np.ndarray) else value, values
    )


def _after(metric: keras.metrics.Metric, state: Any, labels: Any, outputs: Any) -> list[Any]:
    return list(metric.stateless_update_state(state, labels, outputs))


def _zeros(metric: keras.metrics.Metric) -> list[tf.Tensor]:
    return [tf.zeros(variable.shape, variable.dtype) for variable in metric.variables]


def _as_state(metric: keras.metrics.Metric, counts: Any) -> list[tf.Tensor]:
    sizes = [int(np.prod(variable.shape)) for variable in metric.variables]
    pieces = tf.split(counts, sizes)
    return [
        tf.cast(tf.reshape(piece, variable.shape), variable.dtype)
        for piece, variable in zip(pieces, metric.variables, strict=True)
    ]
