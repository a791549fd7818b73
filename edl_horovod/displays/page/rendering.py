"""Render the page as HTML, with its curves as SVG.

All text is escaped, because it may contain anything.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import resources

import jinja2

from edl_horovod.displays.page.snapshot import JobSnapshot, Point
from edl_horovod.displays.text import (
    POD_HEADER,
    WORKER_HEADER,
    ago,
    job_facts,
    other_waits,
    pod_rows,
    worker_rows,
)

__all__ = [
    "HEIGHT",
    "REFRESH_SECONDS",
    "WIDTH",
    "Chart",
    "PageTemplate",
    "draw",
    "stairs",
    "style",
]

REFRESH_SECONDS = 5
WIDTH, HEIGHT = 600, 120
"""Size of a chart's area."""


@dataclass(frozen=True)
class _Table:
    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, kw_only=True)
class Chart:
    """One curve."""

    title: str
    line: str
    """Points of an SVG polyline in an area of `WIDTH` times `HEIGHT`."""
    top: str
    """Label of the upper edge; the other three are labels of the other edges."""
    bottom: str
    left: str
    right: str


class PageTemplate:
    """Renders pages from a template that is read once."""

    def __init__(self) -> None:
        environment = jinja2.Environment(
            autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
        )
        self._template = environment.from_string(_shipped("page.html"))

    def render(self, name: str, snapshot: JobSnapshot, *, now: float) -> bytes:
        """Render the page in UTF-8; `now` is in seconds since the epoch."""
        facts = {} if snapshot.state is None else job_facts(snapshot.state, snapshot.job, now=now)
        text = self._template.render(
            name=name,
            snapshot=snapshot,
            state="unknown" if snapshot.state is None else (snapshot.job or snapshot.state).state,
            facts={key: value for key, value in facts.items() if value},
            charts=_charts(snapshot),
            field=(WIDTH, HEIGHT),
            table=_table(snapshot, now),
            waits=() if snapshot.job is None else other_waits(snapshot.job),
            notable=[(_clock(when), words) for when, words in reversed(snapshot.notable)],
            as_of=_clock(snapshot.time),
            refresh_seconds=REFRESH_SECONDS,
        )
        # JSON can contain lone surrogates, which UTF-8 cannot encode.
        return text.encode(errors="backslashreplace")


def style() -> str:
    """The style sheet."""
    return _shipped("style.css")


def draw(
    title: str,
    points: Sequence[Point],
    *,
    x_text: Callable[[float], str],
    y_text: Callable[[float], str],
    y_least: float | None = None,
) -> Chart | None:
    """Scale a curve to the area; None if the points do not make a curve yet.

    Args:
        title: Title of the chart.
        points: Finite numbers; a curve needs at least two with different x.
        x_text: Formats a number of the x axis.
        y_text: Formats a number of the y axis.
        y_least: Value of the lower edge; None takes the least y.
    """
    xs, ys = [x for x, _ in points], [y for _, y in points]
    left, right = min(xs, default=0.0), max(xs, default=0.0)
    if left == right:
        return None
    bottom, top = min(ys) if y_least is None else y_least, max(ys)
    line = " ".join(
        f"{_share(x, left, right) * WIDTH:.1f},{(1 - _share(y, bottom, top)) * HEIGHT:.1f}"
        for x, y in points
    )
    return Chart(
        title=title,
        line=line,
        top=y_text(top),
        bottom=y_text(bottom),
        left=x_text(left),
        right=x_text(right),
    )


def stairs(points: Sequence[Point]) -> tuple[Point, ...]:
    """The corners of a step curve, which keeps each value until the next point."""
    corners: list[Point] = []
    for x, y in points:
        if corners:
            corners.append((x, corners[-1][1]))
        corners.append((x, y))
    return tuple(corners)


def _shipped(name: str) -> str:
    return (resources.files("edl_horovod.displays.page") / name).read_text(encoding="utf-8")


def _charts(snapshot: JobSnapshot) -> list[Chart]:
    began = snapshot.ring[0][0] if snapshot.ring else 0.0
    # The size has not changed since the last point, so the line extends until now, or to the end.
    until = snapshot.time if snapshot.ended is None else snapshot.ended
    ring = stairs(
        [*snapshot.ring, (max(until, snapshot.ring[-1][0]), snapshot.ring[-1][1])]
        if snapshot.ring
        else ()
    )
    drawn = [
        draw("loss over steps", snapshot.loss, x_text=lambda x: f"step {x:,.0f}", y_text=_number),
        draw(
            "ranks in the ring over time",
            ring,
            x_text=lambda x: ago(began, x),
            y_text=_number,
            y_least=0.0,
        ),
    ]
    return [chart for chart in drawn if chart is not None]


def _table(snapshot: JobSnapshot, now: float) -> _Table | None:
    if snapshot.job is not None:
        return _Table("Pods", POD_HEADER, pod_rows(snapshot.job))
    if snapshot.state is not None and snapshot.state.workers:
        return _Table("Workers", WORKER_HEADER, worker_rows(snapshot.state, now))
    return None


def _number(value: float) -> str:
    return f"{value:.4g}"


def _clock(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def _share(value: float, least: float, most: float) -> float:
    """Position of a value between two others, from 0 to 1; 0.5 if these are equal."""
    # Halves, because the difference of two large numbers may overflow.
    span = most / 2 - least / 2
    return (value / 2 - least / 2) / span if span > 0 else 0.5
