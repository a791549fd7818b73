"""What a rank leaves behind: when each step ended, and its memory.

From the ends of steps follow stalls and lost steps. Only the standard library is imported, because
the ranks of all sides do, also those without our packages.
"""

import itertools
import json
import math
import os
import statistics
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

MEDIAN_STEPS = 200
"""Steps before an event whose median is an undisturbed step."""
MEAN_SPANS = 4
"""Spans over which a loss is averaged."""

Rows = list[tuple[float, float, int]]
"""Seconds, a value such as steps a second, and the size of the ring."""


@dataclass(frozen=True, kw_only=True)
class Stamp:
    """The end of one step on one rank."""

    at: float
    """Seconds of the machine's monotonic clock, which all its processes share."""
    step: int
    """The number of steps of the job that are done."""
    size: int
    """The number of ranks in the ring."""
    loss: float = math.nan
    """The loss of the rank's part of the step, where the side writes it."""


class Stamper:
    """Appends a short line for each step to the rank's own file, in a few microseconds."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def step(self, step: int, size: int, loss: float = math.nan) -> None:
        """Write that a step is done, now."""
        os.write(self._file, f"{time.monotonic():.6f} {step} {size} {loss:.6g}\n".encode())


def read(path: Path) -> list[Stamp]:
    """The stamps of a file, none where there is no file yet.

    A last line without its end, of a rank that was killed, is left out.
    """
    text = path.read_text() if path.exists() else ""
    parts = (line.split() for line in text[: text.rfind("\n") + 1].splitlines())
    return [
        Stamp(at=float(at), step=int(step), size=int(size), loss=float(loss))
        for at, step, size, loss in parts
    ]


def stall(stamps: Sequence[Stamp], begin: float, end: float) -> float:
    """Seconds for which a rank stood still: its longest gap, less a median step.

    Gaps that end before `begin` make up the median, and those that begin after `end` do not count.

    Raises:
        ValueError: There are no steps on one of the two sides.
    """
    spans = [(last.at, step.at) for last, step in itertools.pairwise(stamps)]
    before = [until - since for since, until in spans if until < begin][-MEDIAN_STEPS:]
    around = [until - since for since, until in spans if until >= begin and since <= end]
    if not before or not around:
        raise ValueError(f"no steps before or after the event between {begin:.2f} and {end:.2f}")
    return max(0.0, max(around) - statistics.median(before))


def change_of_size(stamps: Sequence[Stamp], size: int, after: float) -> float | None:
    """When the first step in a ring that has come to a size ended, after some time; else None."""
    pairs = itertools.pairwise(stamps)
    came = (step for last, step in pairs if step.at > after and step.size == size != last.size)
    return next((step.at for step in came), None)


def num_redone(stamps: Sequence[Stamp]) -> int:
    """Completed steps that were done once more."""
    most, redone = -1, 0
    for stamp in stamps:
        redone += stamp.step <= most
        most = max(most, stamp.step)
    return redone


def steps_per_second(stamps: Sequence[Stamp], begin: float, end: float) -> float:
    """New steps of the job a second between two times, by the stamps of any of its ranks."""

    def done_at(time_: float) -> int:
        return max((stamp.step for stamp in stamps if stamp.at <= time_), default=0)

    return (done_at(end) - done_at(begin)) / (end - begin)


def rate_over_time(stamps: Sequence[Stamp], begin: float, end: float, *, every: float) -> Rows:
    """Time since `begin`, new steps a second and the ring's size, in spans of so many seconds."""
    ordered = sorted(stamps, key=lambda stamp: stamp.at)
    rows, place, most, size = [], 0, 0, 0
    # The first span is that before `begin`.
    for number in range(-1, int((end - begin) / every)):
        before, until = most, begin + (number + 1) * every
        while place < len(ordered) and ordered[place].at < until:
            most, size, place = max(most, ordered[place].step), ordered[place].size, place + 1
        rows.append((number * every, (most - before) / every, size if most > before else 0))
    return rows[1:]


def loss_over_time(stamps: Sequence[Stamp], begin: float, end: float, *, every: float) -> Rows:
    """Time since `begin`, mean loss of the last spans and the ring's size, in spans of seconds.

    Where no step ended the loss is that of the span before, and the ring has no ranks.
    """
    spans: dict[int, list[Stamp]] = defaultdict(list)
    for stamp in sorted(stamps, key=lambda stamp: stamp.at):
        spans[math.floor((stamp.at - begin) / every)].append(stamp)
    rows, loss = [], math.nan
    for number in range(int((end - begin) / every)):
        if stamps_of_span := spans[number]:
            last_spans = range(number - MEAN_SPANS + 1, number + 1)
            loss = statistics.fmean(stamp.loss for past in last_spans for stamp in spans[past])
        size = stamps_of_span[-1].size if stamps_of_span else 0
        rows.append((number * every, loss, size))
    return rows


def last_pid(folder: Path, pattern: str) -> int:
    """The process that wrote last, of those whose files `NAME.PID` match."""
    paths = [path for path in folder.glob(pattern) if path.suffix[1:].isdigit()]
    return int(max(paths, key=lambda path: path.stat().st_mtime_ns).suffix[1:])


def write_memory(folder: Path, name: str) -> None:
    """Write what this process has used until now, to `memory.NAME.json`."""
    used = {
        # Most pages that were ever there at once, shared ones in whole.
        "peak_bytes": status_bytes("VmHWM"),
        "proportional_bytes": proportional_bytes(),
    }
    (folder / f"memory.{name}.json").write_text(json.dumps(used))


def proportional_bytes() -> int:
    """What this process uses now; of pages that several share, its part."""
    return status_bytes("Pss", "/proc/self/smaps_rollup")


def status_bytes(name: str, path: str = "/proc/self/status") -> int:
    """A field of a process' status, which Linux tells in KiB."""
    lines = Path(path).read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(f"{name}:")).split()[1])
