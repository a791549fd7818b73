"""When each step ended, as a rank wrote it down, and what follows from it: stalls, lost steps.

Only the standard library: the ranks of all sides import it, also those without our packages.
"""

import itertools
import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = [
    "Stamp",
    "Stamper",
    "change_of_size",
    "num_redone",
    "parse",
    "rate_over_time",
    "read",
    "stall",
    "steps_per_second",
]

MEDIAN_STEPS = 200
"""Steps before an event whose median is an undisturbed step."""


@dataclass(frozen=True, kw_only=True)
class Stamp:
    """The end of one step on one rank."""

    at: float
    """Of the machine's monotonic clock, which all its processes share; in seconds."""
    step: int
    """Steps of the job that are done."""
    size: int
    """Ranks of the ring that did it."""


class Stamper:
    """Appends one short line a step; a few microseconds each."""

    def __init__(self, path: Path) -> None:
        """Open the file.

        Args:
            path: The rank's own file; its folder is made.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def step(self, step: int, size: int) -> None:
        """Write that a step is done, now."""
        os.write(self._file, f"{time.monotonic():.6f} {step} {size}\n".encode())


def parse(text: str) -> list[Stamp]:
    """The stamps of a file; a last line without its end, of a rank that was killed, is left out."""
    whole = text[: text.rfind("\n") + 1]
    parts = (line.split() for line in whole.splitlines())
    return [Stamp(at=float(at), step=int(step), size=int(size)) for at, step, size in parts]


def read(path: Path) -> list[Stamp]:
    """The stamps of a file; none where there is no file yet."""
    try:
        return parse(path.read_text())
    except FileNotFoundError:
        return []


def stall(stamps: Sequence[Stamp], begin: float, end: float) -> float:
    """Seconds for which a rank stood still: its longest gap, less a median step.

    Args:
        stamps: Of one rank, in order of time.
        begin: Gaps that end before do not count, but make up the median.
        end: Nor do gaps that begin after it.

    Raises:
        ValueError: There are no steps on one of the two sides.
    """
    gaps = [(one.at, two.at) for one, two in itertools.pairwise(stamps)]
    before = [two - one for one, two in gaps if two < begin][-MEDIAN_STEPS:]
    around = [two - one for one, two in gaps if two >= begin and one <= end]
    if not before or not around:
        raise ValueError(f"no steps before or after the event between {begin:.2f} and {end:.2f}")
    return max(0.0, max(around) - statistics.median(before))


def change_of_size(stamps: Sequence[Stamp], size: int, after: float) -> float | None:
    """When a rank's first step in a ring of another size ended; None where there is none yet.

    Args:
        stamps: Of one rank, in order of time.
        size: Of the ring that it is to come to.
        after: Steps that ended before this time do not count.
    """
    pairs = itertools.pairwise(stamps)
    return next(
        (two.at for one, two in pairs if two.at > after and two.size == size != one.size), None
    )


def num_redone(stamps: Sequence[Stamp]) -> int:
    """Completed steps that were done once more."""
    most, redone = -1, 0
    for stamp in stamps:
        redone += stamp.step <= most
        most = max(most, stamp.step)
    return redone


def steps_per_second(stamps: Sequence[Stamp], begin: float, end: float) -> float:
    """New steps of the job a second between two times, by the stamps of all its ranks.

    Args:
        stamps: Of any of the job's ranks, together.
        begin: Start of the span.
        end: Its end.
    """

    def done_at(time_: float) -> int:
        return max((stamp.step for stamp in stamps if stamp.at <= time_), default=0)

    return (done_at(end) - done_at(begin)) / (end - begin)


def rate_over_time(
    stamps: Sequence[Stamp], begin: float, end: float, *, every: float
) -> list[tuple[float, float, int]]:
    """Time since `begin`, steps a second and the ring's size, in spans of equal length.

    Args:
        stamps: Of any of the job's ranks, together.
        begin: Start of the first span.
        end: End of the last one.
        every: Length of a span, in seconds.
    """
    ordered = sorted(stamps, key=lambda stamp: stamp.at)
    rows, place, most, size = [], 0, 0, 0
    while place < len(ordered) and ordered[place].at < begin:
        most, size, place = max(most, ordered[place].step), ordered[place].size, place + 1
    for number in range(int((end - begin) / every)):
        before, until = most, begin + (number + 1) * every
        while place < len(ordered) and ordered[place].at < until:
            most, size, place = max(most, ordered[place].step), ordered[place].size, place + 1
        rows.append((number * every, (most - before) / every, size if most > before else 0))
    return rows
