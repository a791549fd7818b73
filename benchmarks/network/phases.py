"""The rates that one training goes through, and the steps that it does at each.

A start costs as much as many steps, so a training is not started anew for each rate. While it runs,
this watches the steps that its first rank writes down, and changes the rate between them.
"""

import itertools
import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common import SideFailed
from benchmarks.elastic import stamps
from benchmarks.elastic.stamps import Stamp
from benchmarks.network.namespace import Rate, set_rate

__all__ = ["Phase", "Phases", "changing_rates", "step_seconds"]

LOOK_SECONDS = 0.01
NUM_LEFT_OUT = 1
"""Whole steps after a change of the rate that do not count."""


@dataclass(frozen=True, kw_only=True)
class Phase:
    """A span at one rate."""

    rate: Rate
    began: float
    """Of the machine's monotonic clock, in seconds."""


Phases = list[Phase]


def num_steps(num_timed: int, num_warmup: int, num_rates: int) -> int:
    """Steps of a training through all rates.

    Args:
        num_timed: Steps that count, at each rate.
        num_warmup: Steps before the first rate's.
        num_rates: Of rates.
    """
    # The step in which the rate is changed belongs to neither.
    return num_warmup + num_rates * (num_timed + NUM_LEFT_OUT + 1)


@contextmanager
def changing_rates(
    folder: Path, rates: Sequence[Rate], *, num_timed: int, num_warmup: int
) -> Iterator[Phases]:
    """Change the rate while a training runs in the block; afterwards there is no limit.

    Args:
        folder: Where its ranks write down their steps.
        rates: In order.
        num_timed: Steps that count, at each.
        num_warmup: Steps before those of the first.

    Yields:
        The phases, complete when the training has ended.
    """
    phases: Phases = []
    is_over = threading.Event()

    def watch() -> None:
        done = num_warmup
        for rate in rates:
            while _num_done(folder) < done:
                if is_over.wait(LOOK_SECONDS):
                    return
            set_rate(rate)
            phases.append(Phase(rate=rate, began=time.monotonic()))
            done = _num_done(folder) + num_timed + NUM_LEFT_OUT + 1

    set_rate(rates[0])
    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield phases
    finally:
        is_over.set()
        watcher.join()
        set_rate(Rate(name="no limit", bits_per_second=0.0))


def first_rank(folder: Path) -> list[Stamp]:
    """Steps of the rank in the first slot.

    Args:
        folder: Has a file `SLOT.PID` of each rank.
    """
    paths = sorted(folder.glob("0.*"))
    return stamps.read(paths[0]) if paths else []


def step_seconds(steps: Sequence[Stamp], phases: Sequence[Phase]) -> dict[str, float]:
    """The median step at each rate, in seconds.

    Args:
        steps: Of one rank, in order of time.
        phases: In order of time.

    Raises:
        SideFailed: There are no whole steps at one of the rates.
    """
    ends = [phase.began for phase in phases[1:]] + [float("inf")]
    found = {}
    for phase, end in zip(phases, ends, strict=True):
        gaps = [
            two.at - one.at
            for one, two in itertools.pairwise(steps)
            if one.at >= phase.began and two.at <= end
        ][NUM_LEFT_OUT:]
        if not gaps:
            raise SideFailed(f"no whole step at {phase.rate.name}")
        found[phase.rate.name] = statistics.median(gaps)
    return found


def _num_done(folder: Path) -> int:
    done = first_rank(folder)
    return done[-1].step if done else 0
