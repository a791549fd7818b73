"""The page of one job as HTML, with curves in SVG; all text in it is escaped."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

from edl_horovod.displays.page.snapshot import JobSnapshot, Point
from edl_horovod.displays.text import JobTable, account_tables, ago, job_facts, job_table
from edl_horovod.errors import MissingDependency, how_to_install
from edl_horovod.job.state import JobState, TargetDetails

try:
    import jinja2
except ImportError as e:
    raise MissingDependency(
        f"Pages of jobs need a package that is not installed: {e}. To install it where this command"
        f" runs, {how_to_install('dashboard')}"
    ) from e

REFRESH_SECONDS = 5
WIDTH, HEIGHT = 600, 120
"""Size of a chart's area."""


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


class Template:
    """A template of this package, read once."""

    def __init__(self, name: str) -> None:
        environment = jinja2.Environment(
            loader=jinja2.FunctionLoader(shipped),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._template = environment.get_template(name)

    def render(self, **values: Any) -> bytes:
        """Fill it in, in UTF-8."""
        # JSON can contain lone surrogates, which UTF-8 cannot encode.
        return self._template.render(**values).encode(errors="backslashreplace")


class PageTemplate:
    """Renders pages from a template that is read once."""

    def __init__(self) -> None:
        self._template = Template("page.html")

    def render(self, name: str, snapshot: JobSnapshot, *, now: float) -> bytes:
        """Render the page in UTF-8; `now` is in seconds since the epoch."""
        state, details = snapshot.state, snapshot.details
        facts = {} if state is None else job_facts(state, details, now=now)
        return self._template.render(
            name=name,
            snapshot=snapshot,
            state="unknown" if state is None else (details or state).state,
            facts={key: value for key, value in facts.items() if value},
            charts=charts_of(snapshot),
            field=(WIDTH, HEIGHT),
            tables=_tables(state, details, now=now),
            waits=() if details is None else details.other_waits,
            notable=[(clock(when), words) for when, words in reversed(snapshot.notable)],
            as_of=clock(snapshot.time),
            refresh_seconds=REFRESH_SECONDS,
        )


def _tables(state: JobState | None, details: TargetDetails | None, *, now: float) -> list[JobTable]:
    if state is None:
        return []
    workers, (causes, _) = job_table(state, details, now=now), account_tables(state.account)
    return [table for table in (workers, causes) if table is not None]


def draw(
    title: str,
    points: Sequence[Point],
    *,
    x_text: Callable[[float], str],
    y_text: Callable[[float], str] = lambda y: f"{y:.4g}",
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
    line = polyline(points, (left, right), (bottom, top))
    edges = {"left": x_text(left), "right": x_text(right)}
    return Chart(title=title, line=line, top=y_text(top), bottom=y_text(bottom), **edges)


def polyline(
    points: Sequence[Point], x_edges: tuple[float, float], y_edges: tuple[float, float]
) -> str:
    """The points of an SVG polyline in an area of `WIDTH` times `HEIGHT` between these edges."""
    return " ".join(
        f"{_share(x, *x_edges) * WIDTH:.1f},{(1 - _share(y, *y_edges)) * HEIGHT:.1f}"
        for x, y in points
    )


def stairs(points: Sequence[Point]) -> tuple[Point, ...]:
    """The corners of a step curve, which keeps each value until the next point."""
    corners: list[Point] = []
    for x, y in points:
        if corners:
            corners.append((x, corners[-1][1]))
        corners.append((x, y))
    return tuple(corners)


def shipped(name: str) -> str:
    """The text of a file beside this module."""
    return (resources.files("edl_horovod.displays.page") / name).read_text(encoding="utf-8")


def charts_of(snapshot: JobSnapshot) -> list[Chart]:
    """The loss over steps and the ring over time, as far as there are any."""
    began = snapshot.ring[0][0] if snapshot.ring else 0.0
    # The size has not changed since the last point, so the line extends until now, or to the end.
    until = snapshot.time if snapshot.ended is None else snapshot.ended
    last = [(max(until, time), size) for time, size in snapshot.ring[-1:]]
    ring = stairs([*snapshot.ring, *last])
    loss = draw("loss over steps", snapshot.loss, x_text=lambda x: f"step {x:,.0f}")
    ranks = draw("ranks in the ring over time", ring, x_text=lambda x: ago(began, x), y_least=0.0)
    return [chart for chart in (loss, ranks) if chart is not None]


def clock(seconds: float) -> str:
    """A time, in seconds since the epoch, as a clock here shows it."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def _share(value: float, least: float, most: float) -> float:
    """Position of a value between two others, from 0 to 1; 0.5 if these are equal."""
    # Halves, because the difference of two large numbers may overflow.
    span = most / 2 - least / 2
    return (value / 2 - least / 2) / span if span > 0 else 0.5
