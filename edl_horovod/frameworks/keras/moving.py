"""Variables that the forward pass changes, as sums over a ring: statistics, counters, seeds."""

from typing import Any

import keras
import tensorflow as tf

__all__ = ["as_sum", "move", "salted", "sum_dtype"]


def salted(variable: keras.Variable, value: tf.Tensor, salt: tf.Tensor) -> tf.Tensor:
    """A seed generator's state, set apart for this rank; anything else as it is."""
    if variable.value.dtype == tf.uint32 and value.shape == (2,):
        return value + tf.stack([salt, tf.constant(0, tf.uint32)])
    return value


def sum_dtype(value: tf.Variable | tf.Tensor) -> tf.DType:
    """Type of a moving variable's sum."""
    return value.dtype if value.dtype.is_floating else tf.float32


def as_sum(before: tf.Tensor, after: Any, fed: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
    """What a rank adds to a moving variable's sum: weighted value, or how far a counter went."""
    after = tf.convert_to_tensor(after)
    if before.dtype.is_floating:
        return after * tf.cast(count, after.dtype)
    return tf.cast(tf.cast(after, tf.int64) - tf.cast(fed, tf.int64), tf.float32)


def move(
    variable: tf.Variable, total: tf.Tensor, count: tf.Tensor, contributors: tf.Tensor
) -> None:
    """Give a moving variable what its sum over the ring says."""
    if variable.dtype.is_floating:
        variable.assign(total / tf.cast(count, total.dtype))
    else:
        variable.assign_add(tf.cast(tf.round(total / contributors), variable.dtype))
