"""The cost of a disturbance, computed from the job's events."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from edl_horovod.job.events import Recorded, ResetEvent, StepEvent, WorkerEvent

__all__ = ["Cost", "cost_of"]

LEAST_SECONDS = 1.0
"""Shorter times give no rate."""


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
