"""Sums over the ring that travel in 16 bits and are made in 32."""

from collections.abc import Sequence

import horovod.tensorflow as hvd
import tensorflow as tf

__all__ = ["COMPRESSIONS", "sum_compressed"]

COMPRESSIONS = {"bf16": tf.bfloat16, "fp16": tf.float16}
TRAVELS_AS = tf.uint16
"""Horovod moves it as it is; it knows no bfloat16, and adds float16 in float16."""


def sum_compressed(
    tensors: Sequence[tf.Tensor], name: str, compression: str, batch_size: int
) -> list[tf.Tensor]:
    """Sum each tensor over the ring, all of them as one array of 16 bits a number.

    Each rank gets one part of the array from all ranks, adds these in float32, and gives the sum to
    all: as many bytes as a ring allreduce of the short numbers (its reduce-scatter and allgather),
    but each number is rounded twice on its way, however many ranks there are.

    Args:
        tensors: float32, of the same shapes on all ranks.
        name: Pairs the calls of the ranks.
        compression: `bf16` or `fp16`.
        batch_size: What numbers are divided by on their way as float16. That ends at 65,504;
            numbers beyond that become the largest one.
    """
    short = COMPRESSIONS[compression]
    scale = batch_size if short == tf.float16 else 1
    sizes = [tensor.shape.num_elements() for tensor in tensors]
    flat = tf.concat([tf.reshape(tensor, [-1]) for tensor in tensors], 0)
    num_ranks = hvd.size_op()
    base, more = sum(sizes) // num_ranks, sum(sizes) % num_ranks
    parts, _ = hvd.alltoall(
        _shorten(flat, short, scale),
        splits=base + tf.cast(tf.range(num_ranks) < more, tf.int32),
        name=f"{name}.parts",
        ignore_name_scope=True,
    )
    total = tf.reduce_sum(tf.reshape(_lengthen(parts, short, 1), [num_ranks, -1]), 0)
    whole = hvd.allgather(_shorten(total, short, 1), name=f"{name}.whole", ignore_name_scope=True)
    pieces = tf.split(_lengthen(whole, short, scale), sizes)
    return [tf.reshape(piece, tensor.shape) for piece, tensor in zip(pieces, tensors, strict=True)]


def _shorten(values: tf.Tensor, short: tf.DType, scale: int) -> tf.Tensor:
    if scale != 1:
        values = values / scale
    if short == tf.float16:
        bounded = tf.clip_by_value(values, short.min, short.max)
        # What is not finite must stay so: the loss scaling looks for it.
        values = tf.where(tf.math.is_finite(values), bounded, values)
    return tf.bitcast(tf.cast(values, short), TRAVELS_AS)


def _lengthen(values: tf.Tensor, short: tf.DType, scale: int) -> tf.Tensor:
    values = tf.cast(tf.bitcast(values, short), tf.float32)
    return values * scale if scale != 1 else values
