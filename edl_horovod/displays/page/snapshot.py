"""Snapshots of a job for the page, and the bounded history from which they are made."""

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from edl_horovod.displays.text import notable
from edl_horovod.job.events import Recorded, StepEvent
from edl_horovod.job.state import JobState, advance

if TYPE_CHECKING:
    from edl_horovod.cluster.status import JobView

__all__ = ["History", "JobSnapshot", "Point", "Series"]

NUM_NOTABLE = 20
"""Number of notable events that are kept."""
Point = tuple[float, float]
"""A point of a curve, x and y."""
MAX_POINTS = 400
"""Maximum number of points of a curve, beside the last one."""


@dataclass(frozen=True, kw_only=True)
class JobSnapshot:
    """The state of a job at one moment."""

    time: float
    """Time at which all but `problem` was read, in seconds since the epoch."""
    state: JobState | None = None
    """None while nothing is known."""
    job: "JobView | None" = None
    """The job's state in the cluster; None for a job on this machine."""
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
        self.state, self.last_time = state, recorded.time
        self.is_ours = self.is_ours or recorded.source == "launcher"
