"""Snapshots of a job for the page: their sources, and the bounded history behind them."""

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple, Protocol

from edl_horovod.config.schema import JobConfig
from edl_horovod.displays.text import local_state, notable
from edl_horovod.errors import ClusterError, ConfigError, EdlError, ObjectNotFound
from edl_horovod.job.account import Account, RankAccount
from edl_horovod.job.directory import JobDir
from edl_horovod.job.events import (
    AccountEvent,
    CheckpointEvent,
    EvaluationEvent,
    Recorded,
    StepEvent,
    SummaryEvent,
    Tail,
    WorkerEvent,
)
from edl_horovod.job.pace import Pace, Paces
from edl_horovod.job.resets import Reset, Resets
from edl_horovod.job.state import JobState, TargetDetails, advance
from edl_horovod.job.stops import Stops

NUM_NOTABLE = 20
"""Number of notable events that are kept."""
Point = tuple[float, float]
"""A point of a curve, x and y."""
MAX_POINTS = 400
"""Maximum number of points of a curve, beside the last one."""
_ENDED = ("finished", "failed", "suspended")
"""Those of a launch target's states in which nothing of a job runs any more."""
NOT_FOUND, UNAVAILABLE = 404, 503
MAX_LISTED_POINTS = 50
"""Maximum number of points of a curve in a list of jobs, beside the last one."""
MAX_CHECKPOINTS = 200
"""Number of checkpoints that are kept: the newest ones."""
MAX_MOMENTS = 400
"""Number of accounts of a process that are kept; of more, every other one is removed."""
MAX_ALL_MOMENTS = 4000
"""Number of accounts of all processes of a job that are kept; of more, the longest row is thinned,
and where none is long the first processes have none."""
PAGE_SECONDS = 60.0
"""Time after the last look for a job's page after which a job that is over is only listed."""
MAX_METRICS = 12
"""Number of metrics whose curves are kept."""
LOG_BYTES = 1 << 16
"""Length of the end of a log that is shown."""


class Process(NamedTuple):
    """What is known of one process of a rank."""

    last: RankAccount
    moments: tuple[RankAccount, ...]
    """Its account at each moment at which it wrote one; of many, every other one is left out."""
    end: str
    """How its worker ended, with the cause if it is known; empty where nothing is."""


@dataclass(frozen=True, kw_only=True)
class JobSnapshot:
    """The state of a job at one moment."""

    time: float
    """Time at which all but `problem` was read, in seconds since the epoch."""
    state: JobState | None = None
    """None while nothing is known."""
    details: TargetDetails | None = None
    """The state of the job by its launch target; None if it follows from the events alone."""
    loss: tuple[Point, ...] = ()
    """Loss over steps."""
    speed: tuple[Point, ...] = ()
    """Records per second over steps."""
    metrics: Mapping[str, tuple[Point, ...]] = field(default_factory=dict)
    """The metrics of evaluations over steps, by name."""
    ring: tuple[Point, ...] = ()
    """Size of the ring over seconds since the epoch; one point for each change."""
    processes: tuple[Process, ...] = ()
    """In the order in which they were first heard of."""
    slowest: Pace | None = None
    """The slowest rank; None while it is not known."""
    resets: tuple[Reset, ...] = ()
    """The newest last, as are the checkpoints."""
    checkpoints: tuple[tuple[float, CheckpointEvent], ...] = ()
    notable: tuple[tuple[float, str], ...] = ()
    """Times and texts of notable events, the newest last."""
    logs: tuple[str, ...] = ()
    """Names of the processes with a log, as `Source.log` takes them."""
    began: float | None = None
    """Time of the first event, in seconds since the epoch; None without events."""
    ended: float | None = None
    """Time of the last event of a job that is over, in seconds since the epoch; otherwise None."""
    problem: str = ""
    """The reason why no state, or no newer state, is known."""
    http_status: int = 200

    def listed(self) -> "JobSnapshot":
        """The same with only what a list of jobs and the metrics show."""
        state = None if self.state is None else replace(self.state, stops=Stops(), workers={})
        return JobSnapshot(
            time=self.time,
            state=state,
            details=self.details,
            loss=few(self.loss),
            began=self.began,
            ended=self.ended,
            problem=self.problem,
            http_status=self.http_status,
        )

    @property
    def is_over(self) -> bool:
        """Whether nothing of the job runs any more."""
        # The last launcher may have ended without an event.
        has_ended = self.details is not None and self.details.state in _ENDED
        return has_ended or (self.state is not None and self.state.is_over)


def few(points: tuple[Point, ...]) -> tuple[Point, ...]:
    """The points that a list of jobs shows of a curve."""
    stride = -(-(len(points) - 1) // MAX_LISTED_POINTS) or 1
    return (*points[:-1:stride], *points[-1:]) if points else ()


class Series:
    """Points of a curve; once there are too many, every other one is removed.

    From then on only every second (then fourth, ...) point is kept, so the kept points are spread
    evenly over all that were added. The last point is always kept.
    """

    def __init__(self, max_points: int = MAX_POINTS) -> None:
        """Start without points; at least 2 are kept beside the last one."""
        self._max = max_points
        self._kept: list[Point] = []
        self._last: Point | None = None
        self._stride = 1
        self._num_skipped = 0

    @property
    def points(self) -> tuple[Point, ...]:
        """The kept points in the order in which they were added."""
        if self._last is None or self._kept[-1] == self._last:
            return tuple(self._kept)
        return (*self._kept, self._last)

    def add(self, x: float, y: float) -> None:
        """Add a point."""
        self._last = (x, y)
        if self._kept and self._num_skipped + 1 < self._stride:
            self._num_skipped += 1
            return
        self._num_skipped = 0
        self._kept.append(self._last)
        if len(self._kept) > self._max:
            if len(self._kept) % 2 == 0:
                self._num_skipped = self._stride  # The last one is removed, too.
            self._kept = self._kept[::2]
            self._stride *= 2

    def rewind(self, x: float) -> None:
        """Remove the points from `x` on, because the job continues from an earlier step."""
        if self._last is not None and self._last[0] >= x:
            self._kept = [point for point in self._kept if point[0] < x]
            self._last = self._kept[-1] if self._kept else None
            self._num_skipped = 0


class History:
    """Accumulates a job's events in bounded memory, however long the job runs."""

    def __init__(self) -> None:
        self.state = JobState()
        self.notable: deque[tuple[float, str]] = deque(maxlen=NUM_NOTABLE)
        self.is_ours = False
        """Whether one of our launchers has written some of the events."""
        self.last_time: float | None = None
        """When the last event was written."""
        self._began: float | None = None
        self._loss, self._speed, self._ring = Series(), Series(), Series()
        self._metrics: dict[str, Series] = {}
        self._paces = Paces()
        self._moments: dict[tuple[str, int, float], list[RankAccount]] = {}
        self._num_moments = 0
        self._ends: dict[tuple[str, int, float], str] = {}
        self._resets = Resets()
        self._checkpoints: deque[tuple[float, CheckpointEvent]] = deque(maxlen=MAX_CHECKPOINTS)

    def add(self, recorded: Recorded) -> None:
        """Add the next event."""
        time, source, event = recorded
        state = advance(self.state, recorded)
        self._paces.add(recorded)
        self._resets.add(recorded)
        match event:
            case StepEvent():
                self._add_step(event)
            case EvaluationEvent():
                self._add_metrics(event)
            case AccountEvent():
                self._add_moment(state.account, (source, event.pid, event.began))
            case WorkerEvent(state="left" | "lost" | "returned" | "failed" | "hung"):
                self._add_end(state.account, event)
            case CheckpointEvent():
                self._checkpoints.append((time, event))
        if state.size != self.state.size:
            self._ring.add(time, state.size)
        if text := notable(event):
            self.notable.append((time, text))
        self.state = state
        # A rank that hangs writes accounts, too, and the launcher summaries when it reads them.
        if not isinstance(event, AccountEvent | SummaryEvent):
            self.last_time = time
        self._began = time if self._began is None else self._began
        self.is_ours = self.is_ours or source == "launcher"

    def snapshot(self, state: JobState, details: TargetDetails | None = None) -> JobSnapshot:
        """What is known now.

        Args:
            state: The job's state, which may know more than the events.
            details: What its launch target tells; None where it tells nothing.
        """
        snapshot = JobSnapshot(
            time=time.time(),
            state=state,
            details=details,
            loss=self._loss.points,
            speed=self._speed.points,
            metrics={name: series.points for name, series in self._metrics.items()},
            ring=self._ring.points,
            processes=tuple(self._processes(state.account)),
            slowest=self._paces.slowest,
            # The first ring of a job is no reset for people.
            resets=tuple(reset for reset in self._resets.newest if not reset.is_first),
            checkpoints=tuple(self._checkpoints),
            notable=tuple(self.notable),
            began=self._began,
        )
        return replace(snapshot, ended=self.last_time if snapshot.is_over else None)

    def _add_step(self, event: StepEvent) -> None:
        for series, value in ((self._loss, event.loss), (self._speed, event.records_per_second)):
            series.rewind(event.step)
            if value is not None:
                series.add(event.step, value)

    def _add_metrics(self, event: EvaluationEvent) -> None:
        for name, value in event.metrics.items():
            if name in self._metrics or len(self._metrics) < MAX_METRICS:
                series = self._metrics.setdefault(name, Series())
                series.rewind(event.step)
                series.add(event.step, value)

    def _add_moment(self, account: Account, process: tuple[str, int, float]) -> None:
        newest = account.processes.get(process)
        if newest is None:  # Its numbers were not sound.
            return
        moments = self._moments.setdefault(process, [])
        moments.append(newest)
        self._num_moments += 1
        if len(moments) > MAX_MOMENTS:
            self._thin(process)
        elif self._num_moments > MAX_ALL_MOMENTS:
            self._thin(max(self._moments, key=lambda it: len(self._moments[it])))

    def _thin(self, process: tuple[str, int, float]) -> None:
        """Remove every other account of a process but its ends, or else all of the first one."""
        moments = self._moments[process]
        before = len(moments)
        del moments[1:-1:2]
        self._num_moments -= before - len(moments)
        if before == len(moments):
            self._num_moments -= len(self._moments.pop(next(iter(self._moments))))

    def _add_end(self, account: Account, event: WorkerEvent) -> None:
        newest = next((it for it in reversed(account.ranks) if it.worker == event.worker), None)
        if newest is None:
            return
        if event.state == "returned":
            self._ends.pop(newest.process, None)
        # A connection is missed first; what its process' end was is known a little later.
        elif newest.process not in self._ends or ": " not in self._ends[newest.process]:
            cause = event.message.partition(". ")[0]
            self._ends[newest.process] = f"{event.state}: {cause}" if cause else event.state

    def _processes(self, account: Account) -> Iterator[Process]:
        for rank in account.ranks:
            moments = self._moments.get(rank.process, ())
            yield Process(rank, tuple(moments), self._ends.get(rank.process, ""))


class Source(Protocol):
    """A job of which snapshots can be taken."""

    name: str
    """The name of the job on the page."""
    look_seconds: float
    """Time between two snapshots for a display that shows the job live."""

    def snapshot(self) -> JobSnapshot:
        """The current state of the job, or the problem that hides it."""

    def config(self) -> JobConfig:
        """The job's resolved settings; raises an EdlError if they cannot be read."""

    def log(self, process: str) -> str:
        """The end of a process' log; raises an EdlError or OSError if it cannot be read."""


class DirectorySource:
    """A job in a directory of this machine."""

    look_seconds = 0.5

    def __init__(self, job_dir: JobDir) -> None:
        """Open the source without reading; the directory need not exist yet."""
        self.name = str(job_dir)
        self._job_dir = job_dir
        self._path = job_dir.events
        self._lock = threading.Lock()
        self._shown_at = float("-inf")
        """When a whole snapshot was taken, in seconds of `time.monotonic`."""
        self._forget()
        self._last: tuple[object, JobSnapshot] | None = None
        self._config: tuple[object, JobConfig] | None = None

    def snapshot(self) -> JobSnapshot:
        """Take a snapshot of the job; nothing is read while no file has changed."""
        return self._look(is_whole=True)

    def overview(self) -> JobSnapshot:
        """Take one for a list of jobs, which may have no more than `JobSnapshot.listed`.

        All else is forgotten of a job that is over, until its page is shown, or a file changes.
        """
        return self._look(is_whole=False)

    def _look(self, *, is_whole: bool) -> JobSnapshot:
        now = time.monotonic()
        try:
            with self._lock:
                if is_whole:
                    self._shown_at = now
                is_running = self._job_dir.is_running()
                job_dir = self._job_dir
                files = (self._path, job_dir.config, job_dir.result, job_dir.logs)
                version = (is_running, *map(_version, files))
                is_missing = is_whole and self._is_forgotten
                if self._last is None or self._last[0] != version or is_missing:
                    self._last = version, self._take(is_running=is_running)
                last = self._last[1]
                if last.is_over:
                    if not self._is_forgotten and now - self._shown_at >= PAGE_SECONDS:
                        last = last.listed()
                        self._last = version, last
                        self._forget()
                elif not self._history.is_ours:  # It says how old the last event is.
                    self._last = None
        except ConfigError as error:
            return JobSnapshot(time=time.time(), problem=str(error), http_status=NOT_FOUND)
        except OSError as error:
            problem = f"The job's directory cannot be read: {error}"
            return JobSnapshot(time=time.time(), problem=problem, http_status=UNAVAILABLE)
        return replace(last, time=time.time())

    def config(self) -> JobConfig:
        """The settings in the directory, which are read again if they have changed."""
        version, last = _version(self._job_dir.config), self._config
        if last is None or last[0] != version:
            last = self._config = version, self._job_dir.read_config()
        return last[1]

    def log(self, process: str) -> str:
        """Read the end of a log."""
        with (self._job_dir.logs / f"{process}.log").open("rb") as stream:
            size = stream.seek(0, os.SEEK_END)
            stream.seek(max(0, size - LOG_BYTES))
            return stream.read(LOG_BYTES).decode(errors="replace")

    def _forget(self) -> None:
        self._tail, self._history = Tail(self._path), History()
        self._is_forgotten = True

    def _take(self, *, is_running: bool) -> JobSnapshot:
        self._read()
        history = self._history
        state = local_state(
            self._job_dir,
            history.state,
            is_ours=history.is_ours,
            is_running=is_running,
            last_time=history.last_time,
        )
        logs = {path.stem for path in self._job_dir.logs.glob("*.log")}
        ordered = sorted(logs, key=lambda name: (name != "launcher", name))
        return replace(history.snapshot(state), logs=tuple(ordered))

    def _read(self) -> None:
        """Read new events; start from the beginning if the directory has a new job."""
        if self._tail.begins_again():
            self._history = History()
        for recorded in self._tail.new_events():
            self._history.add(recorded)
        self._is_forgotten = False


def _version(file: Path) -> tuple[int, ...]:
    """What changes whenever a file does; empty where there is no file."""
    try:
        stat = file.stat()
    except (FileNotFoundError, NotADirectoryError):
        return ()
    return stat.st_ino, stat.st_size, stat.st_mtime_ns


class DetachedSource:
    """A job that runs elsewhere; the last snapshot stays while that place is unreachable."""

    look_seconds = 5.0

    def __init__(
        self,
        name: str,
        details: Callable[[], TargetDetails],
        events: Callable[[], Iterable[Recorded]],
        config: Callable[[], JobConfig],
        log: Callable[[str], Iterable[str]],
    ) -> None:
        """Open the source without a request.

        Args:
            name: The name of the job.
            details: Asks the launch target for what it tells of the job.
            events: Reads the job's events.
            config: Reads the job's resolved settings.
            log: Reads the last lines of a log, by the first cell of a row of the details.
        """
        self.name = name
        self._details, self._events, self._config, self._log = details, events, config, log
        self._last = JobSnapshot(time=time.time())

    def snapshot(self) -> JobSnapshot:
        """Take a snapshot of the job."""
        try:
            details = self._details()
            state = self._last.state or JobState()
            self._last = replace(self._last, time=time.time(), state=state, details=details)
            history = History()
            for recorded in self._events():
                history.add(recorded)
            state = with_task(history.state, self._config)
            logs = tuple(row[0] for row in details.rows)
            self._last = replace(history.snapshot(state, details), logs=logs)
        except ObjectNotFound as error:
            self._last = JobSnapshot(time=time.time(), problem=str(error), http_status=NOT_FOUND)
        except ClusterError as error:
            return replace(self._last, problem=str(error), http_status=UNAVAILABLE)
        return self._last

    def config(self) -> JobConfig:
        """Ask for the settings."""
        return self._config()

    def log(self, process: str) -> str:
        """Ask for the last lines of a log."""
        return "\n".join(self._log(process))[-LOG_BYTES:]


def with_task(state: JobState, config: Callable[[], JobConfig]) -> JobState:
    """The state with the task of the settings, if only later events than the first were read.

    Args:
        state: The state from the job's events.
        config: Reads the job's settings.
    """
    if state.task or state == JobState():  # Without an event, the job has not started.
        return state
    with suppress(EdlError):  # All else can be shown without the settings.
        return replace(state, task=config().task)
    return state
