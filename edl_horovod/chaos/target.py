"""The processes of a running local job, found so that a signal can reach no other process."""

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
"""Seconds that a process may have started before its event, on a busy machine."""
LATE_SECONDS = 2.0
"""Seconds that it may have started later, because both clocks are coarse."""
_HOST = "localhost"


class HeldProcess:
    """A process of the job, held by a descriptor so that a signal can reach no other process."""

    def __init__(self, pid: int, label: str, handle: int) -> None:
        """Own the descriptor of a process that is known to belong to the job."""
        self.pid, self.label = pid, label
        self._handle = handle

    def send(self, number: signal.Signals) -> None:
        """Send a signal; nothing happens if the process has already ended."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._handle, number)

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self._handle)


class Target:
    """A job and its processes, as its events report them."""

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
        """Read the events since the last call."""
        for recorded in next(self._new_events):
            self._note(recorded)

    def ring(self) -> tuple[int, ...]:
        """Return the slots of this machine in the last ring that formed, in ascending order."""
        return self._ring

    def worker(self, slot: int) -> HeldProcess | None:
        """Return the process of a slot; None if the slot has none."""
        return self._process(f"{_HOST}:{slot}", "--config", self._job_dir.config)

    def coordinator(self) -> HeldProcess | None:
        """Return the process of the coordinator; None if it does not run."""
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
        # Checked after it is opened: the descriptor stays valid if another process gets the number.
        if _belongs_to_job(pid, option, value, reported_at):
            return HeldProcess(pid, label, handle)
        os.close(handle)
        return None


def _belongs_to_job(pid: int, option: str, value: Path, reported_at: float) -> bool:
    """Whether a process ID still belongs to the job, by command line and start time."""
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
    """Return the start time in seconds since the epoch; the kernel counts ticks since its boot."""
    ticks = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    boot = next(
        float(line.split()[1])
        for line in Path("/proc/stat").read_text().splitlines()
        if line.startswith("btime")
    )
    return boot + ticks / os.sysconf("SC_CLK_TCK")
