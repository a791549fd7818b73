"""How much memory there is."""

import contextlib
import os
from pathlib import Path

CONTROL_GROUP = Path("/sys/fs/cgroup")
"""The files of the control group that this process is in, as a container shows them."""


def total_bytes(group: Path = CONTROL_GROUP) -> int:
    """Memory of this machine, or of our control group if that has less."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):  # "max", or another version of groups.
            total = min(total, int((group / name).read_text()))
    return total
