"""Which rank is slow: its own part of a step, beside those of the others and beside its past."""

import operator
import statistics
from collections import deque
from collections.abc import Iterable, Mapping
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

    @classmethod
    def sum(cls, windows: Iterable[Self]) -> Self:
        """All of several windows."""
        return cls(*(sum(values) for values in zip(*windows, strict=True)))

    @property
    def own_share(self) -> float:
        """The share of the steps' time in which a rank does its own part.

        All ranks of a ring take the same time for a step. So these compare within a ring, although
        the ranks do not write their accounts at the same moments.
        """
        time = self.seconds + self.wait_seconds
        return self.seconds / time if time > 0 else 0.0


class _Comparison(NamedTuple):
    """The steps of a rank in rings with others that did enough of the same steps."""

    num_steps: int = 0
    seconds: float = 0.0
    """Its own part of these steps."""
    others_seconds: float = 0.0
    """The same at the pace of the others: the median of theirs in each ring."""


class _Last(NamedTuple):
    """The last account of a process."""

    num_rings: int
    """Rings that had formed by then."""
    num_steps: int = 0
    seconds: float = 0.0
    wait_seconds: float = 0.0


@dataclass
class _Life:
    """Windows of a process, of which all but the last ones are kept as their sum."""

    past: _Window = field(default_factory=_Window)
    num_past: int = 0
    recent: deque[_Window] = field(default_factory=deque)

    def add(self, window: _Window) -> None:
        self.recent.append(window)
        if len(self.recent) > _NUM_RECENT:
            self.past = _Window.sum([self.past, self.recent.popleft()])
            self.num_past += 1


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
        self._size, self._num_rings = 1, 0
        self._ring: dict[_Process, _Window] = {}
        """What the ranks have done in the present ring."""
        self._comparisons: dict[_Process, _Comparison] = {}
        """Those in all former rings."""
        self._lives: dict[tuple[_Process, int], _Life] = {}
        """By the size of the ring, too: a rank's part of a step may depend on it."""
        self._last: dict[_Process, _Last] = {}
        self._last_size: dict[_Process, int] = {}
        """Size of the last ring in which each process was seen to do steps."""

    def add(self, recorded: Recorded) -> None:
        """Add the next event."""
        _, source, event = recorded
        match event:
            case GenerationEvent(is_formed=True):
                self._comparisons, self._ring = self._all_comparisons(), {}
                self._size, self._num_rings = event.size, self._num_rings + 1
            case AccountEvent(steps=int(num_steps)) if num_steps > 0:
                self._add_account((source, event.pid, event.began), num_steps, event)

    def _add_account(self, process: _Process, num_steps: int, account: AccountEvent) -> None:
        last = self._last.get(process, _Last(self._num_rings))
        if num_steps <= last.num_steps:
            self._last[process] = last._replace(num_rings=self._num_rings)
            return
        seconds = sum(account.seconds.get(cause, 0.0) for cause in _OWN)
        waits = account.seconds.get("exchange", 0.0)
        self._last[process] = _Last(self._num_rings, num_steps, seconds, waits)
        # Steps in two rings compare with those of neither.
        if self._size == 1 or last.num_rings < self._num_rings:
            return
        window = _Window(
            num_steps=num_steps - last.num_steps,
            seconds=seconds - last.seconds,
            wait_seconds=waits - last.wait_seconds,
        )
        self._ring[process] = _Window.sum([self._ring.get(process, _Window()), window])
        self._lives.setdefault((process, self._size), _Life()).add(window)
        self._last_size[process] = self._size

    def _all_comparisons(self) -> dict[_Process, _Comparison]:
        """Those in all rings, the present one included."""
        comparisons = dict(self._comparisons)
        for process, comparison in _compared(self._ring).items():
            before = comparisons.get(process, _Comparison())
            comparisons[process] = _Comparison(*map(operator.add, before, comparison))
        return comparisons

    @property
    def slowest(self) -> Pace | None:
        """The slowest rank; None while fewer than two ranks have done steps in the same ring."""
        least = _LEAST_SHARE * max((last.num_steps for last in self._last.values()), default=0)
        comparisons = {
            process: comparison
            for process, comparison in self._all_comparisons().items()
            if self._last[process].num_steps >= least and comparison.seconds > 0
        }
        scores = {it: other.others_seconds / other.seconds for it, other in comparisons.items()}
        process = min(scores, key=scores.__getitem__, default=None)
        if process is None:
            return None
        life = self._lives[process, self._last_size[process]]
        past, recent = life.past, _Window.sum(life.recent)
        score_of_past = None
        if life.num_past >= _LEAST_PAST and recent.seconds > 0:
            past_seconds = past.seconds / past.num_steps
            score_of_past = past_seconds / (recent.seconds / recent.num_steps)
        comparison = comparisons[process]
        return Pace(
            worker=process[0],
            pid=process[1],
            step_seconds=comparison.seconds / comparison.num_steps,
            score=scores[process],
            score_of_past=score_of_past,
        )


def _compared(ring: Mapping[_Process, _Window]) -> dict[_Process, _Comparison]:
    """Compare each rank of a ring with the others."""
    least = _LEAST_SHARE * max((window.num_steps for window in ring.values()), default=0)
    windows = {process: window for process, window in ring.items() if window.num_steps >= least}
    if len(windows) < 2:
        return {}
    comparisons = {}
    for process, window in windows.items():
        share = statistics.median(it.own_share for rank, it in windows.items() if rank != process)
        others_seconds = share * (window.seconds + window.wait_seconds)
        comparisons[process] = _Comparison(window.num_steps, window.seconds, others_seconds)
    return comparisons
