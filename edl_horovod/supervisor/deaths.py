"""Why a process that a signal ended may have been sent it, and what to change."""

import contextlib
import os
import signal
from pathlib import Path

__all__ = ["Memory", "exit_text", "what_killed"]

_CGROUP = Path("/sys/fs/cgroup")
_GIB = 1 << 30
_LESS_MEMORY = (
    "lower train.batch_size, data_plan.shuffle_window, data_plan.prefetch_steps or launch.np, raise"
    " train.accumulate_steps, or give it more memory"
)
_CAUSES: dict[int, str] = {
    signal.SIGBUS: "a file in memory could not be read or written: look whether the disk, or"
    " /dev/shm, is full",
    signal.SIGILL: "the processor lacks instructions that a package was built for: install one that"
    " was built for it",
    signal.SIGSEGV: "a compiled package failed: its stack stands in the log",
    signal.SIGABRT: "a compiled package gave up: what it said stands in the log",
}


class Memory:
    """What a process takes of memory, as far as it was seen, and what there is for it."""

    def __init__(self, pid: int) -> None:
        """Look at nothing yet."""
        self._pid = pid
        self._peak_bytes = 0
        self._kills_before = _oom_kills()

    def look(self) -> None:
        """Note the most that the process has taken so far; call it now and then."""
        with contextlib.suppress(OSError):  # It may have ended.
            for line in Path(f"/proc/{self._pid}/status").read_text().splitlines():
                if line.startswith("VmHWM:"):
                    self._peak_bytes = max(self._peak_bytes, int(line.split()[1]) * 1024)

    def __str__(self) -> str:
        """A clause, such as `it had 3.1 GiB when last seen, of 4.0 GiB here`."""
        seen = "its memory was not seen"
        if self._peak_bytes:
            seen = f"it had taken up to {self._peak_bytes / _GIB:.1f} GiB when last seen"
        return f"{seen}, and there are {_total_bytes() / _GIB:.1f} GiB"

    def has_run_out(self) -> bool:
        """Whether the kernel has killed something here for want of memory since the beginning."""
        return _oom_kills() > self._kills_before


def what_killed(exit_code: int, memory: Memory) -> str:
    """A sentence on the signal that ended a process, its likely cause and the hint.

    Args:
        exit_code: Of the process, negative for a signal; others give an empty text.
        memory: Of the process.
    """
    if exit_code >= 0:
        return ""
    name = _name(-exit_code)
    if exit_code == -signal.SIGKILL:
        cause = "as the kernel counts, memory ran out" if memory.has_run_out() else _PERHAPS
        return f"It was killed by {name}: {cause} ({memory}). If so, {_LESS_MEMORY}."
    cause = _CAUSES.get(-exit_code, "somebody, or another program, sent it")
    return f"It was ended by {name}: {cause}."


_PERHAPS = "most likely memory ran out, unless somebody killed it"


def exit_text(exit_code: int) -> str:
    """How a process ended, as a phrase: `3`, or the name of the signal."""
    return str(exit_code) if exit_code >= 0 else _name(-exit_code)


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _oom_kills() -> int:
    """How often the kernel killed for want of memory, in our control group; 0 if it is not told."""
    with contextlib.suppress(OSError, ValueError):
        for line in (_CGROUP / "memory.events").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0


def _total_bytes() -> int:
    """Memory of this machine, or of our control group if that has less."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):  # "max", or another version of groups.
            total = min(total, int((_CGROUP / name).read_text()))
    return total
