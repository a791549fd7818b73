"""A child with a lifeline ends when its starter lets go of it."""

import os
import signal
import subprocess
import sys

import pytest

from tests.waiting import is_running, wait_until

CODE = (
    "import time; from edl_horovod.job.lifeline import end_with_parent; end_with_parent(); "
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


def test_the_child_ends_with_a_process_that_is_not_its_parent():
    with subprocess.Popen(["sleep", "60"]) as starter:
        with start(60, EDL_LIFELINE=str(starter.pid)) as child:
            assert child.stdout.readline() == b"up\n"
            assert child.poll() is None
            starter.kill()  # Its end counts before it is collected.
            assert child.wait(LIMIT_SECONDS) == 1
        starter.wait()
        with start(60, EDL_LIFELINE=str(starter.pid)) as late:
            assert late.wait(LIMIT_SECONDS) == 1


def test_what_a_group_leader_started_ends_with_it():
    code = (
        "import subprocess, sys; from edl_horovod.job.lifeline import end_with_parent; "
        "end_with_parent(); p = subprocess.Popen([sys.executable, '-c', 'input()'], "
        "stdin=subprocess.PIPE); print(p.pid, flush=True); p.wait()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "EDL_LIFELINE": "stdin"},
        start_new_session=True,
    ) as child:
        grandchild = int(child.stdout.readline())
        child.stdin.close()
        assert child.wait(LIMIT_SECONDS) == -signal.SIGKILL
        wait_until(lambda: not is_running(grandchild), "the end of what it started")


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
