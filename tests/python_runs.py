"""Programs of Python that a test runs as processes of their own."""

import subprocess
import sys


def run_python(*words, **options):
    """Run Python with these words to its end; gives its exit code, and its output as texts."""
    usual = {"capture_output": True, "text": True, "timeout": 60, "check": False}
    return subprocess.run([sys.executable, *map(str, words)], **{**usual, **options})
