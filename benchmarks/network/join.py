"""What a join costs a job whose state is large, beside a broadcast of the same state."""

import itertools
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from benchmarks.common import SideFailed
from benchmarks.elastic import settings as elastic
from benchmarks.elastic.driven_job import DrivenJob, driven_job
from benchmarks.elastic.settings import OURS, PLAIN
from benchmarks.elastic.stamps import Stamp
from benchmarks.elastic.table import Line
from benchmarks.network.namespace import Rate, set_rate
from benchmarks.network.results import Failure, Found, guarded
from benchmarks.network.settings import MODELS, NO_LIMIT, NUM_RANKS, RATES, Model, Run

__all__ = ["Join", "join_of", "measure"]

MODEL = MODELS["dense"]
BATCH_SIZE = 32
"""Small, so that a step is mostly its state's: the gradients, and Adam's changes."""
BROADCAST = "benchmarks.peers.broadcast_state"
MOST_ABOVE_BROADCAST = 0.15
MOST_ABOVE_MEDIAN = 0.25
MOST_SLOWER_PERCENT = 25.0
BEFORE_SECONDS = 1.0
WAIT_SECONDS = 300.0
NUM_JOINS = 3
SETTLED_STEPS = 5


@dataclass(frozen=True, kw_only=True)
class Join:
    """What the survivor felt of one join."""

    stall_seconds: float
    """Its longest step less the median one of the join."""
    slower_percent: float
    """How much longer than the median one any other step of the join was."""
    median_percent: float
    """How much longer the median step of the join was than one of the ring in which both work."""
    seconds: float
    """From the begin of the new ring's first step until the newcomer works."""


def measure(run: Run) -> Found:
    """Let a worker join again and again, without a limit and at the slowest rate.

    Args:
        run: Holds the records.
    """
    lines: list[Line] = []
    for rate in (NO_LIMIT, RATES[-1]):
        set_rate(rate)
        try:
            broadcast = guarded(partial(_broadcast, run))()
            joins = guarded(partial(_joins, run))()
        finally:
            set_rate(NO_LIMIT)
        lines += _lines(rate, broadcast, joins)
    return Found(lines=lines)


def join_of(steps: Sequence[Stamp], since: float, works_at: float, size: int) -> Join:
    """What a join did to the steps of the rank that stayed.

    Args:
        steps: Of that rank, in order of time.
        since: When the newcomer was asked for.
        works_at: When it had the state and took part of the work; further steps follow.
        size: Of the new ring.

    Raises:
        ValueError: There are too few steps before, or after.
    """
    gaps = [(two.at, two.at - one.at, two.size) for one, two in itertools.pairwise(steps)]
    before = [gap for at, gap, of in gaps if at < since and of != size][-SETTLED_STEPS * 4 :]
    # The step in which it is seen to work may have begun before.
    after = [gap for at, gap, of in gaps if at > works_at and of == size][1:]
    first = next((at - gap for at, gap, of in gaps if at > since and of == size), None)
    if not before or len(after) < SETTLED_STEPS or first is None:
        raise ValueError(f"too few steps: {len(before)} before, {len(after)} after")
    alone, together = statistics.median(before), statistics.median(after)
    joining = [gap for at, gap, of in gaps if first <= at <= works_at and of == size]
    usual = statistics.median(joining) if len(joining) > SETTLED_STEPS else together
    during = [(gap, usual) for gap in joining]
    during += [
        (gap, alone)
        for at, gap, of in gaps
        if of != size and first - BEFORE_SECONDS < at <= works_at
    ]
    longest = max(during, key=lambda step: step[0] - step[1])
    others = [gap / of_usual - 1 for gap, of_usual in during if (gap, of_usual) != longest]
    return Join(
        stall_seconds=max(0.0, longest[0] - longest[1]),
        slower_percent=100 * max(others, default=0),
        median_percent=100 * (usual / together - 1),
        seconds=works_at - first,
    )


def _broadcast(run: Run) -> list[float]:
    space = run.space(MODEL, total_steps=MODEL.warmup_steps + 1)
    arguments = (f"--spec={MODEL.spec}",)
    numbers = space.run_side(BROADCAST, *arguments, num_ranks=NUM_RANKS, under_horovodrun=True)
    return list(numbers["seconds"])


def _joins(run: Run) -> list[Join]:
    with driven_job(elastic_run(run, MODEL, BATCH_SIZE), "joins", slots=1) as job:
        job.wait_for_ring(1, after=0)
        _wait_for_steps(job, 2 * SETTLED_STEPS)
        return [_join(job) for _ in range(min(NUM_JOINS, 1 + run.settings.repetitions))]


def _join(job: DrivenJob) -> Join:
    since, generation = time.monotonic(), job.generation()
    step = job.stamps(0)[-1].step
    job.want(2)
    job.wait_for_ring(2, after=generation)

    def has_all() -> bool:
        # Until then it has no lanes, and is not counted.
        events = [recorded.event for recorded in job.events("step")]
        return any(event.size == 2 and event.step > step for event in events)

    job.wait_for(has_all, "lanes of the newcomer", seconds=WAIT_SECONDS)
    works_at = time.monotonic()
    _wait_for_steps(job, 2 * SETTLED_STEPS)
    steps = job.stamps(0)
    generation = job.generation()
    job.want(1)
    job.wait_for_ring(1, after=generation)
    _wait_for_steps(job, 2 * SETTLED_STEPS)
    try:
        return join_of(steps, since, works_at, 2)
    except ValueError as error:
        raise SideFailed(f"a join: {error}") from error


def _wait_for_steps(job: DrivenJob, number: int) -> None:
    until = len(job.stamps(0)) + number
    job.wait_for(lambda: len(job.stamps(0)) >= until, f"{number} steps", seconds=WAIT_SECONDS)


def _lines(rate: Rate, broadcast: list[float] | Failure, joins: list[Join] | Failure) -> list[Line]:
    title = f"{MODEL.title}, {rate.name}"
    why = joins.reason if isinstance(joins, Failure) else ""
    found = [] if isinstance(joins, Failure) else joins
    failed = isinstance(broadcast, Failure)
    usual = None if failed else statistics.median(broadcast) + MOST_ABOVE_BROADCAST
    stalls = tuple(join.stall_seconds for join in found)
    stall = f"{title}: a join, survivor's longest step above the median one"
    return [
        Line(
            event=f"{title}: hvd.broadcast_variables of the state",
            side=PLAIN,
            values=() if failed else tuple(broadcast),
            detail=broadcast.reason if failed else "541 MB",
        ),
        Line(event=f"{stall} (in pieces)", side=OURS, values=stalls, most_median=usual, detail=why),
        Line(
            event=f"{stall} (streaming)",
            side=OURS,
            values=stalls,
            most=MOST_ABOVE_MEDIAN,
            detail=why or "the same joins",
        ),
        Line(
            event=f"{title}: a join, any other step above the median one",
            side=OURS,
            values=tuple(join.slower_percent for join in found),
            unit="%",
            most_median=MOST_SLOWER_PERCENT,
            detail=why,
        ),
        Line(
            event=f"{title}: a join, the median step above one after it",
            side=OURS,
            values=tuple(join.median_percent for join in found),
            unit="%",
            most_median=MOST_SLOWER_PERCENT,
            detail=why or "until it has all the newcomer does none of the work",
        ),
        Line(
            event=f"{title}: a join, until the newcomer works",
            side=OURS,
            values=tuple(join.seconds for join in found),
            detail=why,
        ),
    ]


def elastic_run(run: Run, model: Model, batch_size: int) -> elastic.Run:
    """A run of the benchmarks of elasticity on another model.

    Args:
        run: Holds the records.
        model: What the jobs train.
        batch_size: Their global batch.
    """
    settings = elastic.QUICK if run.settings.name == "quick" else elastic.FULL
    return elastic.Run(
        run.place("elastic"),
        settings,
        data=run.data(model),
        spec=model.spec,
        batch_size=batch_size,
    )
