"""Programs that a test puts on the path, as scripts of the shell, or runs, in Python."""

import os
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]


def run_python(*words, **options):
    """Run Python with these words to its end; gives its exit code, and its output as texts."""
    usual = {"capture_output": True, "text": True, "timeout": 60, "check": False}
    return subprocess.run([sys.executable, *map(str, words)], **{**usual, **options})


def python(code, **variables):
    """What a program printed that may import the package and the tests, and that succeeds."""
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), **variables}
    run = run_python("-c", code, timeout=120, env=environment)
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
