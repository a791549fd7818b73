"""What the page shows of a job at one moment, and the history that this is computed from."""

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from edl_horovod.displays.page.series import Point, Series
from edl_horovod.displays.text import notable
from edl_horovod.job.events import Recorded, StepEvent
from edl_horovod.job.state import JobState, advance

if TYPE_CHECKING:
    from edl_horovod.cluster.status import JobView

__all__ = ["History", "Look"]

NUM_NOTABLE = 20


@dataclass(frozen=True, kw_only=True)
class Look:
    """A job at one moment."""

    time: float
    """When everything but `trouble` was read, in seconds since the epoch."""
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
    """When the last was heard of a job that is over, in seconds since the epoch; else None."""
    trouble: str = ""
    """Why no state, or no newer state, is known."""
    http_status: int = 200


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
        """Take one more event."""
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
