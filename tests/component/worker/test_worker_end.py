"""A worker ends with its exit code, whoever reads what it says, and whatever went wrong."""

import os
import subprocess
import sys

import pytest

from tests.programs import REPOSITORY

PREPARED = "from edl_horovod.worker.__main__ import code_of, end\nimport sys\n"
FILLED = """
import os
os.set_blocking(1, False)
try:
    while True:
        os.write(1, b"x" * 65536)
except BlockingIOError:
    os.set_blocking(1, True)
sys.stdout.write("a last word")
end(3, last_words_seconds=1.0)
"""
RAISING = """
def main():
    raise RuntimeError("unforeseen")
end(code_of(main))
"""
MISUSED = """
from edl_horovod.worker.__main__ import main
sys.argv = ["worker"]
end(code_of(main))
"""


def start(code: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PREPARED + code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "PYTHONUNBUFFERED": ""},
    )


def test_a_reader_that_is_stuck_keeps_no_worker():
    with start(FILLED) as process:
        assert process.wait(timeout=60) == 3


def test_a_reader_that_is_gone_changes_no_exit_code():
    with start("sys.stdout.write('a last word')\nend(3)") as process:
        process.stdout.close()
        _, errors = process.communicate(timeout=60)
        assert (process.returncode, errors) == (3, "")


@pytest.mark.parametrize(
    ("code", "exit_code", "said"),
    [(RAISING, 1, "RuntimeError: unforeseen"), (MISUSED, 2, "--config")],
    ids=["an error that nobody thought of", "a usage error"],
)
def test_an_error_is_told_and_has_its_exit_code(code, exit_code, said):
    with start(code) as process:
        output, errors = process.communicate(timeout=60)
    assert (process.returncode, output) == (exit_code, "")
    assert said in errors
