"""Members that die or hang while a ring of ours forms, or just before."""

import os
import signal
import time

from benchmarks.elastic import stamps
from benchmarks.elastic.driven_job import DrivenJob, driven_job
from benchmarks.elastic.ring_events import SURVIVOR
from benchmarks.elastic.settings import OURS, PLAIN, Run
from benchmarks.elastic.table import Line

__all__ = ["measure"]

DELAYS = (0.0, 0.002, 0.005, 0.01, 0.02)
"""Into the forming, in seconds: before, within and after Gloo's connecting."""
BEFORE_SECONDS = 0.5
DEATH_SECONDS = 3.0
HANG_SECONDS = 12.0
NEWCOMER = 1
PATCHED = "with the Horovod that we build it raises; as released all survivors abort"


def measure(run: Run) -> list[Line]:
    """Let newcomer after newcomer fail in its forming, then members that wait outside hang.

    Args:
        run: Holds the records.

    Raises:
        SideFailed: The job failed, or an event did not show in time.
    """
    deaths, hangs = [], []
    with driven_job(run, "forming", slots=1) as job:
        job.wait_for_ring(1, after=0)
        time.sleep(run.settings.settle_seconds)
        for number in range(run.settings.num_events):
            delay = DELAYS[number % len(DELAYS)]
            deaths.append(_strike(job, signal.SIGKILL, delay, DEATH_SECONDS))
        for _ in range(run.settings.num_events):
            hangs.append(_strike(job, signal.SIGSTOP, 0.0, HANG_SECONDS))
            job.send(NEWCOMER, signal.SIGKILL)
        num_lost = stamps.num_redone(job.stamps(SURVIVOR))
    event = "a member {} while the ring forms"
    return [
        Line(
            event=event.format("dies"),
            side=OURS,
            values=tuple(deaths),
            most_median=0.4,
            most=1.0,
            detail=f"{num_lost} completed steps lost",
        ),
        Line(
            event=event.format("hangs (SIGSTOP)"),
            side=OURS,
            values=tuple(hangs),
            most=6.0,
            detail="elastic.forming_seconds=5",
        ),
        Line(
            event="a member hangs before the forming",
            side=OURS,
            values=tuple(_not_invited(run)),
            most_median=1.1,
            detail="a warm worker is stopped, another killed; to reach: 1 s for a sign of life",
        ),
        Line(event=event.format("dies or hangs"), side=PLAIN, detail=PATCHED),
    ]


def _strike(job: DrivenJob, number: signal.Signals, delay: float, seconds: float) -> float:
    """A newcomer does this to itself in its forming; how long the survivor stood still."""
    job.order(NEWCOMER, number, delay)
    job.want(2)
    obeyed: list[float] = []

    def has_obeyed() -> bool:
        at = job.obeyed(NEWCOMER)
        obeyed.extend([] if at is None else [at])
        return at is not None

    job.wait_for(has_obeyed, "a newcomer that forms a ring")
    at = obeyed[0]

    def is_back() -> bool:
        """Whether the survivor trains alone again; a newcomer may be in its ring meanwhile."""
        steps = [stamp for stamp in job.stamps(SURVIVOR) if stamp.at > at + delay]
        return len(steps) > 2 and steps[-1].size == 1

    time.sleep(delay)
    job.wait_for(is_back, "the survivor's next step", seconds)
    until = time.monotonic()
    return stamps.stall(job.stamps(SURVIVOR), at - BEFORE_SECONDS, until)


def _not_invited(run: Run) -> list[float]:
    """A worker that waits warm outside the ring is stopped when its place becomes free."""
    found = []
    with driven_job(run, "not-invited", slots=2, max_ranks=2) as job:
        job.wait_for_ring(2, after=0)
        job.want(3)
        job.wait_for(lambda: job.num_warm() >= 3, "three warm workers")
        for number in range(run.settings.num_events):
            job.wait_for(
                lambda number=number: job.num_warm() >= 3 + number and len(job.members()) == 2,
                "a ring of two and a warm worker outside",
            )
            time.sleep(run.settings.settle_seconds)
            (member,) = set(job.members()) - {SURVIVOR}
            (outside,) = {0, 1, 2} - set(job.members())
            stopped = job.pid(outside)
            since, generation = time.monotonic(), job.generation()
            os.kill(stopped, signal.SIGSTOP)
            job.send(member, signal.SIGKILL)
            found.append(_stall_of_change(job, since, after=generation))
            os.kill(stopped, signal.SIGCONT)
    return found


def _stall_of_change(job: DrivenJob, since: float, *, after: int) -> float:
    """The survivor's stall until the next ring trains, of whatever size.

    A slot that was killed may be warm again before a stopped worker is given up.
    """

    def steps_since(at: float) -> int:
        return sum(stamp.at > at for stamp in job.stamps(SURVIVOR))

    def is_formed() -> bool:
        found = job.events("generation")
        return any(
            recorded.event.is_formed and recorded.event.generation > after for recorded in found
        )

    job.wait_for(is_formed, f"a ring after generation {after}")
    formed_at = time.monotonic()
    job.wait_for(lambda: steps_since(formed_at) > 2, "the survivor's next steps")
    return stamps.stall(job.stamps(SURVIVOR), since - BEFORE_SECONDS, time.monotonic())
