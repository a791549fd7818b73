"""Keras metrics on a ring: what they count is added over batches and ranks, then makes the value.

AUC or precision of a whole data set is not a mean of those of its batches. What Keras counts for
them is a sum, so it may be counted anywhere, in any batches, and be added up.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from edl_horovod.errors import UserCodeError

__all__ = [
    "Measured",
    "as_keras_metric",
    "as_tensors",
    "first_examples",
    "made_up",
    "require_number",
    "require_sums",
    "result_of",
    "row_of",
    "value_of",
]

_TRIED_EXAMPLES = (3, 5)


@dataclass(frozen=True)
class Measured:
    """A Keras metric, and what it is told of a batch."""

    metric: keras.metrics.Metric
    labels: Any
    outputs: Any
    label: str
    """Names the metric in messages."""

    def counts(self) -> tf.Tensor:
        """What the metric counts in this batch alone, as one row of float32.

        Raises:
            UserCodeError: What it keeps is not a sum over the examples.
        """
        with tf.init_scope():  # Made and tried once, not in each traced batch.
            require_sums(self)
        after = _after(self.metric, _zeros(self.metric), self.labels, self.outputs)
        return row_of(after)


def as_keras_metric(metric: Any) -> keras.metrics.Metric | None:
    """A Keras metric, also one that was given as its class; None for anything else."""
    if isinstance(metric, type) and issubclass(metric, keras.metrics.Metric):
        metric = metric()
    return metric if isinstance(metric, keras.metrics.Metric) else None


def row_of(values: Sequence[Any]) -> tf.Tensor:
    """The values of a metric's variables as one row of float32."""
    return tf.concat([tf.reshape(tf.cast(value, tf.float32), [-1]) for value in values], 0)


def result_of(metric: keras.metrics.Metric, counts: Any) -> Any:
    """What a metric gives that has counted `counts`, the sum of all batches' rows.

    A scalar tensor, or a dict of them by name.
    """
    return metric.stateless_result(_as_state(metric, counts))


def value_of(metric: keras.metrics.Metric, counts: np.ndarray) -> float:
    """The value of a metric that has counted `counts`, where it is one number."""
    return float(result_of(metric, counts))


def require_sums(measured: Measured) -> None:
    """Try with made-up examples whether what a metric keeps may be added up.

    Raises:
        UserCodeError: It may not, or the metric does not fit these examples, or gives no number.
    """
    metric, label = measured.metric, measured.label
    rng = np.random.default_rng(0)
    given = (measured.labels, measured.outputs)
    parts = [made_up(given, number, rng) for number in _TRIED_EXAMPLES]
    whole = tf.nest.map_structure(lambda *some: np.concatenate(some), *parts)
    try:
        metric.update_state(*whole)  # Some make their variables only now.
        metric.reset_state()
        is_empty = not any(np.any(np.asarray(variable)) for variable in metric.variables)
        value = metric.stateless_result(_after(metric, _zeros(metric), *whole))
        adds_up = is_empty and _adds_up(metric, parts, whole, rng)
    except (TypeError, ValueError, tf.errors.OpError) as e:
        shapes = [tf.nest.map_structure(lambda tensor: tensor.shape, value) for value in given]
        raise UserCodeError(
            f"{label} cannot be computed from labels of shape {shapes[0]} and outputs of shape"
            f" {shapes[1]}: {e}"
        ) from e
    if not adds_up:
        raise UserCodeError(
            f"{label} cannot be added up over a ring: what {type(metric).__name__} keeps depends on"
            " the order or the size of the batches. Let its update_state only add sums over the"
            " examples to variables that begin at 0, and its result put them together."
        )
    require_number(metric, value, label)


def require_number(metric: keras.metrics.Metric, value: Any, label: str) -> None:
    """Refuse a metric whose result is not one number.

    Raises:
        UserCodeError: It is a dict or an array.
    """
    if isinstance(value, dict) or np.ndim(value):
        raise UserCodeError(
            f"{label} must give one number.",
            received=(
                f"{type(metric).__name__} with a result of"
                f" {'a dict' if isinstance(value, dict) else f'shape {np.shape(value)}'}"
            ),
            cure=(
                "Have it take a mean over the classes (average='macro'), or return a metric for"
                " each."
            ),
        )


def _adds_up(metric: keras.metrics.Metric, parts: list[Any], whole: Any, rng: Any) -> bool:
    """Whether the order and the size of batches, and what was counted before, do not matter."""
    empty = _zeros(metric)
    some = [tf.cast(rng.integers(1, 9, size=zero.shape), zero.dtype) for zero in empty]
    first, second = (_after(metric, empty, *part) for part in parts)
    together = _after(metric, empty, *whole)
    later = _after(metric, some, *whole)
    return all(
        np.allclose(a + b, total, rtol=1e-4, atol=1e-5)
        and np.allclose(base + total, after, rtol=1e-4, atol=1e-5)
        for a, b, total, base, after in zip(first, second, together, some, later, strict=True)
    )


def made_up(like: Any, number: int, rng: Any) -> Any:
    """So many examples like those of a batch: numbers between 0 and 1, class 0 or 1, no text.

    Of the integers of an example one at least is not 0, as 0 may be masked.

    Args:
        like: Tensors or `tf.TensorSpec`s, in any structure.
        number: How many.
        rng: Makes the numbers.
    """

    def array(tensor: Any) -> Any:
        if isinstance(tensor, tf.RaggedTensor | tf.RaggedTensorSpec):
            dense = tf.constant(array(tf.TensorSpec(tensor.shape, tensor.dtype)))
            return tf.RaggedTensor.from_tensor(dense, ragged_rank=tensor.ragged_rank)
        if isinstance(tensor, tf.SparseTensor | tf.SparseTensorSpec):
            return tf.sparse.from_dense(array(tf.TensorSpec(tensor.shape, tensor.dtype)))
        rest = tensor.shape.as_list()[1:] if tensor.shape.rank else []
        shape = [number, *(size or 1 for size in rest)]
        if tensor.dtype == tf.string:
            return np.full(shape, b"")
        kind = tensor.dtype.as_numpy_dtype
        if tensor.dtype.is_floating:
            return rng.random(shape).astype(kind)
        integers = rng.integers(0, 2, (number, int(np.prod(shape[1:]))))
        if integers.shape[1] > 1:
            integers[:, 0] = 1
        return integers.reshape(shape).astype(kind)

    return tf.nest.map_structure(array, like)


def first_examples(like: Any) -> Any:
    """One example like those of a batch, as tensors."""
    return as_tensors(made_up(like, 1, np.random.default_rng(0)))


def as_tensors(made: Any) -> Any:
    """Arrays as tensors; what is no array as it is."""
    return tf.nest.map_structure(
        lambda value: tf.constant(value) if isinstance(value, np.ndarray) else value, made
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
