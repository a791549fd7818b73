"""A child with a lifeline ends when its starter lets go of it."""

import os
import subprocess
import sys

import pytest

CODE = (
    "import time; from edl_horovod.lifeline import end_with_parent; end_with_parent(); "
    "print('up', flush=True); time.sleep({})"
)
LIMIT_SECONDS = 8.0


def start(seconds, **environment):
    return subprocess.Popen(
        [sys.executable, "-c", CODE.format(seconds)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, **environment},
    )


def test_the_child_ends_with_its_standard_input():
    with start(60, EDL_LIFELINE="stdin") as child:
        assert child.stdout.readline() == b"up\n"
        assert child.poll() is None
        child.stdin.close()
        assert child.wait(LIMIT_SECONDS) == 1


def test_what_comes_over_the_lifeline_does_not_end_the_child():
    with start(0.2, EDL_LIFELINE="stdin") as child:
        assert child.stdout.readline() == b"up\n"
        child.stdin.write(b"x" * 5000)
        child.stdin.flush()
        assert child.wait(LIMIT_SECONDS) == 0


@pytest.mark.parametrize(
    "environment",
    [{"EDL_LIFELINE": ""}, {"EDL_LIFELINE": "stdin", "OMPI_COMM_WORLD_RANK": "1"}],
    ids=["no lifeline", "another rank of mpirun has it"],
)
def test_without_a_lifeline_the_input_does_not_matter(environment):
    with start(0.2, **environment) as child:
        assert child.stdout.readline() == b"up\n"
        child.stdin.close()
        assert child.wait(LIMIT_SECONDS) == 0
