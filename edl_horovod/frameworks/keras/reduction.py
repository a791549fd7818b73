"""Adds a step's sums over the ring in buckets, each as soon as it is made (DESIGN D17)."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import horovod.tensorflow as hvd
import tensorflow as tf

from edl_horovod.frameworks.buckets import NAME, Bucket, Reduction, in_buckets
from edl_horovod.frameworks.keras.collectives import sum_grouped
from edl_horovod.frameworks.keras.compression import sum_compressed

__all__ = ["Sum", "add_over_ring", "unique_rows", "with_values"]

Sum: TypeAlias = tf.Tensor | tf.IndexedSlices
"""What a rank adds for a variable; of an embedding only the rows that its examples have."""


def add_over_ring(
    gradients: Sequence[Sum], others: Sequence[tf.Tensor], how: Reduction
) -> list[Sum]:
    """Add this rank's sums to those of the other ranks.

    Args:
        gradients: Of the same kinds, shapes (but for rows) and types on all ranks, in the order
            of the variables. They go out last one first.
        others: What goes with the last of them; of the same shapes and types on all ranks.
        how: In which buckets, and as what.

    Returns:
        The totals of `gradients` and `others`, the same bits on all ranks.
    """
    reduced: list[Sum] = [*others, *gradients]
    rows = [i for i, each in enumerate(reduced) if isinstance(each, tf.IndexedSlices)]
    for place, total in zip(rows, _add_rows([reduced[i] for i in rows]), strict=True):
        reduced[place] = total
    dense = [i for i in range(len(reduced)) if i not in rows]
    is_short = [_is_compressed(reduced[i], i >= len(others), how) for i in dense]
    for kind in (True, False):
        # With the last bucket of those that are not compressed the others go.
        places = [i for i, is_one in zip(dense, is_short, strict=True) if is_one == kind]
        name = f"{NAME}.{how.compression}" if kind else NAME
        for bucket in _dealt_out([reduced[i] for i in places], how.bucket_bytes, name):
            # TensorFlow takes ops with the same inputs for one, and so might send one bucket of
            # two that hold zeros of the same shapes, which another rank has gradients for.
            tag = tf.fill([1], tf.cast(bucket.places[0], reduced[places[bucket.places[0]]].dtype))
            tensors = [tag, *(reduced[places[i]] for i in bucket.places)]
            tag, *sums = (
                sum_compressed(tensors, bucket.name, how.compression, how.batch_size)
                if kind
                else sum_grouped(tensors, bucket.name)
            )
            for i, total in zip(bucket.places, sums, strict=True):
                reduced[places[i]] = total
    return [*reduced[len(others) :], *reduced[: len(others)]]


def _is_compressed(tensor: Sum, is_gradient: bool, how: Reduction) -> bool:
    return is_gradient and how.compression != "none" and tensor.dtype == tf.float32


def _add_rows(sums: Sequence[tf.IndexedSlices]) -> list[tf.IndexedSlices]:
    """Add sums of some rows each: as rows where these are fewer bytes than the whole arrays.

    How many rows there are is known before the backward pass, so asking for it costs no time.
    """
    if not sums:
        return []
    counts = tf.stack([tf.shape(each.indices, tf.int64)[0] for each in sums])
    (totals,) = sum_grouped([counts], f"{NAME}.rows")
    found = []
    for number, (mine, count) in enumerate(zip(sums, tf.unstack(totals), strict=True)):
        width = mine.values.dtype.size * mine.values.shape[1:].num_elements()
        as_rows = count * (width + mine.indices.dtype.size)
        whole = tf.cast(mine.dense_shape[0], tf.int64) * width
        found.append(
            tf.cond(
                as_rows < whole,
                lambda mine=mine, number=number: _gather_rows(mine, number),
                lambda mine=mine, number=number: _sum_whole(mine, number),
            )
        )
    return found


def _dealt_out(tensors: Sequence[tf.Tensor], most_bytes: int, name: str) -> list[Bucket]:
    sizes = [tensor.shape.num_elements() * tensor.dtype.size for tensor in tensors]
    return in_buckets(sizes, [tensor.dtype for tensor in tensors], most_bytes, name)


def with_values(value: Sum, function: Callable[[tf.Tensor], tf.Tensor]) -> Sum:
    """Apply a function to an array, or to the rows of it that are there."""
    if isinstance(value, tf.IndexedSlices):
        return tf.IndexedSlices(function(value.values), value.indices, value.dense_shape)
    return function(value)


def unique_rows(slices: tf.IndexedSlices) -> tf.IndexedSlices:
    """Add what there is of each row, so that each is there once."""
    indices, places = tf.unique(slices.indices)
    values = tf.math.unsorted_segment_sum(slices.values, places, tf.shape(indices)[0])
    return tf.IndexedSlices(values, indices, slices.dense_shape)


def _gather_rows(mine: tf.IndexedSlices, number: int) -> tf.IndexedSlices:
    """Every rank gets the rows of all and adds them in the order of the ranks."""
    values, indices = (
        hvd.allgather(value, name=f"{NAME}.rows.{number}.{what}", ignore_name_scope=True)
        for value, what in ((mine.values, "values"), (mine.indices, "indices"))
    )
    values.set_shape(mine.values.shape)
    indices.set_shape(mine.indices.shape)
    return unique_rows(tf.IndexedSlices(values, indices, mine.dense_shape))


def _sum_whole(mine: tf.IndexedSlices, number: int) -> tf.IndexedSlices:
    (values,) = sum_grouped([tf.convert_to_tensor(mine)], f"{NAME}.rows.{number}")
    indices = tf.range(tf.cast(mine.dense_shape[0], mine.indices.dtype))
    return tf.IndexedSlices(values, indices, mine.dense_shape)
