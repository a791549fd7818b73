"""Programs that a test puts on the path, as scripts of the shell, or runs, in Python."""

import os
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]


def python(code, **variables):
    """Run a program that may import the package and the tests; what it printed."""
    run = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), **variables},
    )
    assert run.returncode == 0, run.stderr
    return run.stdout


def writer(folder, monkeypatch, *behind):
    """Put a new folder on the path, before some others; gives a writer of programs."""
    folder.mkdir()
    monkeypatch.setenv("PATH", ":".join([str(folder), *behind]))

    def write(name, text):
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)

    return write
