"""Reduce variables that the forward pass assigns: statistics, counters, seeds."""

from typing import Any

import keras
import tensorflow as tf

__all__ = ["assign_from_sum", "salted", "sum_dtype", "to_sum"]


def salted(variable: keras.Variable, value: tf.Tensor, salt: tf.Tensor) -> tf.Tensor:
    """Add this rank's salt to the state of a seed generator; return other values unchanged."""
    if variable.value.dtype == tf.uint32 and value.shape == (2,):
        return value + tf.stack([salt, tf.constant(0, tf.uint32)])
    return value


def sum_dtype(value: tf.Variable | tf.Tensor) -> tf.DType:
    """Return the type in which a variable's value is summed."""
    return value.dtype if value.dtype.is_floating else tf.float32


def to_sum(before: tf.Tensor, after: Any, salted_value: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
    """Compute a rank's summand: the value times `count`, or the increment of an integer."""
    after = tf.convert_to_tensor(after)
    if before.dtype.is_floating:
        return after * tf.cast(count, after.dtype)
    return tf.cast(tf.cast(after, tf.int64) - tf.cast(salted_value, tf.int64), tf.float32)


def assign_from_sum(
    variable: tf.Variable, total: tf.Tensor, count: tf.Tensor, contributors: tf.Tensor
) -> None:
    """Set a variable to the weighted mean over the ring, or advance an integer by the mean."""
    if variable.dtype.is_floating:
        variable.assign(total / tf.cast(count, total.dtype))
    else:
        variable.assign_add(tf.cast(tf.round(total / contributors), variable.dtype))
