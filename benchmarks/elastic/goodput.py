"""Records of 120 seconds with an event every 10, against what the same slots do undisturbed."""

import signal
import time
from dataclasses import dataclass

from benchmarks.elastic import stamps
from benchmarks.elastic.driven_job import DrivenJob, driven_job
from benchmarks.elastic.settings import OURS, Run
from benchmarks.elastic.table import Line

__all__ = ["Wanted", "ideal_steps", "measure"]

EVERY_SECONDS = 10.0
SURVIVOR = 0
OTHER = 1


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """From when on how many slots are there."""

    at: float
    slots: int


def ideal_steps(wanted: list[Wanted], end: float, rates: dict[int, float]) -> float:
    """Steps that undisturbed rings of the slots that were there would have done.

    Args:
        wanted: In order of time; the first begins the span.
        end: Of the span.
        rates: Steps a second of an undisturbed ring, by its size.
    """
    ends = [*(change.at for change in wanted[1:]), end]
    return sum(
        rates[change.slots] * (until - change.at)
        for change, until in zip(wanted, ends, strict=True)
    )


Rows = list[tuple[float, float, int]]
"""Steps a second and the ring's size over time, for a picture."""


@dataclass(frozen=True, kw_only=True)
class _Measured:
    """One job."""

    percent: float
    steps: float
    rates: dict[int, float]
    """Undisturbed steps a second, by the ring's size."""
    rows: Rows


def measure(run: Run) -> tuple[list[Line], Rows]:
    """Measure several jobs, each undisturbed and disturbed.

    Args:
        run: Holds the records.

    Returns:
        The line, and the last job's course.

    Raises:
        SideFailed: A job failed.
    """
    settings = run.settings
    jobs = [_measure_job(run) for _ in range(settings.num_goodput_jobs)]
    last = jobs[-1]
    line = Line(
        event=f"goodput over {settings.goodput_seconds:.0f} s, an event every 10 s",
        side=OURS,
        values=tuple(job.percent for job in jobs),
        unit="%",
        least_median=97.0,
        detail=f"the last: {last.steps:.0f} steps; undisturbed {last.rates[1]:.1f} a second on 1 "
        f"slot, {last.rates[2]:.1f} on 2; with one spare worker; a slot counts from when it is "
        "given; new workers start on the ring's cores",
    )
    return [line], last.rows


def _measure_job(run: Run) -> _Measured:
    """Measure rings of one and two undisturbed, then kill, take away and give back in turn."""
    settings = run.settings
    rates = {}
    with driven_job(run, "goodput", slots=1, backoff_seconds=1.0, spares=1) as job:
        for slots in (1, 2):
            if slots > 1:
                job.want(slots)
            job.wait_for_ring(slots, after=0)
            job.wait_for(lambda slots=slots: job.num_warm() > slots, "the spare worker")
            time.sleep(settings.settle_seconds)
            began = time.monotonic()
            time.sleep(settings.undisturbed_seconds)
            rates[slots] = stamps.steps_per_second(job.all_stamps(), began, time.monotonic())
        began = time.monotonic()
        wanted = _disturb(job, began, settings.goodput_seconds)
        end = time.monotonic()
        all_stamps = job.all_stamps()
    done = stamps.steps_per_second(all_stamps, began, end) * (end - began)
    return _Measured(
        percent=100 * done / ideal_steps(wanted, end, rates),
        steps=done,
        rates=rates,
        rows=stamps.rate_over_time(all_stamps, began, end, every=1.0),
    )


def _disturb(job: DrivenJob, began: float, seconds: float) -> list[Wanted]:
    """Kill, take the slot away, give it back, and so on; returns what slots there were."""
    wanted = [Wanted(at=began, slots=2)]
    for number in range(int(seconds / EVERY_SECONDS)):
        _sleep_until(began + (number + 0.5) * EVERY_SECONDS)
        event = number % 3
        if event == 0:
            # One of the ring; on a machine too slow for its starts, one that gets warm.
            others = [slot for slot in job.members() if slot != SURVIVOR] or [OTHER]
            job.send(others[0], signal.SIGKILL)
            continue
        slots = 1 if event == 1 else 2
        job.want(slots)
        wanted.append(Wanted(at=time.monotonic(), slots=slots))
    _sleep_until(began + seconds)
    return wanted


def _sleep_until(at: float) -> None:
    time.sleep(max(0.0, at - time.monotonic()))
