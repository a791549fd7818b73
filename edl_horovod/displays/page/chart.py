"""Curves as numbers for an SVG: the template draws what is decided here."""

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
    """Points of an SVG polyline in a field of `WIDTH` times `HEIGHT`."""
    top: str
    """What the upper edge stands for; likewise the others."""
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
    """Fit a curve into its field; None where there is no curve yet.

    Args:
        title: Of the chart.
        points: Finite numbers; a curve has at least two, at different places.
        x_text: How a number of the x axis is written.
        y_text: The same for y.
        y_least: What the lower edge stands for; None takes the least y.
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
    """How far a value is on the way; in the middle where there is none to go."""
    # Halves, as the difference of two large numbers may be none.
    span = most / 2 - least / 2
    return (value / 2 - least / 2) / span if span > 0 else 0.5
