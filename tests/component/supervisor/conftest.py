"""Launchers of these tests, as processes of their own."""

import os
import subprocess
import sys

import pytest

from tests.programs import REPOSITORY
from tests.waiting import is_running, wait_until


@pytest.fixture
def ends_with_its_launcher():
    """Require of a program that what it started, whose pids it prints, ends when it is killed."""

    def run(code, num_children):
        with subprocess.Popen(
            [sys.executable, "-c", f"import signal\n{code}\nsignal.pause()"],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        ) as launcher:
            try:
                pids = [int(word) for word in launcher.stdout.readline().split()]
                are_there = [is_running(pid) for pid in pids]
            finally:
                launcher.kill()
        assert are_there == [True] * num_children
        wait_until(lambda: not any(map(is_running, pids)))

    return run
