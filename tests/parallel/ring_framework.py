"""What tests on rings need of a framework, whichever it is."""

import importlib
import os
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.frameworks import FIRST, HALVES

__all__ = ["NAME", "RingFramework", "plain_horovod", "ring_framework"]

NAME = os.environ.get("RING_FRAMEWORK", FIRST)


@dataclass(frozen=True)
class RingFramework:
    """A framework's part of a ring."""

    horovod: Any
    collectives: Any
    variable: Any
    """From a name and an array to a `Variable`."""
    add_all: Any
    """From several arrays and a name to their sums over the ring, all on their way at once."""
    add_by_unknown_op: Any
    """Begins a collective that Horovod itself refuses, and waits for it."""
    errors: tuple[type[Exception], ...]
    """What that raises."""


def ring_framework():
    """The framework of this process."""
    return {"keras": _keras, "torch": _torch}[NAME]()


def plain_horovod():
    """Horovod itself, as the framework of this process has it."""
    return importlib.import_module(f"horovod.{HALVES[NAME]}")


UNKNOWN_OP = 9


def _keras():
    import tensorflow as tf
    from horovod.tensorflow import mpi_ops

    from edl_horovod.frameworks.keras.collectives import (
        HOROVOD,
        KerasCollectives,
        catch_failures,
        sum_grouped,
    )

    def add_by_unknown_op():
        mpi_ops._allreduce(tf.zeros([1]), name="unknown", op=UNKNOWN_OP)

    def add_all(arrays, name):
        with catch_failures():
            return [total.numpy() for total in sum_grouped(list(map(tf.constant, arrays)), name)]

    def variable(name, array):
        return tf.Variable(array)

    errors = (tf.errors.UnknownError,)
    return RingFramework(HOROVOD, KerasCollectives(), variable, add_all, add_by_unknown_op, errors)


def _torch():
    import horovod.torch as hvd
    import torch
    from horovod.common.exceptions import HorovodInternalError

    from edl_horovod.frameworks.torch.collectives import (
        HOROVOD,
        PendingCollectives,
        TorchCollectives,
        sum_in_place,
    )
    from edl_horovod.frameworks.torch.variables import TorchVariable, from_numpy

    def add_by_unknown_op():
        hvd.synchronize(hvd.allreduce_async_(torch.zeros(1), name="unknown", op=UNKNOWN_OP))

    def add_all(arrays, name):
        tensors, pending = [from_numpy(array.copy()) for array in arrays], PendingCollectives()
        for number, array in enumerate(tensors):
            pending.start(sum_in_place(array, f"{name}.{number}"))
        pending.wait()
        return [array.numpy() for array in tensors]

    def variable(name, array):
        return TorchVariable(name, from_numpy(np.array(array)))

    errors = (HorovodInternalError,)
    return RingFramework(HOROVOD, TorchCollectives(), variable, add_all, add_by_unknown_op, errors)
