"""What the survivors of a ring that breaks in a large collective see: an error, and soon."""

import os
import signal
import subprocess
import sys

import pytest

TIMEOUT_SECONDS = 240
NUM_RINGS = 4
SOON_SECONDS = 5.0
"""A third of the ring's time-out."""


def run(module, *arguments):
    """What a program of this folder printed, and its log; nothing of it outlives the time-out."""
    command = [sys.executable, "-m", f"tests.parallel.{module}", *map(str, arguments)]
    process = subprocess.Popen(
        command, env={**os.environ, "TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "1"},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True, text=True,
    )  # fmt: skip
    try:
        output, log = process.communicate(timeout=TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, log = process.communicate()
        pytest.fail(f"{module} did not end in time\n{output}\n{log}")
    assert process.returncode == 0, f"{output}\n{log}"
    return output, log


@pytest.mark.parametrize(
    ("kind", "size"), [pytest.param("sums", 4, marks=pytest.mark.long), ("broadcasts", 3)]
)
def test_survivors_of_a_broken_collective_get_an_error_soon(kind, size):
    output, log = run("lost_member", kind, size, NUM_RINGS)
    found = [(how, float(seconds)) for how, seconds in map(str.split, output.splitlines())]
    assert len(found) == NUM_RINGS * (size - 1), f"{output}\n{log}"
    assert [how for how, _ in found] == ["error"] * len(found), f"{found}\n{log}"
    assert max(seconds for _, seconds in found) < SOON_SECONDS, f"{found}\n{log}"


@pytest.mark.long
def test_a_rank_that_waits_for_a_lost_member_to_connect_gives_up_when_told_or_by_itself():
    output, log = run("never_connected")
    told, untold = map(float, output.split())
    assert told < SOON_SECONDS, log
    assert untold < SOON_SECONDS, log
