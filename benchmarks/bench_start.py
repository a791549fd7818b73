"""How long a user waits for the package's import and for the command's help."""

import os
import subprocess
import sys
import time
from collections.abc import Callable

from benchmarks.common import ROOT, Comparison, Workspace, interleave

__all__ = ["measure"]

NUM_STARTS = 10
MOST_SECONDS = 0.5
STARTS = {
    "Start, import edl_horovod": (("-c", "import edl_horovod"), MOST_SECONDS),
    "Start, edl --help": (("-m", "edl_horovod", "--help"), MOST_SECONDS),
    "Start, edl train --help": (("-m", "edl_horovod", "train", "--help"), None),
}


def measure(space: Workspace) -> list[Comparison]:
    """Start new interpreters, their own start included.

    Args:
        space: Not needed.

    Raises:
        CalledProcessError: One of them failed.
    """
    sides = {name: _start(*arguments) for name, (arguments, _) in STARTS.items()}
    for start in sides.values():
        start()  # Compiles what was never imported before.
    found = interleave(sides, NUM_STARTS)
    return [
        Comparison(name=name, values=tuple(found[name]), target=target, is_seconds=True)
        for name, (_, target) in STARTS.items()
    ]


def _start(*arguments: str) -> Callable[[], float]:
    def start() -> float:
        began = time.perf_counter()
        subprocess.run(
            [sys.executable, *arguments],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.DEVNULL,
            timeout=60,
            check=True,
        )
        return time.perf_counter() - began

    return start
