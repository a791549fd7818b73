"""Programs of this folder that tests run, each in a process group that ends with its time."""

import os
import signal
import subprocess
import sys

import pytest

from tests.programs import REPOSITORY

TIMEOUT_SECONDS = 240
FEW_THREADS = {"TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "1", "OMP_NUM_THREADS": "1"}


def run(module, *arguments, **variables):
    """What a program of this folder printed, and its log."""
    command = [sys.executable, "-m", f"tests.parallel.{module}", *map(str, arguments)]
    return run_command(command, TIMEOUT_SECONDS, **variables)


def run_command(command, seconds, **variables):
    """What a command printed, and its log; nothing of it outlives the time-out."""
    process = subprocess.Popen(
        command,
        cwd=REPOSITORY,
        env={**os.environ, **FEW_THREADS, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        text=True,
    )
    try:
        output, log = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, log = process.communicate()
        pytest.fail(f"{command} did not end in time\n{output}\n{log}")
    assert process.returncode == 0, f"{output}\n{log}"
    return output, log
