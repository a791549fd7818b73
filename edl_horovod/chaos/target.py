"""A running local job as somebody who disturbs it sees it: its own processes, and no others."""

import contextlib
import itertools
import os
import signal
from collections.abc import Callable
from pathlib import Path

from edl_horovod.job.directory import JobDir
from edl_horovod.job.events import (
    CoordinatorEvent,
    GenerationEvent,
    JobEvent,
    Recorded,
    WorkerEvent,
    follow,
)

__all__ = ["HeldProcess", "Target"]

EARLY_SECONDS = 30.0
"""How long before the event that tells of it a process may have started, on a busy machine."""
LATE_SECONDS = 2.0
"""How much later, by the coarseness of both clocks."""
_HOST = "localhost"


class HeldProcess:
    """One process of the job, held so that a signal can reach no other one."""

    def __init__(self, pid: int, label: str, handle: int) -> None:
        """Take a process that was found to be the job's, with a pid file descriptor to close."""
        self.pid, self.label = pid, label
        self._handle = handle

    def send(self, number: signal.Signals) -> None:
        """Send a signal; nothing happens if the process has already ended."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._handle, number)

    def close(self) -> None:
        """Let go of it."""
        os.close(self._handle)


class Target:
    """The job in a directory, by what its events say."""

    def __init__(
        self, job_dir: JobDir, *, set_slots: Callable[[int], object], slots: Callable[[], int]
    ) -> None:
        self._job_dir = JobDir(job_dir.path.resolve())
        self._new_events = follow(job_dir.events)
        self._started: dict[str, tuple[int, float]] = {}
        self._ring: tuple[int, ...] = ()
        self.set_slots = set_slots
        self.slots = slots
        self.is_over = False
        self.update()

    def update(self) -> None:
        """Take in what happened since the last time."""
        for recorded in next(self._new_events):
            self._note(recorded)

    def ring(self) -> tuple[int, ...]:
        """Slots of this machine that were in the last ring that formed, lowest first."""
        return self._ring

    def worker(self, slot: int) -> HeldProcess | None:
        """The process that has a slot now; None if there is none."""
        return self._process(f"{_HOST}:{slot}", "--config", self._job_dir.config)

    def coordinator(self) -> HeldProcess | None:
        """The coordinator; None while there is none."""
        return self._process("coordinator", "--job-dir", self._job_dir.path)

    def _note(self, recorded: Recorded) -> None:
        match recorded.event:
            case WorkerEvent(state="started", worker=worker, pid=int(pid)):
                self._started[worker] = (pid, recorded.time)
            case CoordinatorEvent(pid=pid):
                self._started["coordinator"] = (pid, recorded.time)
            case GenerationEvent(is_formed=True, members=members):
                here = [name.rpartition(":") for name in members]
                self._ring = tuple(sorted(int(slot) for host, _, slot in here if host == _HOST))
            case JobEvent(state="finished" | "failed"):
                self.is_over = True

    def _process(self, label: str, option: str, value: Path) -> HeldProcess | None:
        if label not in self._started:
            return None
        pid, reported_at = self._started[label]
        try:
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            return None
        # Looked at after it is held: whatever has the number from now on, the handle is this one's.
        if _is_it(pid, option, value, reported_at):
            return HeldProcess(pid, label, handle)
        os.close(handle)
        return None


def _is_it(pid: int, option: str, value: Path, reported_at: float) -> bool:
    """Whether a number is that process' still, by its command line and its start."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
        folder = os.readlink(f"/proc/{pid}/cwd")
        started_at = _started_at(pid)
    except (OSError, UnicodeDecodeError):
        return False
    values = [after for word, after in itertools.pairwise(words) if word == option]
    is_ours = any(Path(folder, word).resolve() == value for word in values)
    return is_ours and reported_at - EARLY_SECONDS < started_at < reported_at + LATE_SECONDS


def _started_at(pid: int) -> float:
    """Seconds since the epoch; the kernel counts ticks since it was started."""
    ticks = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    boot = next(
        float(line.split()[1])
        for line in Path("/proc/stat").read_text().splitlines()
        if line.startswith("btime")
    )
    return boot + ticks / os.sysconf("SC_CLK_TCK")
