"""The Horovod under the tests is the one that the set-up builds."""

import time
from pathlib import Path

import pytest
import tensorflow as tf
from horovod.tensorflow import mpi_ops

from edl_horovod.frameworks.horovod import NEEDED_PATCH
from edl_horovod.frameworks.keras.collectives import HOROVOD, KerasCollectives


def test_the_installed_horovod_is_patched():
    assert HOROVOD.patch_version() == NEEDED_PATCH


UNKNOWN_OP = 9


def test_an_error_of_the_ranks_own_breaks_no_ring(world):
    with pytest.raises(tf.errors.UnknownError, match="Reduction op type not supported"):
        mpi_ops._allreduce(tf.zeros([1]), name="unknown", op=UNKNOWN_OP)
    rows = KerasCollectives().gather_rows([world.rank], "after.unknown")
    assert rows.tolist() == [[rank] for rank in range(world.size)]


@pytest.mark.world_size(2)
def test_a_ring_with_nothing_to_do_leaves_the_processors_alone(world):
    KerasCollectives().gather_rows(
        [0], "idle.begin"
    )  # So that no rank is still at an earlier test.
    began = num_waits()
    time.sleep(1)
    # Some 300; a released Horovod has some 3,000.
    assert num_waits() - began < 1300
    KerasCollectives().gather_rows([0], "idle.end")


def num_waits():
    """How often the threads of this process gave up their processor by themselves, ever."""
    found = 0
    for status in Path("/proc/self/task").glob("*/status"):
        lines = status.read_text().splitlines()
        found += sum(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt"))
    return found
