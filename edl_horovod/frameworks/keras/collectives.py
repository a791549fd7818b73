"""Horovod's collectives on plain TensorFlow tensors.

Everything else of Horovod's TensorFlow package (DistributedOptimizer, its states, its tape) does
not work on Keras 3; plain-tensor collectives do.
"""

from collections.abc import Sequence
from typing import Any

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from edl_horovod.frameworks.base import Variable
from edl_horovod.frameworks.horovod import Horovod

__all__ = ["HOROVOD", "KerasCollectives", "catch_failures", "sum_grouped"]

HOROVOD = Horovod(hvd, op_errors=(tf.errors.OpError,))
catch_failures = HOROVOD.catch_failures


def sum_grouped(tensors: Sequence[tf.Tensor], name: str) -> list[tf.Tensor]:
    """Sum each tensor over the ring, all of them in one collective.

    Args:
        tensors: Same shapes and types on all ranks.
        name: Pairs the calls of the ranks; functions that may meet in one collective share it.
    """
    reduced: list[tf.Tensor] = hvd.grouped_allreduce(
        list(tensors), op=hvd.Sum, name=name, ignore_name_scope=True
    )
    return reduced


class KerasCollectives:
    """See `frameworks.base.Collectives`; all run eagerly, so none is traced for a ring's size."""

    def sum(self, values: NDArray[Any], name: str) -> NDArray[Any]:
        """Add the ranks' arrays, which have the same shape and type."""
        with catch_failures():
            (total,) = sum_grouped([tf.convert_to_tensor(values)], name)
        summed: NDArray[Any] = total.numpy()
        return summed

    def gather_rows(self, row: Sequence[int], name: str) -> NDArray[np.int64]:
        """Gather one row of integers of each rank; shape (size, len(row)), in rank order."""
        with catch_failures():
            gathered = hvd.allgather(tf.constant([row], tf.int64), name=name)
        rows: NDArray[np.int64] = gathered.numpy()
        return rows

    def broadcast(self, variables: Sequence[Variable], root: int, name: str) -> None:
        """Give every rank the root's values; one collective for each type, not for each tensor.

        Nothing is assigned before all of them are through.
        """
        values = [
            tf.convert_to_tensor(each if isinstance(each, tf.Variable) else each.numpy())
            for each in variables
        ]
        received: list[tf.Tensor] = list(values)
        for dtype in sorted({value.dtype.name for value in values}):
            places = [i for i, value in enumerate(values) if value.dtype.name == dtype]
            flat = tf.concat([tf.reshape(values[i], [-1]) for i in places], 0)
            with catch_failures():
                flat = hvd.broadcast(flat, root_rank=root, name=f"{name}.{dtype}")
            parts = tf.split(flat, [int(tf.size(values[i])) for i in places])
            for i, part in zip(places, parts, strict=True):
                received[i] = tf.reshape(part, values[i].shape)
        for variable, value in zip(variables, received, strict=True):
            variable.assign(value)
