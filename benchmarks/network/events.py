"""Joins with a large state, the events of elasticity, and the index of a worker."""

import itertools
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from benchmarks.elastic import events, goodput
from benchmarks.elastic.events import DrivenJob, Setup, driven_job, torch_setup
from benchmarks.network import speed
from benchmarks.network.namespace import set_rate
from benchmarks.network.speed import DENSE, NO_LIMIT, NUM_RANKS, SLOWEST, NetworkRun
from benchmarks.report import Line
from benchmarks.run import (
    OURS,
    PLAIN,
    TORCH,
    TORCHFT,
    Failure,
    SideFailed,
    guarded,
    horovodrun,
    reason_of,
    values_of,
)
from benchmarks.side import Numbers, Work
from benchmarks.stamps import Stamp

JOIN_BATCH_SIZE = 32
"""Small, so that a step is mostly its state's: the gradients, and Adam's changes."""
MOST_ABOVE_BROADCAST, MOST_ABOVE_MEDIAN = 0.15, 0.25
MOST_SLOWER_PERCENT = 25.0
BEFORE_SECONDS = 1.0
WAIT_SECONDS = 300.0
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


def join_of(steps: Sequence[Stamp], since: float, works_at: float, size: int) -> Join:
    """What a join did to the steps of the rank that stayed.

    Args:
        steps: The steps of that rank, in order of time.
        since: When the newcomer was asked for.
        works_at: When it had the state and took part of the work; further steps follow.
        size: The size of the new ring.

    Raises:
        ValueError: There are too few steps before, or after.
    """
    pairs = itertools.pairwise(steps)
    gaps = [(step.at, step.at - before.at, step.size) for before, step in pairs]
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


def large_setup(run: NetworkRun, settle_seconds: float = 0.0) -> Setup:
    """Jobs of the 45 M model with Adam."""
    work = Work(data=run.work(DENSE).data, batch_size=JOIN_BATCH_SIZE)
    num_events = min(3, run.repetitions)
    return Setup(work=work, spec=DENSE.spec, num_events=num_events, settle_seconds=settle_seconds)


def measure_joins(run: NetworkRun) -> list[Line]:
    """Let a worker join again and again, without a limit and at the slowest rate."""
    lines: list[Line] = []
    for rate in (NO_LIMIT, SLOWEST):
        set_rate(rate)
        try:
            options = {"launcher": horovodrun(NUM_RANKS), "num_ranks": NUM_RANKS}
            side = ("peers.horovod.broadcast_state", run.work(DENSE))
            broadcast = guarded(partial(run.side, *side, spec=DENSE.spec, **options))()
            joins = guarded(_joins, run)()
        finally:
            set_rate(NO_LIMIT)
        lines += _join_lines(f"{DENSE.title}, {rate.name}", broadcast, joins)
    return lines


def _joins(run: NetworkRun) -> list[Join]:
    with driven_job(run, large_setup(run), "joins", slots=1) as job:
        job.wait_for_ring(1)
        _wait_for_steps(job, 2 * SETTLED_STEPS)
        return [_join(job) for _ in range(min(3, 1 + run.repetitions))]


def _join(job: DrivenJob) -> Join:
    since, generation = time.monotonic(), job.generation()
    step = job.stamps(0)[-1].step
    job.want(2)
    job.wait_for_ring(2, after=generation)

    def has_all() -> bool:
        # Until then it has no lanes, and is not counted.
        return any(event.size == 2 and event.step > step for event in job.events("step"))

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


def _join_lines(
    title: str, broadcast: Numbers | Failure, joins: list[Join] | Failure
) -> list[Line]:
    why, reason, seconds = "", "541 MB", []
    if isinstance(joins, Failure):
        joins, why = [], joins.reason
    if isinstance(broadcast, Failure):
        reason = broadcast.reason
    else:
        seconds = broadcast["seconds"]
    usual = statistics.median(seconds) + MOST_ABOVE_BROADCAST if seconds else None
    slower = {"unit": "%", "most_median": MOST_SLOWER_PERCENT}
    waiting = "until it has all the newcomer does none of the work"

    def line(event: str, name: str, detail: str = "", **options: object) -> Line:
        values = [getattr(join, name) for join in joins]
        return Line(f"{title}: a join, {event}", OURS, values, detail=why or detail, **options)

    longest = "survivor's longest step above the median one"
    return [
        Line(f"{title}: hvd.broadcast_variables of the state", PLAIN, seconds, detail=reason),
        line(f"{longest} (in pieces)", "stall_seconds", most_median=usual),
        line(f"{longest} (streaming)", "stall_seconds", "the same joins", most=MOST_ABOVE_MEDIAN),
        line("any other step above the median one", "slower_percent", **slower),
        line("the median step above one after it", "median_percent", waiting, **slower),
        line("until the newcomer works", "seconds"),
    ]


def _for_information(parts: Mapping[str, tuple[str, Callable[[], list[Line]]]]) -> list[Line]:
    """The lines of several measures, without targets; each may fail."""
    lines: list[Line] = []
    targets = dict.fromkeys(("most_median", "most", "least_median"))
    for event, (side, measure) in parts.items():
        try:
            lines += [replace(line, **targets) for line in measure()]
        except (SideFailed, ValueError) as error:
            lines.append(Line(event, side, detail=reason_of(error)))
    return lines


def measure_large(run: NetworkRun) -> list[Line]:
    """Drive a job of 45 M parameters through the events, and another for its goodput.

    The targets are those of 0.7 M parameters, so the lines are for information.
    """
    # For some steps before and after each event.
    setup = large_setup(run, settle_seconds=8.0)
    seconds = run.amount(120.0, 60.0)
    options = {"num_jobs": 1, "undisturbed_seconds": 15.0, "seconds": seconds}
    return _for_information(
        {
            "joins, kills and removals": (OURS, lambda: events.measure_ours(run, setup)),
            "goodput": (OURS, lambda: goodput.measure_goodput(run, setup, **options).lines),
        }
    )


def measure_torch(run: NetworkRun) -> list[Line]:
    """Drive a training of each side with PyTorch through joins, kills, removals and a hang.

    The targets are those of the page of elasticity, so the lines are for information.
    """
    setup = torch_setup(run, run.repetitions)
    return _for_information(
        {
            "all events": (OURS, lambda: events.measure_ours(run, setup)),
            events.HANG: (OURS, lambda: events.measure_hang(run, setup)),
            f"all events of {TORCH}": (TORCH, lambda: events.measure_torchrun(run, setup)),
            f"all events of {TORCHFT}": (TORCHFT, lambda: events.measure_torchft(run, setup)),
        }
    )


def measure_index(run: NetworkRun) -> list[Line]:
    """Open files of many chunks for the first time, and then as every later worker does."""
    num_files, num_chunks = run.amount(1000, 500), 1000
    place = run.place("index")
    data = run.data("chunks", files=num_files, chunks_of_file=num_chunks)

    def opened() -> Numbers:
        return run.side("ours.index.open_in_ranks", Work(data=data), job_folder=place / "job")

    first, later = opened(), [opened() for _ in range(run.repetitions)]
    event = f"first opening of {num_files * num_chunks:,} chunks in {num_files:,} files"
    memory = [num_bytes / speed.MEBIBYTE for num_bytes in values_of(later, "bytes")]
    used = "memory of the index, 2 ranks of a host together"
    return [
        Line(f"{event}, which indexes them", OURS, (first["seconds"],)),
        Line("a worker has the index after", OURS, values_of(later, "seconds"), most_median=0.3),
        Line(used, OURS, memory, unit="M", most=60.0),
    ]
