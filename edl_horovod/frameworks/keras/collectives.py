"""Horovod's collectives on plain TensorFlow tensors.

The rest of Horovod's TensorFlow package (DistributedOptimizer, its states, its tape) does not work
with Keras 3.
"""

from collections.abc import Sequence
from typing import Any

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf
from horovod.tensorflow import mpi_ops
from numpy.typing import NDArray

from edl_horovod.config.schema import Compression
from edl_horovod.frameworks.horovod import Horovod
from edl_horovod.frameworks.packing import PackedBroadcasts
from edl_horovod.frameworks.values import Array, Rows, Variable, checksum

__all__ = ["HOROVOD", "KerasCollectives", "catch_failures", "sum_compressed", "sum_grouped"]

HOROVOD = Horovod(hvd, op_errors=(tf.errors.OpError,))
catch_failures = HOROVOD.catch_failures

_IN_PLACE_TYPES = {tf.uint8, tf.int8, tf.int32, tf.int64, tf.float16, tf.float32, tf.float64}
"""Types that Horovod's in-place broadcast supports."""

_COMPRESSED_TYPES: dict[Compression, tf.DType] = {"bf16": tf.bfloat16, "fp16": tf.float16}
_TRANSFER_TYPE = tf.uint16
"""Type of the transfers: Horovod does not support bfloat16, and it adds float16 in float16."""


class KerasCollectives(PackedBroadcasts):
    """The collectives of a ring. They run eagerly, so none is traced for one ring size."""

    def sum(self, values: NDArray[Any], name: str) -> NDArray[Any]:
        """Add the ranks' arrays, which have the same shape and type."""
        with catch_failures():
            (total,) = sum_grouped([tf.convert_to_tensor(values)], name)
        return np.asarray(total.numpy())

    def gather_rows(self, row: Sequence[int], name: str) -> NDArray[np.int64]:
        """Gather one row of integers from each rank; shape (size, len(row)), in rank order."""
        with catch_failures():
            gathered = hvd.allgather(tf.constant([row], tf.int64), name=name)
        return np.asarray(gathered.numpy())

    def exchange(self, rows: NDArray[np.uint8], name: str) -> NDArray[np.uint8]:
        """Send a row of bytes to each rank, and return those received, both in rank order."""
        with catch_failures():
            received = hvd.alltoall(tf.constant(rows), name=name)
        return np.asarray(received.numpy())

    def blank_like(self, variables: Sequence[Variable]) -> list[Variable]:
        """New variables of the same shapes and types."""
        return [
            tf.Variable(tf.zeros(variable.shape, variable.dtype))
            if isinstance(variable, tf.Variable)
            else Array(np.zeros_like(variable.numpy()))
            for variable in variables
        ]

    def checksum(self, variable: Variable) -> int:
        """Compute a checksum that is equal for variables with the same bits."""
        # `numpy()` of a TensorFlow variable would copy; a memoryview does not.
        return checksum(np.frombuffer(memoryview(self._bytes_of(Rows(variable))), np.uint8))

    def _can_be_in_place(self, variable: Variable) -> bool:
        return isinstance(variable, tf.Variable) and variable.dtype in _IN_PLACE_TYPES

    def _broadcast_in_place(self, variables: Sequence[Any], root: int, name: str) -> None:
        # All in one call, so that the ranks negotiate once and the network is never idle.
        # `hvd.broadcast_` would match the ranks by the variables' names, which depend on what the
        # process has built before.
        with catch_failures():
            mpi_ops.MPI_LIB.horovod_broadcast_inplace_resource(
                [variable.handle for variable in variables],
                variable_names=[f"{name}.{index}" for index in range(len(variables))],
                name=name,
                root_rank=root,
                process_set_id=hvd.global_process_set.process_set_id,
            )

    def _broadcast_bytes(
        self, parts: Sequence[tf.Tensor], root: int, name: str
    ) -> Sequence[tf.Tensor] | None:
        packed = tf.concat(parts, 0)
        with catch_failures():
            packed = hvd.broadcast(packed, root_rank=root, name=name)
        sizes = [part.shape[0] for part in parts]
        return None if hvd.rank() == root else list(tf.split(packed, sizes))

    def _bytes_of(self, rows: Rows) -> tf.Tensor:
        variable = rows.variable
        if isinstance(variable, tf.Variable):
            _disable_copy_on_read(variable)
            value = tf.convert_to_tensor(variable)  # While it lives, an assignment copies it all.
        else:
            value = tf.convert_to_tensor(variable.numpy())
        value = value if rows.last is None else value[rows.first : rows.last]
        is_bool = value.dtype == tf.bool
        value = tf.cast(value, tf.uint8) if is_bool else tf.bitcast(value, tf.uint8)
        return tf.reshape(value, [-1])

    def _write(self, rows: Rows, flat: tf.Tensor) -> None:
        variable = rows.variable
        dtype = tf.as_dtype(variable.dtype.name)
        if dtype == tf.bool:
            value = tf.reshape(tf.cast(flat, dtype), rows.shape)
        else:
            # To a type of several bytes, bitcast takes these as the last axis.
            item_shape = [dtype.size] if dtype.size > 1 else []
            value = tf.bitcast(tf.reshape(flat, [*rows.shape, *item_shape]), dtype)
        if rows.last is None:  # The whole variable.
            variable.assign(value if isinstance(variable, tf.Variable) else value.numpy())
        elif isinstance(variable, tf.Variable):
            tf.raw_ops.ResourceStridedSliceAssign(
                ref=variable.handle, begin=[rows.first], end=[rows.last], strides=[1], value=value
            )
            _disable_copy_on_read(variable)
        else:
            array = variable.numpy().copy()
            array[rows.first : rows.last] = value.numpy()
            variable.assign(array)


def sum_grouped(tensors: Sequence[tf.Tensor], name: str) -> list[tf.Tensor]:
    """Sum each tensor over the ring, all in one collective.

    Args:
        tensors: Same shapes and types on all ranks.
        name: Matches the calls of the ranks, so ranks that run different functions for one
            collective use the same name in them.
    """
    return list(hvd.grouped_allreduce(list(tensors), op=hvd.Sum, name=name, ignore_name_scope=True))


def sum_compressed(
    tensors: Sequence[tf.Tensor], name: str, compression: Compression, batch_size: int
) -> list[tf.Tensor]:
    """Sum each tensor over the ring, packed into one array of 16-bit numbers.

    Each rank receives one chunk of the array from all ranks, adds the chunks in float32, and sends
    the sum to all ranks. This moves the same number of bytes as a ring allreduce of 16-bit numbers
    (reduce-scatter and allgather), but rounds each number only twice for any number of ranks.

    Args:
        tensors: float32, with the same shapes on all ranks.
        name: Matches the calls of the ranks.
        compression: Any choice but `none`.
        batch_size: Divides the numbers while they are float16, whose maximum is 65,504; larger
            finite numbers are clipped to it.
    """
    short = _COMPRESSED_TYPES[compression]
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


def _disable_copy_on_read(variable: tf.Variable) -> None:
    # Assigning to a slice switches a variable to a mode in which every read copies all of it.
    tf.raw_ops.DisableCopyOnRead(resource=variable.handle)


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
