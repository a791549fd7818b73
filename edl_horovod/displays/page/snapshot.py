"""Snapshots of a job for the page: their sources, and the bounded history behind them."""

import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Protocol

from edl_horovod.displays.text import local_state, notable
from edl_horovod.errors import ClusterError, ConfigError, ObjectNotFound
from edl_horovod.job.directory import JobDir
from edl_horovod.job.events import AccountEvent, Recorded, StepEvent, Tail
from edl_horovod.job.state import JobState, TargetDetails, advance

NUM_NOTABLE = 20
"""Number of notable events that are kept."""
Point = tuple[float, float]
"""A point of a curve, x and y."""
MAX_POINTS = 400
"""Maximum number of points of a curve, beside the last one."""
_ENDED = ("finished", "failed", "suspended")
"""Those of a launch target's states in which nothing of a job runs any more."""
NOT_FOUND, UNAVAILABLE = 404, 503
_BEGINNING_BYTES = 4096


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
    ring: tuple[Point, ...] = ()
    """Size of the ring over seconds since the epoch; one point for each change."""
    notable: tuple[tuple[float, str], ...] = ()
    """Times and texts of notable events, the newest last."""
    ended: float | None = None
    """Time of the last event of a job that is over, in seconds since the epoch; otherwise None."""
    problem: str = ""
    """The reason why no state, or no newer state, is known."""
    http_status: int = 200

    @property
    def is_over(self) -> bool:
        """Whether nothing of the job runs any more."""
        # The last launcher may have ended without an event.
        has_ended = self.details is not None and self.details.state in _ENDED
        return has_ended or (self.state is not None and self.state.is_over)


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
        self.loss = Series()
        self.ring = Series()
        self.notable: deque[tuple[float, str]] = deque(maxlen=NUM_NOTABLE)
        self.is_ours = False
        """Whether one of our launchers has written some of the events."""
        self.last_time: float | None = None
        """When the last event was written."""

    def add(self, recorded: Recorded) -> None:
        """Add the next event."""
        state = advance(self.state, recorded)
        if isinstance(recorded.event, StepEvent):
            self.loss.rewind(state.step)
            if state.loss is not None:
                self.loss.add(state.step, state.loss)
        if state.size != self.state.size:
            self.ring.add(recorded.time, state.size)
        if text := notable(recorded.event):
            self.notable.append((recorded.time, text))
        self.state = state
        if not isinstance(recorded.event, AccountEvent):  # A rank that hangs writes them, too.
            self.last_time = recorded.time
        self.is_ours = self.is_ours or recorded.source == "launcher"


class Source(Protocol):
    """A job of which snapshots can be taken, one at a time."""

    name: str
    """The name of the job on the page."""

    def snapshot(self) -> JobSnapshot:
        """The current state of the job, or the problem that hides it."""


class DirectorySource:
    """A job in a directory of this machine."""

    def __init__(self, job_dir: JobDir) -> None:
        """Open the source without reading; the directory need not exist yet."""
        self.name = str(job_dir)
        self._job_dir = job_dir
        self._path = job_dir.events
        self._beginning = b""
        self._tail = Tail(self._path)
        self._history = History()

    def snapshot(self) -> JobSnapshot:
        """Take a snapshot of the job."""
        try:
            is_running = self._job_dir.is_running()
            self._read()
            history = self._history
            state = local_state(
                self._job_dir,
                history.state,
                is_ours=history.is_ours,
                is_running=is_running,
                last_time=history.last_time,
            )
        except ConfigError as error:
            return JobSnapshot(time=time.time(), problem=str(error), http_status=NOT_FOUND)
        except OSError as error:
            problem = f"The job's directory cannot be read: {error}"
            return JobSnapshot(time=time.time(), problem=problem, http_status=UNAVAILABLE)
        return snapshot_of(history, state)

    def _read(self) -> None:
        """Read new events; start from the beginning if the directory has a new job."""
        beginning = self._first_line()
        if beginning != self._beginning:
            self._tail, self._history = Tail(self._path), History()
            self._beginning = beginning
        for recorded in self._tail.new_events():
            self._history.add(recorded)

    def _first_line(self) -> bytes:
        """The first line of the file, cut after some bytes; empty until it is complete."""
        try:
            with self._path.open("rb") as stream:
                line = stream.readline(_BEGINNING_BYTES)
        except (FileNotFoundError, NotADirectoryError):
            return b""
        return line if line.endswith(b"\n") or len(line) == _BEGINNING_BYTES else b""


class DetachedSource:
    """A job that runs elsewhere; the last snapshot stays while that place is unreachable."""

    def __init__(
        self,
        name: str,
        details: Callable[[], TargetDetails],
        events: Callable[[], Iterable[Recorded]],
    ) -> None:
        """Open the source without a request.

        Args:
            name: The name of the job.
            details: Asks the launch target for what it tells of the job.
            events: Reads the job's events.
        """
        self.name = name
        self._details, self._events = details, events
        self._last = JobSnapshot(time=time.time())

    def snapshot(self) -> JobSnapshot:
        """Take a snapshot of the job."""
        try:
            details = self._details()
            state = self._last.state or JobState()
            self._last = replace(self._last, time=time.time(), state=state, details=details)
            self._last = _detached_snapshot(self._events(), details)
        except ObjectNotFound as error:
            self._last = JobSnapshot(time=time.time(), problem=str(error), http_status=NOT_FOUND)
        except ClusterError as error:
            return replace(self._last, problem=str(error), http_status=UNAVAILABLE)
        return self._last


def _detached_snapshot(events: Iterable[Recorded], details: TargetDetails) -> JobSnapshot:
    history = History()
    for recorded in events:
        history.add(recorded)
    return snapshot_of(history, history.state, details)


def snapshot_of(
    history: History, state: JobState, details: TargetDetails | None = None
) -> JobSnapshot:
    """The snapshot of a job from its events, its state, and what its launch target tells."""
    snapshot = JobSnapshot(
        time=time.time(),
        state=state,
        details=details,
        loss=history.loss.points,
        ring=history.ring.points,
        notable=tuple(history.notable),
    )
    return replace(snapshot, ended=history.last_time if snapshot.is_over else None)
