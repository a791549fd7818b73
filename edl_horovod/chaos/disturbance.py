"""Carries out a chaos schedule on a running job, reverts its changes, and computes the cost."""

import contextlib
import itertools
import os
import signal
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from edl_horovod.chaos.schedule import Action
from edl_horovod.errors import ConfigError
from edl_horovod.job import events
from edl_horovod.job.directory import JobDir
from edl_horovod.job.events import Recorded, ResetEvent, StepEvent, WorkerEvent
from edl_horovod.launch import target as targets
from edl_horovod.launch.local_jobs import LocalJobs

LEAST_SECONDS = 1.0
"""The shortest time from which a rate is computed."""
POLL_SECONDS = 0.1
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
        self._new_events = events.follow(job_dir.events)
        self._started: dict[str, tuple[int, float]] = {}
        self._ring: tuple[int, ...] = ()
        self.set_slots = set_slots
        self.slots = slots
        self.is_over = False
        self.update()

    def update(self) -> None:
        """Read the events since the last call."""
        while new_events := next(self._new_events):
            for recorded in new_events:
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

    def _note(self, recorded: events.Recorded) -> None:
        match recorded.event:
            case events.WorkerEvent(state="started", worker=worker, pid=int(pid)):
                self._started[worker] = (pid, recorded.time)
            case events.CoordinatorEvent(pid=pid):
                self._started["coordinator"] = (pid, recorded.time)
            case events.GenerationEvent(is_formed=True, members=members):
                here = [name.rpartition(":") for name in members]
                self._ring = tuple(sorted(int(slot) for host, _, slot in here if host == _HOST))
            case events.JobEvent(state="finished" | "failed"):
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
    import psutil  # Every environment that can run a worker has it.

    try:
        process = psutil.Process(pid)
        words, folder, started_at = process.cmdline(), process.cwd(), process.create_time()
    except psutil.Error:
        return False
    values = [after for word, after in itertools.pairwise(words) if word == option]
    is_ours = any(Path(folder, word).resolve() == value for word in values)
    return is_ours and reported_at - EARLY_SECONDS < started_at < reported_at + LATE_SECONDS


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
    states = [event.state for _, _, event in during if isinstance(event, WorkerEvent)]
    return Cost(
        quiet_seconds=round(_seconds(quiet), 2),
        quiet_records_per_second=quiet_rate,
        disturbed_seconds=round(max(0.0, last - first), 2),
        disturbed_records_per_second=disturbed_rate,
        goodput=round(disturbed_rate / quiet_rate, 4) if quiet_rate and disturbed_rate else None,
        num_resets=len(resets),
        median_reset_seconds=statistics.median(resets) if resets else None,
        max_reset_seconds=max(resets, default=None),
        num_lost_workers=max(0, states.count("lost") - states.count("returned")),
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
        job_dir, slots=lambda: jobs.slots(name), set_slots=lambda slots: jobs.scale(name, slots)
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


class _Disturbance:
    def __init__(self, target: Target, on_action: Callable[[ActionResult], None]) -> None:
        self._target = target
        self._on_action = on_action
        self._began = time.monotonic()
        self._stopped: dict[HeldProcess, float] = {}
        """Stopped workers, and until when: seconds after the start of the schedule."""
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
        now, seconds = time.time(), round(self._seconds(), 2)
        result = ActionResult(
            time=now, seconds=seconds, kind=kind, is_done=is_done, message=message
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
            self._stopped[process] = self._seconds() + action.seconds
            self._report("stop", f"{process.label}, pid {process.pid}, for {action.seconds:g} s")

    def _choose(self, action: Action) -> int | None:
        stopped = {process.label for process in self._stopped}
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
        for process in [held for held, until in self._stopped.items() if until <= seconds]:
            del self._stopped[process]
            process.send(signal.SIGCONT)
            self._report("continue", f"{process.label}, pid {process.pid}")
            process.close()

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
