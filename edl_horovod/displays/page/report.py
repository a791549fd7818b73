"""The content of a job's page and report, and of the report on several jobs side by side."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from edl_horovod.displays.page.comparison import ComparedJob, comparison_table
from edl_horovod.displays.page.rendering import (
    View,
    chart_of,
    charts_of,
    offline_page,
    quoted,
    section,
)
from edl_horovod.displays.page.snapshot import History, JobSnapshot, Process
from edl_horovod.displays.text import (
    JobTable,
    account_tables,
    clock,
    cost_sentences,
    job_facts,
    job_table,
    resets_table,
    stops_table,
    time_header,
    zone,
)
from edl_horovod.job.account import CAUSES, LOST, Account
from edl_horovod.job.events import CheckpointEvent, Recorded
from edl_horovod.job.state import JobState, TargetDetails

_LANE_WIDTH, _LANE_HEIGHT = 1000.0, 60.0
_LIVE_LANES = 50
"""Processes on a live page, the newest ones."""
_LIVE_PARTS = 200
"""Parts of all bars on a live page, which is sent again when one of them grows."""
_LANE_PARTS = 400
"""Parts of the bar of a process, each of which shows the shares of the causes within it."""
_ALL_PARTS = 20_000
"""The same for all processes of a report, so that the one of a large job can still be shown."""
_LEAST_PARTS = 8
_THINNEST = 0.2
"""Height below which a part cannot be seen and is left out."""


@dataclass(frozen=True)
class _Part:
    """A rectangle of a process' bar."""

    cause: str
    x: float
    y: float
    width: float
    height: float


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
    history = History()
    for recorded in events:
        history.add(recorded)
    return offline_page(View(name, _sections(name, history.snapshot(state, details), now=now)))


def render_comparison(jobs: Sequence[ComparedJob]) -> bytes:
    """Write a page about several jobs beside each other as HTML in UTF-8."""
    chart = chart_of("loss over steps", [(job.name, job.loss) for job in jobs])
    title = f"{len(jobs)} jobs"
    shares = [(job.name, list(_causes(job.progress.account))) for job in jobs]
    sections = {
        "head": section("head", title),
        "jobs": section("table", comparison_table(jobs)),
        "charts": section("charts", [] if chart is None else [chart]),
        "account": section("shares", shares),
    }
    return offline_page(View(title, sections))


def live_view(name: str, snapshot: JobSnapshot, *, now: float, bars: str = "") -> View:
    """What stands on a job's page.

    Args:
        name: The job.
        snapshot: What is known of it.
        now: Seconds since the epoch.
        bars: The section of the processes from a short time ago, to be left as it is.
    """
    sections = _sections(name, snapshot, now=now, is_live=True, bars=bars)
    targets = [(process, f"logs/{quoted(process)}") for process in snapshot.logs]
    sections |= {
        "logs": section("links", "Logs", targets),
        "as-of": section("as_of", f"{clock(snapshot.time)} {zone()}"),
    }
    return View(f"{_state_of(snapshot)} - {name}", sections, snapshot.http_status)


def _sections(
    name: str, snapshot: JobSnapshot, *, now: float, is_live: bool = False, bars: str = ""
) -> dict[str, str]:
    state, details = snapshot.state or JobState(), snapshot.details
    facts = {} if snapshot.state is None else job_facts(state, details, now=now)
    checkpoints = [_checkpoint_row(time, event) for time, event in snapshot.checkpoints]
    events = [(clock(when), words) for when, words in reversed(snapshot.notable)]
    slowest = [] if snapshot.slowest is None else [str(snapshot.slowest)]
    sentences = [*cost_sentences(state), *slowest]
    waits = () if details is None else details.other_waits
    tables = {
        "workers": job_table(state, details, now=now),
        "ranks": account_tables(state.account)[1],
        "stops": stops_table(state.stops),
        "resets": resets_table(snapshot.resets),
        "checkpoints": JobTable("Checkpoints", (time_header(), *_CHECKPOINT_HEADER), checkpoints),
    }
    return {
        "head": section("head", name, _state_of(snapshot)),
        "problem": section("problem", snapshot.problem),
        "facts": section(
            "facts", {key: text for key, text in facts.items() if text}, state.done, state.total
        ),
        "waits": section("lines", "Waits for", waits),
        "charts": section("charts", charts_of(snapshot)),
        "costs": section("lines", "What cost the most", sentences),
        "account": section("account", list(_causes(state.account))),
        "processes": bars or section("processes", *_lanes(snapshot.processes, is_live=is_live)),
        **{key: section("table", table) for key, table in tables.items()},
        "events": section("events", events),
    }


def _state_of(snapshot: JobSnapshot) -> str:
    return "unknown" if snapshot.state is None else (snapshot.details or snapshot.state).state


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


def _lanes(processes: Sequence[Process], *, is_live: bool) -> tuple[Any, ...]:
    """The bars, their height, when the first begins and the last ends, how many are left out."""
    if not processes:
        return [], _LANE_HEIGHT, "", "", 0
    began = min(process.last.begin for process in processes)
    until = max(process.last.until for process in processes)
    shown = processes[-_LIVE_LANES:] if is_live else processes
    all_parts = _LIVE_PARTS if is_live else _ALL_PARTS
    max_parts = max(_LEAST_PARTS, min(_LANE_PARTS, all_parts // len(shown)))
    lanes = [
        {
            "title": _lane_title(process),
            "parts": list(_parts(process, began, max(until - began, 1e-9), max_parts=max_parts)),
        }
        for process in shown
    ]
    return lanes, _LANE_HEIGHT, clock(began), clock(until), len(processes) - len(shown)


def _lane_title(process: Process) -> str:
    last = process.last
    now = last.doing or process.end or "ended"
    return f"{last.worker}, pid {last.pid}, {last.age:,.1f} s, {now}"


def _parts(process: Process, began: float, span: float, *, max_parts: int) -> Iterator[_Part]:
    """The bar of a process: between two of its accounts, the causes fill it by their shares."""
    every = -(-len(process.moments) // max_parts) or 1
    moments = [*process.moments[:-1:every], process.last]
    begin = since = process.last.begin
    before = dict[str, float]()
    for moment in moments:
        # An account is written later than its seconds end: a part of a step is booked at its end.
        # The account of all ranks, in the log of a launcher, has more seconds than its age.
        until = begin + min(sum(moment.seconds.values()), moment.age)
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
                if height >= _THINNEST:
                    numbers = (x * _LANE_WIDTH, y, width * _LANE_WIDTH, height)
                    yield _Part(cause, *(round(number, 2) for number in numbers))
                y += height
        since, before = until, dict(moment.seconds)


_CHECKPOINT_HEADER = ("STATE", "STEP", "SECONDS", "SIZE", "NOTE")


def _checkpoint_row(time: float, event: CheckpointEvent) -> tuple[str, ...]:
    size = "" if event.num_bytes is None else f"{event.num_bytes / 1e6:,.1f} MB"
    step = f"{event.step:,}"
    return (clock(time), event.state, step, _seconds(event.seconds), size, event.message)


def _seconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:.3f} s"
