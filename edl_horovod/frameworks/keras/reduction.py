"""Reduce a step's sums over the ring in buckets, each as soon as it is ready (DESIGN D17)."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import horovod.tensorflow as hvd
import tensorflow as tf

from edl_horovod.frameworks.keras.collectives import sum_compressed, sum_grouped
from edl_horovod.frameworks.packing import NAME, Bucket, in_buckets
from edl_horovod.frameworks.step_options import Reduction

__all__ = ["Sum", "add_over_ring", "unique_rows", "with_values"]

Sum: TypeAlias = tf.Tensor | tf.IndexedSlices
"""A rank's sum for a variable; for an embedding only the rows that its examples use."""


def add_over_ring(
    gradients: Sequence[Sum], others: Sequence[tf.Tensor], reduction: Reduction
) -> list[Sum]:
    """Reduce this rank's sums over the ring.

    Args:
        gradients: Sums in the order of the variables, with the same kinds, shapes (except for the
            number of rows) and types on all ranks. They are sent in reverse order.
        others: Sums that are sent with the last bucket, with the same shapes and types on all
            ranks.
        reduction: The buckets and the compression.

    Returns:
        The totals of `gradients` and `others`, bit for bit the same on all ranks.
    """
    reduced: list[Sum] = [*others, *gradients]
    sparse = [i for i, value in enumerate(reduced) if isinstance(value, tf.IndexedSlices)]
    for index, total in zip(sparse, _reduce_sparse([reduced[i] for i in sparse]), strict=True):
        reduced[index] = total
    dense = [i for i in range(len(reduced)) if i not in sparse]
    is_compressed = [_is_compressed(reduced[i], i >= len(others), reduction) for i in dense]
    for compressed in (True, False):
        # `others` are sent with the last bucket of the uncompressed gradients.
        indices = [i for i, flag in zip(dense, is_compressed, strict=True) if flag == compressed]
        name = f"{NAME}.{reduction.compression}" if compressed else NAME
        for bucket in _assign_buckets([reduced[i] for i in indices], reduction.bucket_bytes, name):
            # A tag makes the inputs of each bucket unique: TensorFlow merges ops with equal inputs,
            # so it would send two buckets of equal zeros only once, unlike the other ranks.
            tag = tf.fill([1], tf.cast(bucket.places[0], reduced[indices[bucket.places[0]]].dtype))
            tensors = [tag, *(reduced[indices[i]] for i in bucket.places)]
            tag, *sums = (
                sum_compressed(tensors, bucket.name, reduction.compression, reduction.batch_size)
                if compressed
                else sum_grouped(tensors, bucket.name)
            )
            for i, total in zip(bucket.places, sums, strict=True):
                reduced[indices[i]] = total
    return [*reduced[len(others) :], *reduced[: len(others)]]


def _is_compressed(tensor: Sum, is_gradient: bool, reduction: Reduction) -> bool:
    return is_gradient and reduction.compression != "none" and tensor.dtype == tf.float32


def _reduce_sparse(sums: Sequence[tf.IndexedSlices]) -> list[tf.IndexedSlices]:
    """Reduce sparse sums: as rows if these are fewer bytes than the dense array, else densely.

    The number of rows is known before the backward pass, so summing it takes no extra time.
    """
    if not sums:
        return []
    counts = tf.stack([tf.shape(slices.indices, tf.int64)[0] for slices in sums])
    (totals,) = sum_grouped([counts], f"{NAME}.rows")
    reduced = []
    for number, (local, count) in enumerate(zip(sums, tf.unstack(totals), strict=True)):
        row_bytes = local.values.dtype.size * local.values.shape[1:].num_elements()
        sparse_bytes = count * (row_bytes + local.indices.dtype.size)
        dense_bytes = tf.cast(local.dense_shape[0], tf.int64) * row_bytes
        reduced.append(
            tf.cond(
                sparse_bytes < dense_bytes,
                lambda local=local, number=number: _gather_rows(local, number),
                lambda local=local, number=number: _sum_dense(local, number),
            )
        )
    return reduced


def _assign_buckets(tensors: Sequence[tf.Tensor], max_bytes: int, name: str) -> list[Bucket]:
    sizes = [tensor.shape.num_elements() * tensor.dtype.size for tensor in tensors]
    return in_buckets(sizes, [tensor.dtype for tensor in tensors], max_bytes, name)


def with_values(value: Sum, function: Callable[[tf.Tensor], tf.Tensor]) -> Sum:
    """Apply a function to the values of a dense or sparse sum."""
    if isinstance(value, tf.IndexedSlices):
        return tf.IndexedSlices(function(value.values), value.indices, value.dense_shape)
    return function(value)


def unique_rows(slices: tf.IndexedSlices) -> tf.IndexedSlices:
    """Sum the values of each row, so that every row occurs once."""
    indices, positions = tf.unique(slices.indices)
    values = tf.math.unsorted_segment_sum(slices.values, positions, tf.shape(indices)[0])
    return tf.IndexedSlices(values, indices, slices.dense_shape)


def _gather_rows(local: tf.IndexedSlices, number: int) -> tf.IndexedSlices:
    """Gather the rows of all ranks and add them in rank order."""
    values, indices = (
        hvd.allgather(value, name=f"{NAME}.rows.{number}.{part}", ignore_name_scope=True)
        for value, part in ((local.values, "values"), (local.indices, "indices"))
    )
    values.set_shape(local.values.shape)
    indices.set_shape(local.indices.shape)
    return unique_rows(tf.IndexedSlices(values, indices, local.dense_shape))


def _sum_dense(local: tf.IndexedSlices, number: int) -> tf.IndexedSlices:
    (values,) = sum_grouped([tf.convert_to_tensor(local)], f"{NAME}.rows.{number}")
    indices = tf.range(tf.cast(local.dense_shape[0], local.indices.dtype))
    return tf.IndexedSlices(values, indices, local.dense_shape)
