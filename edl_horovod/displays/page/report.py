"""Reports of a job, and of several beside each other: one file of HTML that needs nothing else."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from edl_horovod.displays.page.comparison import ComparedJob, comparison_table
from edl_horovod.displays.page.rendering import (
    HEIGHT,
    WIDTH,
    Template,
    charts_of,
    clock,
    draw,
    polyline,
    shipped,
)
from edl_horovod.displays.page.snapshot import History, snapshot_of
from edl_horovod.displays.text import JobTable, account_tables, job_facts, stops_table
from edl_horovod.job.account import CAUSES, LOST, Account, RankAccount
from edl_horovod.job.events import AccountEvent, CheckpointEvent, Recorded, ResetEvent
from edl_horovod.job.pace import Paces
from edl_horovod.job.state import JobState, TargetDetails

_LANE_WIDTH, _LANE_HEIGHT = 1000.0, 60.0
_MAX_PARTS = 400
"""Parts of the bar of a process, each of which shows the shares of the causes within it."""
_ALL_PARTS = 20_000
"""The same for all processes together, so that the page of a large job can still be shown."""
_NUM_ROWS = 200
_NOTEWORTHY = 0.02
"""Share of all rank-seconds from which on a cause is explained."""
_COLORS = (
    *(
        "#55606e",
        "#8d99ae",
        "#cfd8e3",
        "#e0a3a0",
        "#f2c6a0",
        "#b48ead",
        "#d08770",
        "#e9b44c",
        "#0a5fd1",
        "#6cb0ff",
        "#2a9d8f",
    ),
    *("#b3261e", "#7b6fd0", "#c26fb8", "#5e8c3a", "#a3a3a3", "#c58b4a", "#7a0c05", "#5c6770"),
    "var(--text)",
)
_JOB_COLORS = (
    "#0a5fd1",
    "#d08770",
    "#2a9d8f",
    "#b3261e",
    "#7b6fd0",
    "#8a6d00",
    "#c26fb8",
    "#5e8c3a",
)
_ADVICE = {
    "importing": "The workers of one launcher that start later are forked, and have this done.",
    "building": "A spare worker that is warm already takes a lost rank's place at once:"
    " elastic.spares.",
    "warm": "These are spare workers, or processes that waited for their first ring.",
    "below_min_np": "The ring may not be smaller than elastic.min_np: lower it, or keep spare"
    " workers warm (elastic.spares).",
    "coordinator_away": "Ranks outside of a ring waited for the coordinator. Its log says why it"
    " was away.",
    "forming": "Look at the resets below, and at hosts that do not answer.",
    "state": "A larger elastic.join_share sends the state faster, a smaller one disturbs steps"
    " less.",
    "input": "The ranks waited for examples. Raise data_plan.prefetch_steps, let PyTorch decode in"
    " processes (data_plan.processes), or make the model's feed faster.",
    "exchange": "The ranks waited for the sums of all ranks. Either some ranks are slower, or the"
    " network is: train.compression halves the bytes, local rounds exchange less often.",
    "redone": "These steps were lost with a rank, and done again.",
    "evaluation": "Evaluate less often (train.evaluate_steps), or on fewer examples.",
    "callbacks": "Ranks wait for the leader while the model's callbacks run.",
    "checkpoint": "Save less often: checkpoint.every_seconds.",
    "hung": "Below is what hung, and where. elastic.stall_seconds is how long it may.",
    LOST: "These processes ended without a last account, as one that is killed does.",
}
"""What to do about a cause, or what it means."""


@dataclass(frozen=True)
class _Part:
    """A rectangle of a process' bar."""

    cause: str
    x: float
    y: float
    width: float
    height: float


@dataclass
class _Process:
    """What a process has written: the account at each moment at which it wrote one."""

    last: RankAccount
    moments: list[RankAccount] = field(default_factory=list)


def render(
    name: str,
    state: JobState,
    details: TargetDetails | None,
    events: Iterable[Recorded],
    *,
    now: float,
) -> bytes:
    """Write a job's report as HTML in UTF-8.

    Args:
        name: The job.
        state: Its state.
        details: What its launch target tells; None where it tells nothing.
        events: Its events, oldest first.
        now: Seconds since the epoch.
    """
    history, paces, processes = History(), Paces(), dict[tuple[str, int, float], _Process]()
    resets, checkpoints = list[tuple[str, ...]](), list[tuple[str, ...]]()
    for recorded in events:
        history.add(recorded)
        paces.add(recorded)
        match recorded.event:
            case AccountEvent() as event:
                _add(processes, history.state.account, (recorded.source, event.pid, event.began))
            case ResetEvent() as event if event.old_size:
                resets.append(_reset_row(recorded.time, event))
            case CheckpointEvent() as event:
                checkpoints.append(_checkpoint_row(recorded.time, event))
    slowest = paces.slowest
    for rank in state.account.ranks:  # With the moment at which a lost one was missed.
        _add(processes, state.account, rank.process)
    return Template("report.html").render(
        name=name,
        state=(details or state).state,
        style=shipped("style.css"),
        colors=dict(zip((*CAUSES, LOST), _COLORS, strict=True)),
        facts={key: text for key, text in job_facts(state, details, now=now).items() if text},
        sentences=[*_sentences(state.account), *([] if slowest is None else [str(slowest)])],
        causes=list(_causes(state.account)),
        **_lanes(list(processes.values())),
        lane_height=_LANE_HEIGHT,
        charts=charts_of(snapshot_of(history, state, details)),
        field=(WIDTH, HEIGHT),
        tables=[
            account_tables(state.account)[1],
            stops_table(state.stops),
            JobTable("Resets", ("TIME", "RANKS", "STEP", "STALL", "REASON"), resets[-_NUM_ROWS:]),
            JobTable(
                "Checkpoints",
                ("TIME", "STATE", "STEP", "SECONDS", "NOTE"),
                checkpoints[-_NUM_ROWS:],
            ),
        ],
    )


def render_comparison(jobs: Sequence[ComparedJob]) -> bytes:
    """Write a page about several jobs beside each other as HTML in UTF-8."""
    points = [point for job in jobs for point in job.loss]
    frame = draw("loss over steps", points, x_text=lambda x: f"step {x:,.0f}")
    edges = [(min(numbers), max(numbers)) for numbers in zip(*points, strict=True)]
    return Template("comparison.html").render(
        style=shipped("style.css"),
        colors=dict(zip((*CAUSES, LOST), _COLORS, strict=True)),
        table=comparison_table(jobs),
        jobs=[
            {
                "name": job.name,
                "color": _JOB_COLORS[number % len(_JOB_COLORS)],
                "line": polyline(job.loss, *edges) if job.loss else "",
                "causes": list(_causes(job.progress.account)),
            }
            for number, job in enumerate(jobs)
        ],
        frame=frame,
        field=(WIDTH, HEIGHT),
    )


def _add(
    processes: dict[tuple[str, int, float], _Process],
    account: Account,
    key: tuple[str, int, float],
) -> None:
    newest = account.processes.get(key)
    if newest is None:  # Its numbers were not sound.
        return
    process = processes.setdefault(key, _Process(newest))
    process.last = newest
    if not process.moments or process.moments[-1] != newest:
        process.moments.append(newest)
    if len(process.moments) > 2 * _MAX_PARTS:
        process.moments = process.moments[::2]


def _sentences(account: Account) -> list[str]:
    seconds = account.seconds
    total = sum(seconds.values())
    # The steps' own work is what the job is for.
    costs = {it: spent for it, spent in seconds.items() if it not in ("computing", "applying")}
    return [
        f"{cause}: {spent / total:.1%} of all rank-seconds ({spent:,.1f} s)."
        f" {_ADVICE.get(cause, '')}".rstrip()
        for cause, spent in sorted(costs.items(), key=lambda cost: -cost[1])
        if spent / total >= _NOTEWORTHY
    ]


def _causes(account: Account) -> Iterator[dict[str, Any]]:
    seconds = account.seconds
    total, left = sum(seconds.values()), 0.0
    for cause, spent in seconds.items():
        width = spent / total * _LANE_WIDTH
        yield {
            "name": cause,
            "seconds": f"{spent:,.1f}",
            "share": f"{spent / total:.1%}",
            "left": f"{left:.2f}",
            "width": f"{width:.2f}",
        }
        left += width


def _lanes(processes: Sequence[_Process]) -> dict[str, Any]:
    if not processes:
        return {"lanes": [], "began": "", "until": ""}
    began = min(process.last.began for process in processes)
    until = max(process.last.until for process in processes)
    max_parts = max(20, min(_MAX_PARTS, _ALL_PARTS // len(processes)))
    lanes = [
        {
            "title": f"{process.last.worker}, pid {process.last.pid}, "
            f"{process.last.until - process.last.began:,.1f} s, {process.last.doing or 'ended'}",
            "parts": list(_parts(process, began, max(until - began, 1e-9), max_parts=max_parts)),
        }
        for process in processes
    ]
    return {"lanes": lanes, "began": clock(began), "until": clock(until)}


def _parts(process: _Process, began: float, span: float, *, max_parts: int) -> Iterator[_Part]:
    """The bar of a process: between two of its accounts, the causes fill it by their shares."""
    every = -(-len(process.moments) // max_parts)
    moments = [*process.moments[:-1:every], process.last]
    since, before = process.last.began, dict[str, float]()
    for moment in moments:
        # An account is written later than its seconds end: a part of a step is booked at its end.
        until = process.last.began + sum(moment.seconds.values())
        # Clocks of hosts differ, and one may be set back.
        x, width = (since - began) / span, max(0.0, until - since) / span
        spent = {
            cause: moment.seconds.get(cause, 0.0) - before.get(cause, 0.0)
            for cause in (*CAUSES, LOST)
        }
        total, y = sum(part for part in spent.values() if part > 0), 0.0
        for cause, part in spent.items():
            if part > 0:
                height = part / total * _LANE_HEIGHT
                numbers = (x * _LANE_WIDTH, y, width * _LANE_WIDTH, height)
                yield _Part(cause, *(round(number, 2) for number in numbers))
                y += height
        since, before = until, dict(moment.seconds)


def _reset_row(time: float, event: ResetEvent) -> tuple[str, ...]:
    sizes = f"{event.old_size} to {event.new_size}"
    return (clock(time), sizes, f"{event.step:,}", f"{event.seconds:.3f} s", event.reason)


def _checkpoint_row(time: float, event: CheckpointEvent) -> tuple[str, ...]:
    seconds = "" if event.seconds is None else f"{event.seconds:.2f}"
    return (clock(time), event.state, f"{event.step:,}", seconds, event.message)
