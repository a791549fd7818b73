"""What a rank leaves behind for whoever compares it: its memory, and Horovod's timeline.

Files in the folder of the rank's stamps.
"""

from pathlib import Path
from typing import Any

from edl_horovod.files.whole_file import write_json

__all__ = [
    "DYNAMIC_TIMELINE",
    "TIMELINE_FILE",
    "TIMELINE_VARIABLE",
    "proportional_bytes",
    "start_timeline",
    "write_memory",
]

TIMELINE_VARIABLE = "BENCHMARK_TIMELINE_STEP"
"""Step after which our workers begin Horovod's timeline; unset for never."""
DYNAMIC_TIMELINE = {"HOROVOD_TIMELINE": "DYNAMIC"}
"""Lets ranks begin a timeline when they like."""
TIMELINE_FILE = "timeline.json"
KIBIBYTE = 1024


def start_timeline(hvd: Any, folder: Path) -> None:
    """Begin Horovod's timeline, which its rank 0 writes; all ranks call this after the same step.

    Args:
        hvd: The module of a framework; `DYNAMIC_TIMELINE` was set before its `init`.
        folder: Takes the file.
    """
    hvd.start_timeline(str(folder / TIMELINE_FILE), mark_cycles=True)


def write_memory(folder: Path, name: str) -> None:
    """Write what this process has used until now.

    Args:
        folder: Takes `memory.NAME.json`.
        name: Of the rank.
    """
    numbers = {
        # Of all pages that were ever there at once, shared ones in whole.
        "peak_bytes": _field("/proc/self/status", "VmHWM"),
        # Now, shared pages in parts.
        "proportional_bytes": proportional_bytes(),
    }
    write_json(folder / f"memory.{name}.json", numbers)


def proportional_bytes() -> int:
    """What this process uses now; of pages that several share, its part."""
    return _field("/proc/self/smaps_rollup", "Pss")


def _field(path: str, name: str) -> int:
    for line in Path(path).read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * KIBIBYTE
    raise AssertionError(f"{path} has no {name}")
