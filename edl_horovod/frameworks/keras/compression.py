"""Sum over the ring with 16-bit transfers and 32-bit additions."""

from collections.abc import Sequence

import horovod.tensorflow as hvd
import tensorflow as tf

__all__ = ["COMPRESSIONS", "sum_compressed"]

COMPRESSIONS = {"bf16": tf.bfloat16, "fp16": tf.float16}
_TRANSFER_TYPE = tf.uint16
"""Type of the transfers: Horovod does not support bfloat16, and it adds float16 in float16."""


def sum_compressed(
    tensors: Sequence[tf.Tensor], name: str, compression: str, batch_size: int
) -> list[tf.Tensor]:
    """Sum each tensor over the ring, packed into one array of 16-bit numbers.

    Each rank receives one chunk of the array from all ranks, adds the chunks in float32, and sends
    the sum to all ranks. This moves the same number of bytes as a ring allreduce of 16-bit numbers
    (reduce-scatter and allgather), but rounds each number only twice for any number of ranks.

    Args:
        tensors: float32, with the same shapes on all ranks.
        name: Matches the calls of the ranks.
        compression: `bf16` or `fp16`.
        batch_size: Divides the numbers while they are float16, whose maximum is 65,504; larger
            finite numbers are clipped to it.
    """
    short = COMPRESSIONS[compression]
    scale = batch_size if short == tf.float16 else 1
    sizes = [tensor.shape.num_elements() for tensor in tensors]
    flat = tf.concat([tf.reshape(tensor, [-1]) for tensor in tensors], 0)
    num_ranks = hvd.size_op()
    chunk_size, remainder = sum(sizes) // num_ranks, sum(sizes) % num_ranks
    chunks, _ = hvd.alltoall(
        _shorten(flat, short, scale),
        splits=chunk_size + tf.cast(tf.range(num_ranks) < remainder, tf.int32),
        name=f"{name}.parts",
        ignore_name_scope=True,
    )
    total = tf.reduce_sum(tf.reshape(_lengthen(chunks, short, 1), [num_ranks, -1]), 0)
    gathered = hvd.allgather(
        _shorten(total, short, 1), name=f"{name}.whole", ignore_name_scope=True
    )
    pieces = tf.split(_lengthen(gathered, short, scale), sizes)
    return [tf.reshape(piece, tensor.shape) for piece, tensor in zip(pieces, tensors, strict=True)]


def _shorten(values: tf.Tensor, short: tf.DType, scale: int) -> tf.Tensor:
    if scale != 1:
        values = values / scale
    if short == tf.float16:
        bounded = tf.clip_by_value(values, short.min, short.max)
        # Non-finite values must stay non-finite: loss scaling looks for them.
        values = tf.where(tf.math.is_finite(values), bounded, values)
    return tf.bitcast(tf.cast(values, short), _TRANSFER_TYPE)


def _lengthen(values: tf.Tensor, short: tf.DType, scale: int) -> tf.Tensor:
    values = tf.cast(tf.bitcast(values, short), tf.float32)
    return values * scale if scale != 1 else values
