"""Index of a data set of a million chunks: time and memory of the ranks of one host."""

from benchmarks import common
from benchmarks.common import Workspace
from benchmarks.elastic.settings import OURS
from benchmarks.elastic.table import Line
from benchmarks.network.results import Found
from benchmarks.network.settings import Run

__all__ = ["measure"]

NUM_FILES = 1000
NUM_CHUNKS = 1000
"""Of each file."""
MOST_SECONDS = 0.3
MOST_MEBIBYTES = 60.0
MEBIBYTE = 2**20


def measure(run: Run) -> Found:
    """Open the files for the first time, and then as every later worker does.

    Args:
        run: Says how many.

    Raises:
        SideFailed: They cannot be written or opened.
    """
    space = Workspace(run.place("index"), common.QUICK)
    num_files = round(NUM_FILES * run.settings.step_share)
    space.data = space.folder / "chunks"
    space.run_side("benchmarks.ours.many_chunks", f"--files={num_files}", f"--chunks={NUM_CHUNKS}")

    def opened() -> common.Numbers:
        flag = f"--job-folder={space.folder / 'job'}"
        return space.run_side("benchmarks.ours.index_ranks", flag)

    first = opened()
    later = [opened() for _ in range(run.settings.repetitions)]
    chunks = f"{num_files * NUM_CHUNKS:,} chunks in {num_files:,} files"
    mebibytes = tuple(numbers["bytes"] / MEBIBYTE for numbers in later)
    return Found(
        lines=[
            Line(
                event=f"first opening of {chunks}, which indexes them",
                side=OURS,
                values=(first["seconds"],),
            ),
            Line(
                event="a worker has the index after",
                side=OURS,
                values=tuple(numbers["seconds"] for numbers in later),
                most_median=MOST_SECONDS,
            ),
            Line(
                event="memory of the index, 2 ranks of a host together",
                side=OURS,
                values=mebibytes,
                unit="M",
                most=MOST_MEBIBYTES,
            ),
        ]
    )
