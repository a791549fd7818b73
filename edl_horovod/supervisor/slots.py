"""This machine's slots: one worker process each, started again when it fails."""

import logging
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from edl_horovod.job.events import EventLog, WorkerEvent
from edl_horovod.supervisor.forks import ForkServer, WarmServer
from edl_horovod.supervisor.plan import LOCAL_HOST, Command
from edl_horovod.supervisor.processes import Child, Memory, exit_text, start_process, what_killed

__all__ = ["Slots"]

log = logging.getLogger(__name__)

LEFT = (0, 75, 128 + signal.SIGTERM, -signal.SIGTERM)
"""Exit codes of a worker that was told to go: warm, warm in a pod, still getting warm, not yet
listening."""
MAX_BACKOFF_SECONDS = 60.0
MAX_DOUBLINGS = 30
HUNG_GRACE_SECONDS = 5.0
"""For a worker that hangs, to write its stacks and end."""
STEADY_SECONDS = 60.0
"""A worker that ran so long did not fail at its start: its failures are counted from 0 again."""


@dataclass
class _Slot:
    child: Child
    memory: Memory
    started_at: float
    num_failures: int = 0
    num_new_failures: int = 0
    """Failures since the job last got on."""
    why: str = ""
    """Sentences on how the last process that failed ended; empty without one."""
    is_in_ring: bool = False
    """Whether this process was in the last ring that was formed."""
    start_again_at: float | None = None
    kill_at: float | None = None
    """When to kill a process that hangs, if it has not ended by then."""


class Slots:
    """Keeps as many workers as are wanted; the coordinator decides who is in the ring."""

    def __init__(
        self,
        command: Command,
        log_dir: Path | None,
        events: EventLog,
        *,
        backoff_seconds: float,
        host: str = LOCAL_HOST,
        warm: WarmServer | None = None,
    ) -> None:
        """Start with no slot.

        Args:
            command: The command of a worker. `{slot}` in a variable is replaced by the number of
                the slot, which is also in `EDL_SLOT`.
            log_dir: Takes one log file a slot; None leaves them this process' own output.
            events: Told of starts and failures.
            backoff_seconds: Wait before the second restart in a row.
            host: What host discovery calls this host.
            warm: Holds what an earlier job's workers were forked from; see `leave_server`.
        """
        self._host = host
        self._command = command
        self._log_dir = log_dir
        self._events = events
        self._backoff_seconds = backoff_seconds
        self._forks: ForkServer | None = None
        if command.can_fork:
            log_path = log_dir / "forks.log" if log_dir is not None else None
            self._forks = ForkServer(command, log_path, warm)
        self._slots: dict[int, _Slot] = {}
        self._leaving: dict[int, _Slot] = {}
        self._furthest_progress = (0, 0)
        self.num_wanted = 0

    @property
    def children(self) -> list[Child]:
        """All workers, those on their way out included."""
        return [slot.child for slot in (*self._slots.values(), *self._leaving.values())]

    @property
    def processes(self) -> list[Child]:
        """All workers, and what forks them."""
        return [*self.children, *(self._forks.children if self._forks is not None else [])]

    def leave_server(self) -> None:
        """Leave what forks the workers to the next job, now that no worker is wanted any more."""
        if self._forks is not None:
            self._forks.leave()

    def note_progress(self, progress: tuple[int, int]) -> None:
        """Note how far the job is; if it is further than ever before, forget earlier failures.

        A job that goes back at each failure and only repeats the same steps makes no progress.

        Args:
            progress: The number of steps or records that are done, and 1 if they have been
                evaluated, else 0.
        """
        if progress <= self._furthest_progress:
            return
        self._furthest_progress = progress
        for slot in self._slots.values():
            slot.num_new_failures = 0

    def note_ring(self, members: Sequence[str]) -> None:
        """Note who is in the ring now, by `host:slot`."""
        for number, slot in self._slots.items():
            slot.is_in_ring = f"{self._host}:{number}" in members

    def note_hung(self, worker: str, pid: int) -> None:
        """Note that a worker is to end; what is stopped or stuck cannot do so itself.

        Args:
            worker: As `host:slot`.
            pid: The process that hung; the slot may have a new one by now.
        """
        for number, slot in (*self._slots.items(), *self._leaving.items()):
            if worker == f"{self._host}:{number}" and slot.child.pid == pid:
                slot.kill_at = time.monotonic() + HUNG_GRACE_SECONDS

    def num_healthy(self) -> int:
        """Workers that run, and did not fail since the job last got on or are back in the ring."""
        return sum(
            slot.child.exit_code is None and (slot.num_new_failures == 0 or slot.is_in_ring)
            for slot in self._slots.values()
        )

    def most_new_failures(self) -> tuple[int, str]:
        """Most failures of a slot since the job last got on, and how the last of them ended."""
        worst = max(self._slots.values(), key=lambda slot: slot.num_new_failures, default=None)
        return (0, "") if worst is None else (worst.num_new_failures, worst.why)

    def keep(self) -> None:
        """Start what is missing, note what ended; call it often."""
        for slot in (*self._slots.values(), *self._leaving.values()):
            if slot.kill_at is not None and time.monotonic() >= slot.kill_at:
                slot.kill_at = None
                slot.child.kill()
        for number in [n for n in self._slots if n >= self.num_wanted]:
            # The coordinator dismisses it after its step; here it is only no longer replaced.
            self._leaving[number] = self._slots.pop(number)
        for number, slot in list(self._leaving.items()):
            if slot.child.exit_code is not None:
                slot.child.close()
                del self._leaving[number]
        for number in range(self.num_wanted):
            if number in self._leaving:
                # Wanted again before it went: two workers in one slot would be one too many.
                self._slots[number] = self._leaving.pop(number)
            elif number not in self._slots:
                if self._can_start():
                    child = self._start(number)
                    self._slots[number] = _Slot(child, Memory(child.pid), time.monotonic())
            elif self._slots[number].child.exit_code is not None:
                self._after_the_end(number, self._slots[number])
            else:
                self._slots[number].memory.look()

    def _after_the_end(self, number: int, slot: _Slot) -> None:
        now = time.monotonic()
        if slot.start_again_at is None:
            is_steady = now - slot.started_at >= STEADY_SECONDS
            slot.num_failures = 1 if is_steady else slot.num_failures + 1
            # The first restart waits for nothing; the next ones longer and longer.
            patience = self._backoff_seconds * 2 ** min(slot.num_failures - 2, MAX_DOUBLINGS)
            wait = min(patience, MAX_BACKOFF_SECONDS) if slot.num_failures > 1 else 0.0
            slot.is_in_ring = False
            slot.start_again_at = now + wait
            code = slot.child.exit_code or 0
            fault = slot.child.fault() if code > 0 and code not in LEFT else ""
            fault = f": {fault}" if fault else ""
            message = f"ended with {exit_text(code)}{fault}; starts again in {wait:.0f} s"
            if code in LEFT:
                self._write_event(number, "left", message)
            else:
                slot.num_new_failures += 1
                killed_by = what_killed(code, slot.memory)
                slot.why = " ".join(filter(None, (killed_by, slot.child.last_words())))
                message = ". ".join(filter(None, (message, killed_by)))
                self._write_event(number, "failed", message)
        if now >= slot.start_again_at and self._can_start():
            slot.child.close()
            slot.child, slot.started_at, slot.start_again_at = self._start(number), now, None
            slot.memory, slot.kill_at = Memory(slot.child.pid), None

    def _can_start(self) -> bool:
        return self._forks is None or self._forks.is_ready()

    def _start(self, number: int) -> Child:
        start = start_process if self._forks is None else self._forks.start
        log_path = self._log_dir / f"worker-{number}.log" if self._log_dir is not None else None
        environment = self._command.environment.items()
        filled = {name: value.replace("{slot}", str(number)) for name, value in environment}
        command = replace(self._command, environment=filled)
        child = Child(command, log_path, start=start, EDL_SLOT=str(number))
        self._write_event(number, "started", f"pid {child.pid}", pid=child.pid)
        return child

    def _write_event(
        self, number: int, state: str, message: str, *, pid: int | None = None
    ) -> None:
        name = f"{self._host}:{number}"
        self._events.write(WorkerEvent(worker=name, state=state, message=message, pid=pid))
        if self._log_dir is None and state != "started":  # Below what the worker itself wrote.
            log.info("worker %s %s: %s", name, state, message)
