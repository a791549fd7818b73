"""The Horovod under the tests is the one that the set-up builds."""

import time
from pathlib import Path

import pytest

from edl_horovod.frameworks.horovod import NEEDED_PATCH


def test_the_installed_horovod_is_patched(framework):
    assert framework.horovod.patch_version() == NEEDED_PATCH


def test_an_error_of_the_ranks_own_breaks_no_ring(world, framework):
    with pytest.raises(framework.errors, match="op type"):
        framework.add_by_unknown_op()
    rows = framework.collectives.gather_rows([world.rank], "after.unknown")
    assert rows.tolist() == [[rank] for rank in range(world.size)]


@pytest.mark.world_size(2)
def test_a_ring_with_nothing_to_do_leaves_the_processors_alone(world, framework):
    # So that no rank is still at an earlier test.
    framework.collectives.gather_rows([0], "idle.begin")
    began = num_waits()
    time.sleep(1)
    # Some 300; a released Horovod has some 3,000.
    assert num_waits() - began < 1300
    framework.collectives.gather_rows([0], "idle.end")


def num_waits():
    """How often the threads of this process gave up their processor by themselves, ever."""
    num_switches = 0
    for status in Path("/proc/self/task").glob("*/status"):
        lines = status.read_text().splitlines()
        num_switches += sum(
            int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt")
        )
    return num_switches
