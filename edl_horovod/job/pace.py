"""Which rank is slow: its own part of a step, beside those of the others and beside its past."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from edl_horovod.job.events import AccountEvent, GenerationEvent, Recorded

__all__ = ["Pace", "Paces"]

_OWN = ("input", "computing")
"""The causes in which no rank waits for another one."""
_LEAST_SHARE = 0.1
"""A process with a smaller share of the steps says little: the first ones are slower."""
_NUM_RECENT, _LEAST_PAST = 5, 5
"""Accounts that make the present, and the least number of those that make the past."""
_Process = tuple[str, int, float]


class _Window(NamedTuple):
    """What a rank did between two of its accounts."""

    num_steps: int
    seconds: float
    """Its own part of these steps."""
    whole_seconds: float
    """The same times the size of the ring: the smaller that is, the larger is each rank's part."""


@dataclass(frozen=True)
class Pace:
    """How fast a rank is; a score of 1 means as fast, of 0.5 half as fast."""

    worker: str
    """`host:slot`"""
    pid: int
    step_seconds: float
    """Mean time of its own part of a step, without waiting for others."""
    score: float
    """The median of the other ranks' time, as a share of its own."""
    score_of_past: float | None
    """Its own time before, as a share of that of its last accounts; None for a short life."""

    def __str__(self) -> str:
        """Sentences."""
        text = (
            f"The slowest rank is {self.worker} (pid {self.pid}): its part of a step takes"
            f" {self.step_seconds * 1000:,.1f} ms, and it has {self.score:.0%} of the others' speed"
        )
        if self.score_of_past is not None:
            text += f" and now {self.score_of_past:.0%} of its own speed before"
        return f"{text}."


class Paces:
    """The paces of a job's ranks, from its events."""

    def __init__(self) -> None:
        self._size = 1
        self._windows: dict[_Process, list[_Window]] = {}
        self._last: dict[_Process, tuple[int, float]] = {}

    def add(self, recorded: Recorded) -> None:
        """Add the next event."""
        _, source, event = recorded
        match event:
            case GenerationEvent(is_formed=True):
                self._size = event.size
            case AccountEvent(steps=int(steps)):
                process = (source, event.pid, event.began)
                own_seconds = sum(event.seconds.get(cause, 0.0) for cause in _OWN)
                last_steps, last_seconds = self._last.get(process, (0, 0.0))
                if steps > last_steps:
                    seconds = own_seconds - last_seconds
                    window = _Window(steps - last_steps, seconds, seconds * self._size)
                    self._windows.setdefault(process, []).append(window)
                    self._last[process] = (steps, own_seconds)

    @property
    def slowest(self) -> Pace | None:
        """The slowest rank; None while fewer than two ranks have done steps."""
        least = _LEAST_SHARE * max((steps for steps, _ in self._last.values()), default=0)
        paces = {
            process: _pace(windows)
            for process, windows in self._windows.items()
            if self._last[process][0] >= least
        }
        process = max(paces, key=paces.__getitem__, default=None)
        if process is None or len(paces) < 2 or paces[process] <= 0:
            return None
        windows = self._windows[process]
        recent, past = windows[-_NUM_RECENT:], windows[:-_NUM_RECENT]
        score_of_past = None
        if len(past) >= _LEAST_PAST and _pace(recent) > 0:
            score_of_past = _pace(past) / _pace(recent)
        return Pace(
            worker=process[0],
            pid=process[1],
            step_seconds=sum(it.seconds for it in windows) / sum(it.num_steps for it in windows),
            score=statistics.median(paces[it] for it in paces if it != process) / paces[process],
            score_of_past=score_of_past,
        )


def _pace(windows: Sequence[_Window]) -> float:
    """Seconds that a ring of this rank alone would take for a step."""
    return sum(it.whole_seconds for it in windows) / sum(it.num_steps for it in windows)
