"""Carry out a chaos schedule on a job, and undo at the end what can be undone."""

import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from edl_horovod.chaos.schedule import Action
from edl_horovod.chaos.target import HeldProcess, Target
from edl_horovod.errors import ConfigError

__all__ = ["ActionResult", "disturb"]

POLL_SECONDS = 0.1


@dataclass(frozen=True, kw_only=True)
class ActionResult:
    """The result of one action."""

    time: float
    """Seconds since the epoch."""
    seconds: float
    """Seconds after the start of the schedule."""
    kind: str
    """As in the schedule; `continue` and `restore` for what is undone."""
    is_done: bool
    """False if the action was skipped."""
    message: str


@dataclass(frozen=True)
class _StoppedProcess:
    process: HeldProcess
    until: float
    """Seconds after the start of the schedule."""


def disturb(
    target: Target,
    schedule: Sequence[Action],
    *,
    seconds: float = 0.0,
    on_action: Callable[[ActionResult], None] = lambda _: None,
) -> list[ActionResult]:
    """Carry out a schedule, until its end or the end of the job.

    Unless the schedule names its slot, a worker is killed, stopped or removed only while another
    worker is in the ring, because the job must be disturbed and not lost.

    Args:
        target: The job.
        schedule: The actions.
        seconds: Least time to stay, even if the last action comes earlier.
        on_action: Called with the result of each action.

    Returns:
        The results in order.
    """
    return _Disturbance(target, on_action).run(schedule, seconds)


class _Disturbance:
    def __init__(self, target: Target, on_action: Callable[[ActionResult], None]) -> None:
        self._target = target
        self._on_action = on_action
        self._began = time.monotonic()
        self._stopped: list[_StoppedProcess] = []
        self._results: list[ActionResult] = []

    def run(self, schedule: Sequence[Action], seconds: float) -> list[ActionResult]:
        slots = self._target.slots()
        waiting = sorted(schedule, key=lambda action: action.at_seconds)
        try:
            while not self._target.is_over and (
                waiting or self._stopped or self._seconds() < seconds
            ):
                while waiting and waiting[0].at_seconds <= self._seconds():
                    self._act(waiting.pop(0))
                self._continue(self._seconds())
                time.sleep(POLL_SECONDS)
                self._target.update()
        finally:
            self._continue(float("inf"))
            self._put_back(slots)
        return self._results

    def _seconds(self) -> float:
        return time.monotonic() - self._began

    def _report(self, kind: str, message: str, *, is_done: bool = True) -> None:
        result = ActionResult(
            time=time.time(),
            seconds=round(self._seconds(), 2),
            kind=kind,
            is_done=is_done,
            message=message,
        )
        self._results.append(result)
        self._on_action(result)

    def _act(self, action: Action) -> None:
        self._target.update()
        if action.kind in ("kill", "stop"):
            self._hit(action)
        elif action.kind == "coordinator":
            self._kill_coordinator()
        else:
            self._scale(action.kind)

    def _hit(self, action: Action) -> None:
        slot = action.slot if action.slot is not None else self._choose(action)
        if slot is None:
            message = "fewer than two workers that are not stopped are in the ring"
            self._report(action.kind, message, is_done=False)
            return
        process = self._target.worker(slot)
        if process is None:
            self._report(action.kind, f"slot {slot} has no worker now", is_done=False)
        elif action.kind == "kill":
            process.send(signal.SIGKILL)
            self._report("kill", f"{process.label}, pid {process.pid}")
            process.close()
        else:
            process.send(signal.SIGSTOP)
            self._stopped.append(_StoppedProcess(process, self._seconds() + action.seconds))
            self._report("stop", f"{process.label}, pid {process.pid}, for {action.seconds:g} s")

    def _choose(self, action: Action) -> int | None:
        stopped = {stopped.process.label for stopped in self._stopped}
        slots = [s for s in self._target.ring() if f"localhost:{s}" not in stopped]
        return slots[int(action.pick * len(slots))] if len(slots) > 1 else None

    def _kill_coordinator(self) -> None:
        process = self._target.coordinator()
        if process is None:
            self._report("coordinator", "there is none now", is_done=False)
            return
        process.send(signal.SIGKILL)
        self._report("coordinator", f"pid {process.pid}")
        process.close()

    def _scale(self, kind: str) -> None:
        before = self._target.slots()
        after = before + (1 if kind == "add" else -1)
        if kind == "remove" and not any(slot < after for slot in self._target.ring()):
            message = f"nobody would be left of the ring without slot {after}"
            self._report(kind, message, is_done=False)
            return
        self._set_slots(kind, after, f"{before} -> {after} slots")

    def _continue(self, seconds: float) -> None:
        """Let the workers continue whose time is over."""
        over = [stopped for stopped in self._stopped if stopped.until <= seconds]
        for stopped in over:
            self._stopped.remove(stopped)
            stopped.process.send(signal.SIGCONT)
            self._report("continue", f"{stopped.process.label}, pid {stopped.process.pid}")
            stopped.process.close()

    def _put_back(self, slots: int) -> None:
        self._target.update()
        if not self._target.is_over and self._target.slots() != slots:
            self._set_slots("restore", slots, f"{slots} slots, as before")

    def _set_slots(self, kind: str, slots: int, message: str) -> None:
        try:
            self._target.set_slots(slots)
        except ConfigError as error:  # A limit of the ring, or the job ended just now.
            self._report(kind, str(error).partition(". ")[0], is_done=False)
        else:
            self._report(kind, message)
