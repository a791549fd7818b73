"""The coordinates of curves; the template draws them as SVG."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from edl_horovod.displays.page.series import Point

__all__ = ["HEIGHT", "WIDTH", "Chart", "draw"]

WIDTH, HEIGHT = 600, 120


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


def _share(value: float, least: float, most: float) -> float:
    """Position of a value between two others, from 0 to 1; 0.5 if these are equal."""
    # Halves, because the difference of two large numbers may overflow.
    span = most / 2 - least / 2
    return (value / 2 - least / 2) / span if span > 0 else 0.5
