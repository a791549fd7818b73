"""Programs of this folder that tests run, each in a process group that ends with its time."""

import os
import signal
import subprocess
import sys

import pytest

from tests import logs
from tests.programs import REPOSITORY
from tests.warm import start_program

TIMEOUT_SECONDS = 240
FEW_THREADS = {"TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "1", "OMP_NUM_THREADS": "1"}


@pytest.fixture
def run_ranks(tmp_path):
    """Run a program of this folder; what it printed, and its log."""

    def run(module, *arguments, seconds=TIMEOUT_SECONDS, **variables):
        printed, log = tmp_path / "printed", tmp_path / "log"
        with printed.open("wb") as output, log.open("wb") as errors:
            process = start_program(
                [sys.executable, "-m", f"tests.parallel.{module}", *map(str, arguments)],
                environment={**os.environ, **FEW_THREADS, **variables},
                cwd=REPOSITORY,
                output=output,
                errors=errors,
            )
            try:
                end = f"exit code {process.wait(seconds)}"
            except subprocess.TimeoutExpired:
                end = f"no end in {seconds} s"
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        texts = [path.read_text(errors="replace") for path in (printed, log)]
        # A ring's ranks have logs of their own, which it prints when it ends by itself.
        of_ranks = logs.page(tmp_path.rglob("*.log")) if process.returncode < 0 else ""
        assert process.returncode == 0, "\n".join([f"{module}: {end}", *texts, of_ranks])
        return texts

    return run
