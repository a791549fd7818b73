"""Carries out a chaos schedule on a running job, reverts its changes, and computes the cost."""

import signal
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from edl_horovod.chaos.schedule import Action
from edl_horovod.chaos.target import HeldProcess, Target
from edl_horovod.errors import ConfigError
from edl_horovod.job import events
from edl_horovod.job.directory import JobDir
from edl_horovod.job.events import Recorded, ResetEvent, StepEvent, WorkerEvent
from edl_horovod.launch import target as targets
from edl_horovod.launch.local_jobs import LocalJobs

__all__ = ["ActionResult", "Cost", "check_disturbable", "cost_of", "disturb", "disturb_job"]

LEAST_SECONDS = 1.0
"""The shortest time from which a rate is computed."""
POLL_SECONDS = 0.1


@dataclass(frozen=True, kw_only=True)
class Cost:
    """The job's speed before the first action and after it."""

    quiet_seconds: float
    """From the last reset before the first action to that action."""
    quiet_records_per_second: float | None
    """None if the quiet time was too short to measure."""
    disturbed_seconds: float
    disturbed_records_per_second: float | None
    goodput: float | None
    """The disturbed records per second divided by the quiet ones."""
    num_resets: int
    median_reset_seconds: float | None
    max_reset_seconds: float | None
    num_lost_workers: int


def cost_of(events: Sequence[Recorded], *, first: float, last: float) -> Cost:
    """Compare the time between two moments with the time before.

    Args:
        events: The job's events, oldest first.
        first: Time of the first action, in seconds since the epoch.
        last: Time at which the disturbance or the job ended.
    """
    before = [recorded for recorded in events if recorded.time < first]
    during = [recorded for recorded in events if first <= recorded.time <= last]
    reset_at = max((r.time for r in before if isinstance(r.event, ResetEvent)), default=0.0)
    quiet = _points(recorded for recorded in before if recorded.time >= reset_at)
    # From the last step before the first action to the very end, so that a final stall counts.
    steps = _points(during)
    disturbed = [*quiet[-1:], *steps, *((last, steps[-1][1]) for _ in steps[-1:])]
    quiet_rate, disturbed_rate = _rate(quiet), _rate(disturbed)
    resets = [event.seconds for _, _, event in during if isinstance(event, ResetEvent)]
    workers = [event for _, _, event in during if isinstance(event, WorkerEvent)]
    return Cost(
        quiet_seconds=round(_seconds(quiet), 2),
        quiet_records_per_second=quiet_rate,
        disturbed_seconds=round(max(0.0, last - first), 2),
        disturbed_records_per_second=disturbed_rate,
        goodput=round(disturbed_rate / quiet_rate, 4) if quiet_rate and disturbed_rate else None,
        num_resets=len(resets),
        median_reset_seconds=statistics.median(resets) if resets else None,
        max_reset_seconds=max(resets, default=None),
        num_lost_workers=sum(worker.state == "lost" for worker in workers),
    )


def _points(events: Iterable[Recorded]) -> list[tuple[float, int]]:
    """Return the times of the steps, and the records seen by then."""
    return [(time, event.records_seen) for time, _, event in events if isinstance(event, StepEvent)]


def _seconds(points: Sequence[tuple[float, int]]) -> float:
    return points[-1][0] - points[0][0] if points else 0.0


def _rate(points: Sequence[tuple[float, int]]) -> float | None:
    seconds = _seconds(points)
    if seconds < LEAST_SECONDS:
        return None
    return round((points[-1][1] - points[0][1]) / seconds, 1)


@dataclass(frozen=True, kw_only=True)
class ActionResult:
    """The result of one action."""

    time: float
    """Seconds since the epoch."""
    seconds: float
    """Seconds after the start of the schedule."""
    kind: str
    """The action in the schedule; `continue` and `restore` for its reversal."""
    is_done: bool
    """False if the action was skipped."""
    message: str


def check_disturbable(job_dir: JobDir) -> None:
    """Refuse a job that cannot be disturbed.

    Raises:
        ConfigError: The ring of the job is static, or the job does not run.
    """
    kind = job_dir.read_config().launch.kind
    if not targets.find(kind).is_elastic:
        raise ConfigError(
            "A static ring does not survive chaos.",
            received=f"launch.kind={kind}",
            hint="Start the job with launch=local.",
        )
    if not job_dir.is_running():
        raise ConfigError(
            "The job is not running, so it cannot be disturbed.",
            received=repr(str(job_dir)),
            hint=f"See edl status {job_dir}.",
        )


def disturb_job(
    job_dir: JobDir,
    schedule: Sequence[Action],
    *,
    seconds: float = 0.0,
    on_action: Callable[[ActionResult], None] = lambda _: None,
) -> tuple[list[ActionResult], Cost]:
    """Carry out a schedule on a running job of this machine.

    Returns:
        The result of each action, and the cost of the disturbance.
    """
    began, jobs, name = time.time(), LocalJobs(), str(job_dir)
    target = Target(
        job_dir,
        slots=lambda: jobs.slots(name),
        set_slots=lambda slots: jobs.scale(name, slots),
    )
    results = disturb(target, schedule, seconds=seconds, on_action=on_action)
    recorded = events.read(job_dir.events)
    last = recorded[-1].time if target.is_over else time.time()
    first = min((r.time for r in results if r.is_done), default=began)
    return results, cost_of(recorded, first=first, last=last)


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
        seconds: Minimum duration, even if the last action comes earlier.
        on_action: Called with the result of each action.

    Returns:
        The results in order.
    """
    return _Disturbance(target, on_action).run(schedule, seconds)


@dataclass(frozen=True)
class _StoppedProcess:
    process: HeldProcess
    until: float
    """Seconds after the start of the schedule."""


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
            self._restore_slots(slots)
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
            self._report("coordinator", "the job has none now", is_done=False)
            return
        process.send(signal.SIGKILL)
        self._report("coordinator", f"pid {process.pid}")
        process.close()

    def _scale(self, kind: str) -> None:
        before = self._target.slots()
        after = before + (1 if kind == "add" else -1)
        if kind == "remove" and not any(slot < after for slot in self._target.ring()):
            message = f"no worker of the ring would be left without slot {after}"
            self._report(kind, message, is_done=False)
            return
        self._set_slots(kind, after, f"{before} -> {after} slots")

    def _continue(self, seconds: float) -> None:
        """Continue the stopped workers whose time is over."""
        over = [stopped for stopped in self._stopped if stopped.until <= seconds]
        for stopped in over:
            self._stopped.remove(stopped)
            stopped.process.send(signal.SIGCONT)
            self._report("continue", f"{stopped.process.label}, pid {stopped.process.pid}")
            stopped.process.close()

    def _restore_slots(self, slots: int) -> None:
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
