"""Which rank is slow: its own part of a step, beside those of the others and beside its past."""

import statistics
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple, Self

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
    """What a rank did between two of its accounts, or the sum of several of these."""

    num_steps: int = 0
    seconds: float = 0.0
    """Its own part of these steps."""
    wait_seconds: float = 0.0
    """Its waits for the others in them."""
    whole_seconds: float = 0.0
    """Its time for all of these steps, if it were alone: in a smaller ring its part is larger."""

    @classmethod
    def sum(cls, windows: Iterable[Self]) -> Self:
        """All of several windows."""
        return cls(*(sum(values) for values in zip(*windows, strict=True)))

    @property
    def own_share(self) -> float:
        """The share of the steps' time in which a rank does its own part.

        All ranks of a ring take the same time for a step. So these compare, although the ranks'
        lives differ, and the steps as well.
        """
        time = self.seconds + self.wait_seconds
        return self.seconds / time if time > 0 else 0.0


@dataclass
class _Life:
    """The windows of a process, of which all but the last ones are kept as their sum."""

    past: _Window = field(default_factory=_Window)
    num_past: int = 0
    recent: deque[_Window] = field(default_factory=deque)

    def add(self, window: _Window) -> None:
        self.recent.append(window)
        if len(self.recent) > _NUM_RECENT:
            self.past = _Window.sum([self.past, self.recent.popleft()])
            self.num_past += 1

    @property
    def total(self) -> _Window:
        return _Window.sum([self.past, *self.recent])


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
        self._lives: dict[_Process, _Life] = {}
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
                        own_seconds = seconds - last_seconds
                        window = _Window(
                            num_steps=steps - last_steps,
                            seconds=own_seconds,
                            wait_seconds=waits - last_waits,
                            whole_seconds=own_seconds * self._size,
                        )
                        self._lives.setdefault(process, _Life()).add(window)

    @property
    def slowest(self) -> Pace | None:
        """The slowest rank; None while fewer than two ranks have done steps."""
        least = _LEAST_SHARE * max((totals[0] for totals in self._last.values()), default=0)
        shares = {
            process: life.total.own_share
            for process, life in self._lives.items()
            if self._last[process][0] >= least
        }
        process = max(shares, key=shares.__getitem__, default=None)
        if process is None or len(shares) < 2 or shares[process] <= 0:
            return None
        life = self._lives[process]
        total, past, recent = life.total, life.past, _Window.sum(life.recent)
        score_of_past = None
        if life.num_past >= _LEAST_PAST and recent.whole_seconds > 0:
            past_seconds = past.whole_seconds / past.num_steps
            score_of_past = past_seconds / (recent.whole_seconds / recent.num_steps)
        return Pace(
            worker=process[0],
            pid=process[1],
            step_seconds=total.seconds / total.num_steps,
            score=statistics.median(shares[it] for it in shares if it != process) / shares[process],
            score_of_past=score_of_past,
        )
