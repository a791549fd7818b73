"""The Horovod under the tests is the one that the set-up builds."""

import time
from pathlib import Path

import pytest

from edl_horovod.ring.collectives import allgather_rows
from edl_horovod.ring.horovod_patch import is_patched, library


def test_the_installed_horovod_is_patched():
    assert is_patched(library())


@pytest.mark.world_size(2)
def test_a_ring_with_nothing_to_do_leaves_the_processors_alone(world):
    allgather_rows([0], "idle.begin")  # So that no rank is still at an earlier test.
    began = num_waits()
    time.sleep(1)
    # Some 300; a released Horovod has some 3,000.
    assert num_waits() - began < 1300
    allgather_rows([0], "idle.end")


def num_waits():
    """How often the threads of this process gave up their processor by themselves, ever."""
    found = 0
    for status in Path("/proc/self/task").glob("*/status"):
        lines = status.read_text().splitlines()
        found += sum(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt"))
    return found
