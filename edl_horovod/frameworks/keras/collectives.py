"""Horovod's collectives on plain TensorFlow tensors.

Everything else of Horovod's TensorFlow package (DistributedOptimizer, its states, its tape) does
not work on Keras 3; plain-tensor collectives do.
"""

from collections.abc import Sequence

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

from edl_horovod.frameworks.horovod import Horovod

__all__ = [
    "HOROVOD",
    "allgather_rows",
    "broadcast_values",
    "catch_failures",
    "sum_grouped",
]

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


def allgather_rows(row: Sequence[int], name: str) -> np.ndarray:
    """Gather one row of integers of each rank; shape (size, len(row)), in rank order.

    All ranks call it at the same point: `RingState.sync` does, once after each forming.
    """
    with catch_failures():
        gathered = hvd.allgather(tf.constant([row], tf.int64), name=name)
    rows: np.ndarray = gathered.numpy()
    return rows


def broadcast_values(values: Sequence[tf.Tensor], root: int, name: str) -> list[tf.Tensor]:
    """Give every rank the root's values; one collective for each type, not for each tensor.

    Args:
        values: Same shapes and types on all ranks.
        root: Rank whose values count.
        name: Pairs the calls of the ranks.
    """
    result: list[tf.Tensor] = list(values)
    for dtype in sorted({value.dtype.name for value in values}):
        places = [i for i, value in enumerate(values) if value.dtype.name == dtype]
        flat = tf.concat([tf.reshape(values[i], [-1]) for i in places], 0)
        with catch_failures():
            # Eager, and so never traced for a root that is new.
            flat = hvd.broadcast(flat, root_rank=root, name=f"{name}.{dtype}")
        parts = tf.split(flat, [int(tf.size(values[i])) for i in places])
        for i, part in zip(places, parts, strict=True):
            result[i] = tf.reshape(part, values[i].shape)
    return result
