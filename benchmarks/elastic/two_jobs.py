"""Two jobs that each want two of three slots: one after the other, or elastic, side by side.

The experiment of ElasticDL's report (docs/benchmark/allreduce/report.md in its repository), in
small. A step waits as for an accelerator of its own, 60 ms on one rank and 30 on each of two: three
ranks that compute would share two cores, and no scheduler could gain from that.
"""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field

from benchmarks.elastic import stamps
from benchmarks.elastic.driven_job import DrivenJob, driven_job
from benchmarks.elastic.settings import OURS, Run
from benchmarks.elastic.table import Line

__all__ = ["Makespan", "measure"]

DEVICE_SECONDS = 0.06
SLOTS = 3
WANTED = 2
BOUND_SECONDS = 240.0
SHORTER_PERCENT = 16.0
"""What ElasticDL's report has: 809 s against 968 s."""

Rows = list[tuple[float, float, int]]


@dataclass(kw_only=True)
class Makespan:
    """How one of the two ways went."""

    name: str
    seconds: float
    jobs: list[Rows] = field(default_factory=list)
    """Of each job: time, steps a second, ring size."""


def measure(run: Run) -> tuple[list[Line], list[Makespan]]:
    """Run both ways.

    Args:
        run: Holds the records.

    Returns:
        The lines, and both ways over time, for a picture.

    Raises:
        SideFailed: A job failed.
    """
    gang, elastic = _timed(run, "gang", _gang), _timed(run, "elastic", _elastic)
    shorter = 100 * (1 - elastic.seconds / gang.seconds)
    line = Line(
        event="two jobs on three slots: makespan shorter than gang by",
        side=OURS,
        values=(shorter,),
        unit="%",
        least_median=SHORTER_PERCENT,
        detail=f"{elastic.seconds:.1f} s elastic, {gang.seconds:.1f} s gang",
    )
    return [line], [gang, elastic]


def _timed(run: Run, name: str, way: Callable[[Run], list[DrivenJob]]) -> Makespan:
    began = time.monotonic()
    jobs = way(run)
    end = time.monotonic()
    rows = [stamps.rate_over_time(job.all_stamps(), began, end, every=0.5) for job in jobs]
    return Makespan(name=name, seconds=end - began, jobs=rows)


def _gang(run: Run) -> list[DrivenJob]:
    """The second job waits until two slots are free: until the first one has ended."""
    jobs = []
    for number in range(2):
        with _job(run, f"gang-{number}", WANTED) as job:
            _wait_for_end(run, job)
            jobs.append(job)
    return jobs


def _elastic(run: Run) -> list[DrivenJob]:
    """The second job takes the third slot at once, and one more when the first has ended."""
    with ExitStack() as stack:
        jobs = [
            stack.enter_context(_job(run, f"elastic-{number}", slots))
            for number, slots in enumerate((WANTED, SLOTS - WANTED))
        ]
        _wait_for_end(run, jobs[0])
        jobs[1].want(WANTED)
        _wait_for_end(run, jobs[1])
    return jobs


def _job(run: Run, name: str, slots: int) -> AbstractContextManager[DrivenJob]:
    return driven_job(
        run, name, slots=slots, max_steps=run.settings.job_steps, device_seconds=DEVICE_SECONDS
    )


def _wait_for_end(run: Run, job: DrivenJob) -> None:
    """Wait until its launcher has ended well."""
    run.wait_for(lambda: job.child.exit_code == 0 or None, "the job's end", seconds=BOUND_SECONDS)
