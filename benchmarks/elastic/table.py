"""The table of events: one line a side, held against its targets."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from rich.table import Table

from benchmarks.report import Surroundings

__all__ = ["Line", "Page", "over", "row", "rows_of", "to_markdown", "to_table"]

HEADERS = ("Event", "Side", "Min / median / max", "Of", "To reach", "Reached", "Behind it")
UNITS = {
    "M": "{:.0f} MiB",
    "s": "{:.3f} s",
    "%": "{:.2f} %",
    "x": "{:.4f}",
    "r": "{:.2f}",
    "n": "{:.0f}",
    "G": "{:.2f} Gbit/s",
}


@dataclass(frozen=True, kw_only=True)
class Line:
    """What one side did at one kind of event."""

    event: str
    side: str
    values: tuple[float, ...] = ()
    """One of each event; none where it could not be measured."""
    unit: str = "s"
    """`s` seconds, `%` percent, `x` a small ratio, `r` one near 1, `n` a number, `M` mebibytes,
    `G` gigabits a second."""
    most_median: float | None = None
    """The target of the median; None where there is none."""
    most: float | None = None
    """The target of the worst."""
    least_median: float | None = None
    """The target of the median where more is better."""
    detail: str = ""
    """For people; why it was not measured, where it was not."""

    @property
    def median(self) -> float:
        """Of the values; there must be some."""
        return statistics.median(self.values)

    @property
    def is_reached(self) -> bool | None:
        """Whether all targets are kept; None where there is none. Not measured is not reached."""
        targets = (self.most_median, self.most, self.least_median)
        if all(target is None for target in targets):
            return None
        if not self.values:
            return False
        return (
            (self.most_median is None or self.median <= self.most_median)
            and (self.most is None or max(self.values) <= self.most)
            and (self.least_median is None or self.median >= self.least_median)
        )


@dataclass(frozen=True, kw_only=True)
class Page:
    """What a page says beside its table."""

    title: str
    command: str
    """That writes it."""
    method: str
    """How it was measured."""


def over(event: str, ours: Line, theirs: Line, *, most_median: float) -> Line:
    """Our median over the other side's.

    Args:
        event: Of the new line.
        ours: Our line.
        theirs: The other side's line of the same event.
        most_median: The target.
    """
    both = ours.values and theirs.values
    return Line(
        event=event,
        side=f"{ours.side} / {theirs.side}",
        values=(ours.median / theirs.median,) if both else (),
        unit="x",
        most_median=most_median,
        detail=f"1 : {theirs.median / max(ours.median, 1e-9):.0f}" if both else "a side is missing",
    )


def to_table(lines: Sequence[Line]) -> Table:
    """The lines for a terminal."""
    table = Table()
    for header in HEADERS:
        table.add_column(header, overflow="fold")
    for line in lines:
        table.add_row(*_cells(line))
    return table


def to_markdown(
    lines: Sequence[Line],
    surroundings: Surroundings,
    page: Page,
    *,
    is_quick: bool,
    seconds: float,
    pictures: Sequence[tuple[str, str]] = (),
) -> str:
    """The whole of the page.

    Args:
        lines: In the order of the report.
        surroundings: Where and when.
        page: Its words.
        is_quick: Whether the run was too short to quote.
        seconds: How long it took.
        pictures: Caption and file name of each.
    """
    versions = ", ".join(f"{name} {number}" for name, number in surroundings.versions)
    reached = [line.is_reached for line in lines if line.is_reached is not None]
    text = [
        f"# {page.title}",
        "",
        f"Written by `{page.command}`; do not edit.",
        "",
        *(["**A quick run: too short to quote.**", ""] if is_quick else []),
        f"- Machine: {surroundings.machine}",
        f"- Commit: {surroundings.commit}",
        f"- Date: {surroundings.date}; load before the start: {surroundings.load:.2f}; "
        f"the run took {seconds / 60:.0f} minutes",
        f"- Versions: {versions}",
        f"- Targets reached: {sum(reached)} of {len(reached)}",
        "",
        *rows_of(lines),
        "",
        page.method,
        "",
    ]
    for caption, name in pictures:
        text += [f"![{caption}]({name})", "", caption, ""]
    return "\n".join(text)


def rows_of(lines: Sequence[Line]) -> list[str]:
    """The lines as a table in Markdown."""
    return [row(HEADERS), row(["---"] * len(HEADERS)), *(row(_cells(line)) for line in lines)]


def row(cells: Sequence[str]) -> str:
    """One line of a table in Markdown."""
    return f"| {' | '.join(cells)} |"


def _cells(line: Line) -> tuple[str, ...]:
    shown = UNITS[line.unit].format
    targets = []
    if line.least_median is not None:
        targets.append(f"at least {shown(line.least_median)}")
    if line.most_median is not None:
        targets.append(f"median {shown(line.most_median)}")
    if line.most is not None:
        targets.append(f"max {shown(line.most)}")
    reached = {None: "", True: "yes", False: "NO"}[line.is_reached]
    spread = "not measured"
    if line.values:
        figures = (min(line.values), line.median, max(line.values))
        spread = " / ".join(shown(figure) for figure in figures)
    number = str(len(line.values)) if line.values else ""
    return (line.event, line.side, spread, number, "; ".join(targets), reached, line.detail)
