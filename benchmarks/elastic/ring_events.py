"""Joins, planned removals and kills in a job of ours."""

import signal
import time
from dataclasses import dataclass, field

from benchmarks.elastic import stamps
from benchmarks.elastic.driven_job import DrivenJob, driven_job
from benchmarks.elastic.settings import HANG_SECONDS, OURS, Run
from benchmarks.elastic.table import Line

__all__ = ["HANG", "measure", "measure_hang", "stall_at_size"]

BEFORE_SECONDS = 0.5
AFTER_SECONDS = 0.5
"""The gap that counts lies so near to the first step of the changed ring; the next change may come
a second later."""
SURVIVOR = 0
OTHER = 1
HANG = "a worker hangs (SIGSTOP): survivor's stall"


@dataclass
class _Found:
    joins: list[float] = field(default_factory=list)
    first_join: float = 0.0
    warm_ups: list[float] = field(default_factory=list)
    leaves: list[float] = field(default_factory=list)
    kills: list[float] = field(default_factory=list)
    num_redone: int = 0


def measure(run: Run) -> list[Line]:
    """Drive one job through all of it.

    Args:
        run: Holds the records.

    Raises:
        SideFailed: The job failed, or an event did not show in time.
    """
    found = _Found()
    with driven_job(run, "events", slots=1) as job:
        job.wait_for_ring(1, after=0)
        time.sleep(run.settings.settle_seconds)
        found.first_join = _join(run, job, found)
        for _ in range(run.settings.num_events):
            killed_at = time.monotonic()
            found.kills.append(_kill(run, job))
            # The slot is filled again, maybe before the ring of one has settled.
            _joined(run, job, found, since=killed_at)
            found.leaves.append(_leave(run, job))
            _join(run, job, found)
        found.num_redone = stamps.num_redone(job.stamps(SURVIVOR))
    warm_up = sorted(found.warm_ups)[len(found.warm_ups) // 2]
    return [
        Line(
            event="a worker joins: survivor's stall",
            side=OURS,
            values=tuple(found.joins),
            most_median=0.12,
            most=0.25,
            detail=f"first join {found.first_join:.3f} s; warm after {warm_up:.1f} s (median)",
        ),
        Line(
            event="kill -9 of a worker: survivor's stall",
            side=OURS,
            values=tuple(found.kills),
            most_median=0.15,
            most=0.4,
        ),
        Line(
            event="completed steps lost or redone, all events",
            side=OURS,
            values=(float(found.num_redone),),
            unit="n",
            most=0.0,
        ),
        Line(
            event="planned removal: survivor's stall",
            side=OURS,
            values=tuple(found.leaves),
            most_median=0.07,
            most=0.15,
        ),
    ]


def measure_hang(run: Run) -> Line:
    """Stop a rank in training; what it costs the other until it is ended.

    Args:
        run: Holds the records.

    Raises:
        SideFailed: The job failed, or the event did not show in time.
    """
    with driven_job(run, "hang", slots=2, stall_seconds=HANG_SECONDS) as job:
        job.wait_for_ring(2, after=0)
        time.sleep(run.settings.settle_seconds)
        since = time.monotonic()
        job.send(OTHER, signal.SIGSTOP)
        stall, _ = stall_at_size(run, job, size=1, since=since)
    return Line(
        event=HANG, side=OURS, values=(stall,), detail=f"elastic.stall_seconds={HANG_SECONDS:.0f}"
    )


def _join(run: Run, job: DrivenJob, found: _Found) -> float:
    since = time.monotonic()
    job.want(2)
    return _joined(run, job, found, since=since)


def _joined(run: Run, job: DrivenJob, found: _Found, *, since: float) -> float:
    """Wait until the other slot's worker is in the ring; what it cost the survivor."""
    stall, at = stall_at_size(run, job, size=2, since=since)
    found.warm_ups.append(at - since)
    found.joins.append(stall)
    return stall


def _leave(run: Run, job: DrivenJob) -> float:
    since = time.monotonic()
    job.want(1)
    return stall_at_size(run, job, size=1, since=since)[0]


def _kill(run: Run, job: DrivenJob) -> float:
    since = time.monotonic()
    job.send(OTHER, signal.SIGKILL)
    return stall_at_size(run, job, size=1, since=since)[0]


def stall_at_size(run: Run, job: DrivenJob, *, size: int, since: float) -> tuple[float, float]:
    """Wait for the survivor's ring to have that size, let it settle, and look back.

    Args:
        run: Says how long to settle.
        job: The job.
        size: That its first slot's worker comes to.
        since: When the event began.

    Returns:
        The stall, and when the first step of that ring ended.
    """
    changed: list[float] = []

    def has_changed() -> bool:
        at = stamps.change_of_size(job.stamps(SURVIVOR), size, since)
        changed.extend([] if at is None else [at])
        return at is not None

    job.wait_for(has_changed, f"the survivor's ring of {size}")
    time.sleep(run.settings.settle_seconds)
    at = changed[0]
    begin = max(since, at - BEFORE_SECONDS)
    return stamps.stall(job.stamps(SURVIVOR), begin, at + AFTER_SECONDS), at
