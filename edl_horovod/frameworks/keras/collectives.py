"""Horovod's collectives on plain tensors, and what a failed one looks like.

Everything else of Horovod's TensorFlow package (DistributedOptimizer, its states, its tape) does
not work on Keras 3; plain-tensor collectives do.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf
from horovod.common.exceptions import HorovodInternalError

__all__ = [
    "CollectiveFailed",
    "allgather_rows",
    "broadcast_values",
    "catch_failures",
    "sum_grouped",
]

_GRAPH_PLACE = re.compile(r"\{\{function_node [^}]*\}\} ?")

_SOURCE_PLACE = re.compile(r"\[[^][]*\.(?:cc|h):\d+\] ")


class CollectiveFailed(Exception):
    """A collective did not complete: a member died, hung or left. The ring must form again."""

    def __init__(self, message: str) -> None:
        """Say it without the place in Gloo's source, which tells a reader nothing.

        Args:
            message: As Horovod said it.
        """
        super().__init__(_SOURCE_PLACE.sub("", message))


@contextmanager
def catch_failures() -> Iterator[None]:
    """Turn what Horovod and TensorFlow raise for a broken ring into `CollectiveFailed`."""
    try:
        yield
    except HorovodInternalError as error:
        raise CollectiveFailed(str(error)) from error
    except tf.errors.OpError as error:
        # A TensorFlow step reports a failed collective as an error of the op inside it; only its
        # name and text tell it from an error of the user's own ops.
        # Paths of our own files stand in every such report.
        if "orovod" not in str(error).replace("edl_horovod", ""):
            raise
        raise CollectiveFailed(_cause(error.message)) from error


def _cause(message: str) -> str:
    """What Horovod said, out of TensorFlow's report of the graph around it."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    said = [line for line in lines if "orovod" in line and not line.startswith("File ")]
    # After its first sentence Horovod guesses what may have been.
    told = (said or lines)[-1].partition(" This was caused by ")[0]
    return _GRAPH_PLACE.sub("", told)[:300]


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
