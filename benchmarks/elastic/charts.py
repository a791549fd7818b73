"""Pictures of rings over time: their size and their records a second."""

from pathlib import Path
from typing import Any

import matplotlib as mpl

from benchmarks.elastic.two_jobs import Makespan, Rows

__all__ = ["draw_goodput", "draw_two_jobs"]

BATCH_SIZE = 128
COLOURS = ("#1f5fa8", "#d9822b")
STYLE: Any = {
    "svg.hashsalt": "edl_horovod",  # The same numbers give the same file.
    "svg.fonttype": "none",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def draw_two_jobs(path: Path, ways: list[Makespan]) -> None:
    """Both ways of the two jobs, side by side.

    Args:
        path: The SVG file.
        ways: Gang and elastic.
    """
    with mpl.rc_context(STYLE):
        figure, axes = _figure(2, len(ways))
        for column, way in enumerate(ways):
            for number, rows in enumerate(way.jobs):
                _draw(axes[:, column], rows, COLOURS[number], f"job {number + 1}")
            axes[0, column].set_title(f"{way.name}: {way.seconds:.0f} s")
            axes[1, column].set_xlabel("seconds")
        _label(axes)
        axes[0, -1].legend(frameon=False, loc="upper right")
        _save(figure, path)


def draw_goodput(path: Path, rows: Rows) -> None:
    """One job through all its events.

    Args:
        path: The SVG file.
        rows: Time, steps a second, ring size.
    """
    with mpl.rc_context(STYLE):
        figure, axes = _figure(2, 1)
        _draw(axes[:, 0], rows, COLOURS[0], "job")
        axes[1, 0].set_xlabel("seconds")
        _label(axes)
        _save(figure, path)


def _figure(num_rows: int, num_columns: int) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.2 * max(num_columns, 1.6), 4.2), layout="constrained")
    return figure, figure.subplots(num_rows, num_columns, sharex=True, sharey="row", squeeze=False)


def _draw(axes: Any, rows: Rows, colour: str, label: str) -> None:
    times = [time for time, _, _ in rows]
    axes[0].step(times, [size for _, _, size in rows], where="post", color=colour, label=label)
    records = [BATCH_SIZE * rate for _, rate, _ in rows]
    axes[1].plot(times, records, color=colour, linewidth=1)


def _label(axes: Any) -> None:
    axes[0, 0].set_ylabel("ranks in the ring")
    axes[1, 0].set_ylabel("records/s")
    axes[0, 0].yaxis.get_major_locator().set_params(integer=True)
    for axis in axes.flat:
        axis.set_ylim(bottom=0)
        axis.set_xlim(left=0)


def _save(figure: Any, path: Path) -> None:
    figure.savefig(path, metadata={"Date": None})
