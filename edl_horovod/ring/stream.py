"""The state on its way to newcomers, slice by slice between steps (D18); no collective is here.

All ranks compute the same from what they received when the ring began: where the stream is, and how
much each newcomer has. Only how large a slice is, the leader says, who measures.
"""

import statistics
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from edl_horovod.frameworks.values import Rows, StateGroup, Variable, num_bytes

__all__ = ["FIRST_BYTES", "Layout", "Pace", "Received", "Stream"]

FIRST_BYTES = 1 << 20
"""Size of the first slice, before anything is measured."""
_LEAST_BYTES = 1 << 18
"""A collective costs some 1 ms, whatever it carries."""
_MOST_BYTES = 32 << 20
"""A rank holds a slice three times over while it is sent, and all wait until newcomers wrote it."""
_MOST_SECONDS = 0.15
_GROWTH = 2.0
"""By how much a slice may be larger than the one before: a rate of small ones says little."""
_REMEMBERED_STEPS = 15
_AIM = 0.5
"""Part of the share that is aimed at: slices differ, and what a newcomer does with one, the leader
does not see."""


@dataclass(frozen=True)
class _Table:
    """A group of variables as rows of bytes."""

    variables: tuple[Variable, ...]
    num_rows: int
    """1 where the group only goes as a whole."""
    row_bytes: int
    start: int
    """Where it begins in the stream."""


class Layout:
    """The order of the groups in the stream, as if they were one run of bytes."""

    def __init__(self, groups: Sequence[StateGroup], variables: Mapping[str, Variable]) -> None:
        """Put the groups one after the other."""
        self._tables: list[_Table] = []
        self.num_bytes = 0
        for group in groups:
            members = tuple(variables[name] for name in group.names)
            size = sum(num_bytes(variable.shape, variable.dtype) for variable in members)
            if not size:
                continue
            num_rows = next(iter(members[0].shape)) if group.is_by_rows else 1
            self._tables.append(_Table(members, num_rows, size // num_rows, self.num_bytes))
            self.num_bytes += size

    def cut(self, start: int, wanted: int) -> tuple[list[Rows], int]:
        """The parts that follow a place: about so many bytes, at least one row, none past the end.

        Args:
            start: A place in bytes that an earlier call returned, or 0.
            wanted: Bytes.

        Returns:
            The parts, and the place behind them.
        """
        parts: list[Rows] = []
        end, limit = start, start + max(1, wanted)
        for table in self._tables:
            if not table.start <= end < table.start + table.num_rows * table.row_bytes:
                continue
            first = (end - table.start) // table.row_bytes
            if end >= limit or (parts and end + table.row_bytes > limit):
                break
            last = min(table.num_rows, max(first + 1, (limit - table.start) // table.row_bytes))
            is_whole = table.num_rows == 1
            parts += [
                Rows(variable) if is_whole else Rows(variable, first, last)
                for variable in table.variables
            ]
            end = table.start + last * table.row_bytes
        return parts, end


@dataclass(frozen=True)
class Received:
    """What a rank without the whole state has of it, kept up to date by the steps since."""

    step: int
    """Steps that are done in it."""
    start: int = 0
    """Where in the stream it begins; it may go on from the stream's end to its begin."""
    num_bytes: int = 0


class Stream:
    """Where the stream is, and how much of it each newcomer has."""

    def __init__(self, layout: Layout, received: Mapping[int, Received], step: int) -> None:
        """Go on where a stream was that was broken off, or begin.

        Args:
            layout: Of the state.
            received: What each newcomer, by its rank, has.
            step: Steps in the ring's state; what is of another step is of no use.
        """
        self._layout = layout
        self.next_bytes = FIRST_BYTES
        of_use = [
            progress
            for progress in received.values()
            if progress.step == step and progress.num_bytes
        ]
        # They may differ by the slice in which the ring broke.
        least = min(of_use, key=lambda progress: progress.num_bytes, default=Received(step))
        self.place = (least.start + least.num_bytes) % layout.num_bytes
        self._have = {rank: self._taken_up(progress, step) for rank, progress in received.items()}

    def _taken_up(self, received: Received, step: int) -> Received:
        reach = (self.place - received.start) % self._layout.num_bytes
        if received.step == step and reach <= received.num_bytes:
            return Received(step, received.start, reach)
        return Received(step, self.place)

    @property
    def lacking(self) -> frozenset[int]:
        """Ranks that do not have the whole state yet."""
        return frozenset(self._have)

    def received(self, rank: int, step: int) -> Received:
        """What such a rank has, after so many steps."""
        had = self._have[rank]
        return Received(step, had.start, had.num_bytes)

    def next_slice(self, most_bytes: int) -> tuple[list[Rows], int]:
        """The parts that follow, and how many bytes they are."""
        parts, end = self._layout.cut(self.place, most_bytes)
        return parts, end - self.place

    def advance(self, num_bytes: int) -> bool:
        """Count a slice that all have received; returns whether a rank has the whole state now."""
        self.place = (self.place + num_bytes) % self._layout.num_bytes
        before = len(self._have)
        self._have = {
            rank: Received(had.step, had.start, had.num_bytes + num_bytes)
            for rank, had in self._have.items()
            if had.num_bytes + num_bytes < self._layout.num_bytes
        }
        return len(self._have) < before


class Pace:
    """How large a slice may be, so that it takes a share of a step's time."""

    def __init__(self, share: float) -> None:
        """Know nothing yet; `share` is that of a step's median time."""
        self._share = share
        self._steps: deque[float] = deque(maxlen=_REMEMBERED_STEPS)
        self._next_bytes = FIRST_BYTES

    def stepped(self, seconds: float) -> None:
        """Note what a step took, without the slice."""
        self._steps.append(seconds)

    def sent(self, num_bytes: int, seconds: float) -> None:
        """Note what a slice took."""
        if self._steps:
            target = min(_AIM * self._share * statistics.median(self._steps), _MOST_SECONDS)
            fits = int(num_bytes / max(seconds, 1e-6) * target)
            most = min(_MOST_BYTES, int(_GROWTH * self._next_bytes))
            self._next_bytes = max(_LEAST_BYTES, min(fits, most))

    @property
    def next_bytes(self) -> int:
        """Bytes of the slice after the next."""
        return self._next_bytes
