"""A live panel about one job on a terminal, from the same snapshots as its page."""

import time
from collections.abc import Iterator, Sequence

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from edl_horovod.displays.page.snapshot import JobSnapshot, Source
from edl_horovod.displays.text import (
    JobTable,
    account_tables,
    clock,
    job_facts,
    job_table,
    printable,
)
from edl_horovod.job.state import JobState, TargetDetails

SECONDS = 1.0
"""Time between two looks at the job."""
_BAR_WIDTH = 30
_NUM_EVENTS = 10


def show(source: Source, console: Console) -> None:
    """Show a job until it ends, and leave its last state on the terminal.

    Args:
        source: The job, which may start later.
        console: The terminal.
    """
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            began, snapshot = time.monotonic(), source.snapshot()
            live.update(panel(source.name, snapshot, now=time.time()), refresh=True)
            if snapshot.is_over:
                break
            time.sleep(max(0.0, SECONDS - (time.monotonic() - began)))
    console.print(panel(source.name, snapshot, now=time.time()))


def panel(name: str, snapshot: JobSnapshot, *, now: float) -> RenderableType:
    """The panel at one moment; `now` is in seconds since the epoch."""
    return Panel(Group(*_parts(snapshot, now)), title=_text(name), title_align="left")


def _parts(snapshot: JobSnapshot, now: float) -> Iterator[RenderableType]:
    if snapshot.problem:
        yield _text(snapshot.problem, "red")
    if snapshot.state is not None:
        yield from state_parts(snapshot.state, snapshot.details, snapshot.notable, now=now)


def state_parts(
    state: JobState,
    details: TargetDetails | None,
    events: Sequence[tuple[float, str]] = (),
    *,
    now: float,
) -> Iterator[RenderableType]:
    """The parts of the panel, one below the other: facts, progress, causes, events, workers.

    Args:
        state: The job.
        details: What its launch target tells; None where it tells nothing.
        events: When each notable event was, in seconds since the epoch, and its words.
        now: In seconds since the epoch, too.
    """
    facts = Table.grid(padding=(0, 2))
    for key, value in job_facts(state, details, now=now).items():
        if value:
            facts.add_row(_text(key, "dim"), _text(value))
    yield facts
    if state.total:
        # In a grid, because a bar itself does not end its line.
        bar = Table.grid()
        bar.add_row(ProgressBar(total=state.total, completed=state.done, width=_BAR_WIDTH * 2))
        yield bar
    for reason in () if details is None else details.other_waits:
        yield _text(f"waits for: {reason}")
    if state.account.ranks:
        yield _causes(state)
    for when, words in list(reversed(events))[:_NUM_EVENTS]:
        line = Text(f"{clock(when)}  ", style="dim")
        yield line.append_text(_text(words))
    # At the end, because the screen may be too short for all ranks of a large job.
    if workers := job_table(state, details, now=now):
        yield _table(workers)
    if state.account.ranks:
        yield _table(account_tables(state.account)[1])


def _causes(state: JobState) -> Table:
    seconds = state.account.seconds
    total = sum(seconds.values())
    causes = Table.grid(padding=(0, 2))
    for cause, spent in seconds.items():
        bar = ProgressBar(total=total, completed=spent, width=_BAR_WIDTH)
        causes.add_row(_text(cause, "dim"), bar, Text(f"{spent / total:6.1%}"))
    return causes


def _text(value: str, style: str = "") -> Text:
    return Text(printable(value), style=style)


def _table(table: JobTable) -> Table:
    shown = Table(title=table.title, title_justify="left", box=None, padding=(0, 2, 0, 0))
    for name in table.header:
        shown.add_column(Text(name, style="dim"))
    for row in table.rows:
        shown.add_row(*map(_text, row))
    return shown
