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
    wait_seconds: float
    """Its waits for the others in them."""
    size: int
    """Ranks in the ring."""


@dataclass(frozen=True)
class Pace:
    """How fast a rank is; a score of 1 means as fast, of 0.5 half as fast."""

    worker: str
    """`host:slot`"""
    pid: int
    step_seconds: float
    """Mean time of its own part of a step, without waiting for others."""
    score: float
    """The median of the other ranks' time for their parts of the same steps, by its own."""
    score_of_past: float | None
    """Its own time before, by that of its last accounts; None for a short life."""

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
        self._last: dict[_Process, tuple[int, float, float]] = {}
        """Steps, seconds of its own and seconds of waits in the last account of each process."""

    def add(self, recorded: Recorded) -> None:
        """Add the next event."""
        _, source, event = recorded
        match event:
            case GenerationEvent(is_formed=True):
                self._size = event.size
            case AccountEvent(steps=int(steps)):
                process = (source, event.pid, event.began)
                seconds = sum(event.seconds.get(cause, 0.0) for cause in _OWN)
                waits = event.seconds.get("exchange", 0.0)
                last_steps, last_seconds, last_waits = self._last.get(process, (0, 0.0, 0.0))
                if steps > last_steps:
                    self._last[process] = (steps, seconds, waits)
                    if self._size > 1:
                        window = _Window(
                            num_steps=steps - last_steps,
                            seconds=seconds - last_seconds,
                            wait_seconds=waits - last_waits,
                            size=self._size,
                        )
                        self._windows.setdefault(process, []).append(window)

    @property
    def slowest(self) -> Pace | None:
        """The slowest rank; None while fewer than two ranks have done steps."""
        least = _LEAST_SHARE * max((totals[0] for totals in self._last.values()), default=0)
        shares = {
            process: _own_share(windows)
            for process, windows in self._windows.items()
            if self._last[process][0] >= least
        }
        process = max(shares, key=shares.__getitem__, default=None)
        if process is None or len(shares) < 2 or shares[process] <= 0:
            return None
        windows = self._windows[process]
        recent, past = windows[-_NUM_RECENT:], windows[:-_NUM_RECENT]
        score_of_past = None
        if len(past) >= _LEAST_PAST and (recent_seconds := _whole_step_seconds(recent)) > 0:
            score_of_past = _whole_step_seconds(past) / recent_seconds
        return Pace(
            worker=process[0],
            pid=process[1],
            step_seconds=sum(it.seconds for it in windows) / sum(it.num_steps for it in windows),
            score=statistics.median(shares[it] for it in shares if it != process) / shares[process],
            score_of_past=score_of_past,
        )


def _own_share(windows: Sequence[_Window]) -> float:
    """The share of the steps' time in which a rank does its own part.

    All ranks of a ring take the same time for a step. So these compare, although the ranks' lives
    differ, and the steps as well.
    """
    seconds = sum(it.seconds for it in windows)
    whole = seconds + sum(it.wait_seconds for it in windows)
    return seconds / whole if whole > 0 else 0.0


def _whole_step_seconds(windows: Sequence[_Window]) -> float:
    """Seconds that a rank would take for all of a step: in a smaller ring its part is larger."""
    return sum(it.seconds * it.size for it in windows) / sum(it.num_steps for it in windows)
