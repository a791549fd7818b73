"""The slots of this host: one worker process each, restarted when it fails."""

import contextlib
import logging
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from edl_horovod.errors import JobFailed
from edl_horovod.job import events
from edl_horovod.job.events import EventLog, Recorded, Tail, WorkerEvent
from edl_horovod.supervisor import processes
from edl_horovod.supervisor.forks import ForkServer, WarmServer
from edl_horovod.supervisor.plan import GRACE_SECONDS, LOCAL_HOST, Command
from edl_horovod.supervisor.processes import Child, Memory

log = logging.getLogger(__name__)

LEFT = (0, 75, 128 + signal.SIGTERM, -signal.SIGTERM)
"""Exit codes of a worker that was asked to end: when warm, when warm in a pod, while getting warm,
and before it handled signals."""
HOPELESS_FAILURES = 3
"""Failures of one slot in a row, without progress of the job, after which the job ends."""
MAX_BACKOFF_SECONDS = 60.0
MAX_DOUBLINGS = 30
POLL_SECONDS = 0.2
HUNG_GRACE_SECONDS = 5.0
"""Time for a worker that hangs to write its stacks and end, before it is killed."""
_HUNG = b'"hung"'
STEADY_SECONDS = 60.0
"""After this run time a failure is no longer one at the start, so earlier ones do not count."""


@dataclass
class _Slot:
    child: Child
    memory: Memory
    started_at: float
    num_failures: int = 0
    num_new_failures: int = 0
    """Number of failures since the job last made progress."""
    why: str = ""
    """How the last failed process ended, in sentences; empty if none has failed."""
    is_in_ring: bool = False
    """Whether this process is in the last ring that formed."""
    restart_at: float | None = None
    """When to start the next process after the end of this one; None while it runs."""
    kill_at: float | None = None
    """When to kill a process that hangs, if it has not ended by then."""


class Slots:
    """Keeps `num_wanted` workers running; the coordinator decides which are in the ring."""

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
        """Begin without workers; `keep` starts them.

        Args:
            command: The command of a worker. `{slot}` in a variable is replaced by the number of
                the slot, which is also in `EDL_SLOT`.
            log_dir: Folder for one log file per slot; None to use this process' own output.
            events: Receives the starts and ends of workers.
            backoff_seconds: Wait before the second restart in a row; doubled for each further one.
            host: The name of this host in host discovery.
            warm: Keeps the fork server between jobs; see `leave_server`.
        """
        self._host = host
        self._command = command
        self._log_dir = log_dir
        self._events = events
        self._backoff_seconds = backoff_seconds
        forks_log = log_dir / "forks.log" if log_dir is not None else None
        self._forks = ForkServer(command, forks_log, warm) if command.can_fork else None
        self._slots: dict[int, _Slot] = {}
        self._leaving: dict[int, _Slot] = {}
        self._furthest_progress = (0, 0)
        self._no_start_before = 0.0
        self.num_wanted = 0

    @property
    def children(self) -> list[Child]:
        """The processes of all workers, including those that are leaving."""
        return [slot.child for slot in (*self._slots.values(), *self._leaving.values())]

    @property
    def processes(self) -> list[Child]:
        """The processes of all workers, and the fork server."""
        return [*self.children, *(self._forks.children if self._forks is not None else [])]

    def leave_server(self) -> None:
        """Keep the fork server for the next job; no more workers are started."""
        if self._forks is not None:
            self._forks.leave()

    def note(self, recorded: Iterable[Recorded]) -> None:
        """Note what events say: who is in the ring, who hangs, and how far the job is."""
        for _, _, event in recorded:
            match event:
                case events.GenerationEvent(is_formed=True):
                    for number, slot in self._slots.items():
                        slot.is_in_ring = f"{self._host}:{number}" in event.members
                case WorkerEvent(state="hung", pid=int(pid)):
                    # It was ordered to end; the slot may have a new process by now.
                    for number, slot in (*self._slots.items(), *self._leaving.items()):
                        if event.worker == f"{self._host}:{number}" and slot.child.pid == pid:
                            slot.kill_at = time.monotonic() + HUNG_GRACE_SECONDS
                case events.StepEvent(step=done) | events.ProgressEvent(records=done):
                    self._note_progress((done, 0))
                case events.EvaluationEvent(step=done):
                    self._note_progress((done, 1))

    def _note_progress(self, progress: tuple[int, int]) -> None:
        """Note the progress of the job; if it is further than ever before, forget earlier failures.

        A job that goes back at each failure and only repeats the same steps makes no progress.

        Args:
            progress: The number of steps or records that are done, and 1 if they have been
                evaluated, else 0.
        """
        if progress > self._furthest_progress:
            self._furthest_progress = progress
            for slot in self._slots.values():
                slot.num_new_failures = 0

    def give_up_if_hopeless(self, min_np: int) -> None:
        """End a job whose workers only fail.

        A job is not ended while healthy workers could still form a ring: they may be in a long
        step. Those run, and are in the ring or did not fail since the last progress.

        Raises:
            JobFailed: A slot failed several times in a row, and too few workers are healthy.
        """
        running = [slot for slot in self._slots.values() if slot.child.exit_code is None]
        num_healthy = sum(slot.num_new_failures == 0 or slot.is_in_ring for slot in running)
        worst = max(self._slots.values(), key=lambda slot: slot.num_new_failures, default=None)
        if worst and worst.num_new_failures >= HOPELESS_FAILURES and num_healthy < min_np:
            raise JobFailed(
                f"A worker ended {worst.num_new_failures} times in a row while the job got no"
                f" further than before. {worst.why}"
            )

    def keep(self) -> None:
        """Start missing workers, and handle ended ones; call it at short intervals."""
        for slot in (*self._slots.values(), *self._leaving.values()):
            if slot.kill_at is not None and time.monotonic() >= slot.kill_at:
                slot.kill_at = None
                slot.child.kill()
        for number in [n for n in self._slots if n >= self.num_wanted]:
            # The coordinator dismisses it after its step; here, it is just not replaced any more.
            self._leaving[number] = self._slots.pop(number)
        for number, slot in list(self._leaving.items()):
            if slot.child.exit_code is not None:
                slot.child.close()
                del self._leaving[number]
        for number in range(self.num_wanted):
            if number in self._leaving:
                # Wanted again before it has left; a slot must not have two workers.
                self._slots[number] = self._leaving.pop(number)
            elif number not in self._slots:
                if self._can_start() and (child := self._start(number)) is not None:
                    self._slots[number] = _Slot(child, Memory(child.pid), time.monotonic())
            elif self._slots[number].child.exit_code is not None:
                self._handle_end(number, self._slots[number])
            else:
                self._slots[number].memory.look()

    def keep_until(
        self,
        is_over: Callable[[], bool],
        *,
        job_events: Path | None = None,
        grace_seconds: float = GRACE_SECONDS,
    ) -> None:
        """Keep workers until there is an end; those that have not ended in time are killed.

        Args:
            is_over: Asked before each look at the workers; may set `num_wanted`.
            job_events: The job's event log, which says who hangs; None where no events say it.
            grace_seconds: How long the workers may take to leave their ring after their step.
        """
        tail = Tail(job_events) if job_events is not None else None

        def hangs() -> list[Recorded]:
            with contextlib.suppress(OSError):
                if tail is not None:
                    tail.begins_again()
                    return list(tail.new_events(having=_HUNG))
            return []

        hangs()  # Earlier ones are of other processes, whose pids ours may have again.
        try:
            while not is_over():
                self.note(hangs())
                self.keep()
                time.sleep(POLL_SECONDS)
        finally:
            processes.end_all(self.processes, seconds=grace_seconds)

    def _handle_end(self, number: int, slot: _Slot) -> None:
        """Report the end of a slot's process, once; restart it when the backoff is over."""
        now = time.monotonic()
        if slot.restart_at is None:
            is_steady = now - slot.started_at >= STEADY_SECONDS
            slot.num_failures = 1 if is_steady else slot.num_failures + 1
            # The first restart is immediate; the wait before the following ones doubles.
            patience = self._backoff_seconds * 2 ** min(slot.num_failures - 2, MAX_DOUBLINGS)
            wait = min(patience, MAX_BACKOFF_SECONDS) if slot.num_failures > 1 else 0.0
            slot.is_in_ring = False
            slot.restart_at = now + wait
            code = slot.child.exit_code or 0
            fault = slot.child.fault() if code > 0 and code not in LEFT else ""
            fault = f": {fault}" if fault else ""
            message = f"ended with {processes.exit_text(code)}{fault}; starts again in {wait:.0f} s"
            if code in LEFT:
                self._write_event(number, "left", message)
            else:
                slot.num_new_failures += 1
                killed_by = processes.what_killed(code, slot.memory)
                slot.why = " ".join(filter(None, (killed_by, slot.child.last_words())))
                message = ". ".join(filter(None, (message, killed_by)))
                self._write_event(number, "failed", message)
        if now >= slot.restart_at and self._can_start():
            slot.child.close()
            if (child := self._start(number)) is not None:
                slot.child, slot.started_at, slot.restart_at = child, now, None
                slot.memory, slot.kill_at = Memory(slot.child.pid), None

    def _can_start(self) -> bool:
        """Whether a process may be started now; it starts the fork server if need be."""
        if time.monotonic() < self._no_start_before:
            return False
        try:
            return self._forks is None or self._forks.is_ready()
        except OSError as error:
            return self._put_off("The fork server", error)

    def _put_off(self, process: str, error: OSError) -> bool:
        """Try again later to start a process, for lack of memory or of process ids; returns False.

        Raises:
            JobFailed: No worker runs, so that nothing would be lost.
        """
        if all(child.exit_code is not None for child in self.children):
            raise JobFailed(f"{process} cannot be started: {error}.") from error
        self._no_start_before = time.monotonic() + processes.seconds_to_retry(process, error)
        return False

    def _start(self, number: int) -> Child | None:
        """Start the worker of a slot; None if that is not possible now."""
        start = processes.start_process if self._forks is None else self._forks.start
        log_path = self._log_dir / f"worker-{number}.log" if self._log_dir is not None else None
        environment = self._command.environment.items()
        variables = {name: value.replace("{slot}", str(number)) for name, value in environment}
        command = replace(self._command, environment=variables)
        try:
            child = Child(command, log_path, start=start, EDL_SLOT=str(number))
        except OSError as error:
            self._put_off(f"Worker {self._host}:{number}", error)
            return None
        self._write_event(number, "started", f"pid {child.pid}", pid=child.pid)
        return child

    def _write_event(
        self, number: int, state: str, message: str, *, pid: int | None = None
    ) -> None:
        name = f"{self._host}:{number}"
        self._events.write(WorkerEvent(worker=name, state=state, message=message, pid=pid))
        if self._log_dir is None and state != "started":  # After the worker's own output.
            log.info("worker %s %s: %s", name, state, message)
