"""The state that all ranks of a ring must agree on, and how it reaches newcomers (D7).

A newcomer is sent the state slice by slice between steps (D18). All ranks compute the same from
what they received when the ring began: where the stream is, and how much each newcomer has. Only
how large a slice is, the leader says, who measures.
"""

import hashlib
import logging
import re
import statistics
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from edl_horovod.errors import UserCodeError
from edl_horovod.frameworks.base import Collectives
from edl_horovod.frameworks.values import Rows, StateGroup, Variable, num_bytes
from edl_horovod.frameworks.world import World

__all__ = [
    "FIRST_BYTES",
    "NEVER",
    "Counters",
    "Durable",
    "Layout",
    "Pace",
    "Received",
    "RingState",
    "StateLost",
    "Stream",
]

log = logging.getLogger(__name__)

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
NEVER = -1
_TORN = -2
"""In place of the steps of a rank whose variables are partly its own and partly another's."""


_LEADER = 0
_ALL = 1 << 62
"""Bytes of a slice where the leader wants all that is left at once."""
_DESCRIPTION_BYTES = 256
"""Space for the description of a variable in an error, in bytes."""
_STREAM = "edl.sync.stream"
_LEAST_STREAMED_BYTES = 16 << 20
"""Less is copied at once."""
_SLICE_BYTES = 32 << 20
"""Size of the slices of what is left where a stream is cut short."""


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
            layout: The layout of the state.
            received: What each newcomer has received, by its rank.
            step: The steps in the ring's state. What was received of another step is useless.
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
        """`share` is the part of a step's median time that sending may take."""
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


class StateLost(Exception):
    """No rank of the ring has a whole state, not even the one that a job begins with."""


@dataclass
class Counters:
    """How far a rank is; a task adds its own numbers.

    Compared in the order of the fields, they say which of two ranks is the more advanced.
    """

    step: int = NEVER
    """Steps of the job that are done; -1 before the first sync."""


@dataclass(frozen=True)
class _Row:
    """What a rank tells the others at a sync."""

    model: int
    """A number of 63 bits that is the same where the variables have the same names and shapes."""
    num_variables: int
    saved_step: int
    """The newest saved one that it sees."""
    has_own: bool
    """Whether it has done steps that nothing else may have."""
    may_stream: bool
    received: Received
    """What it has of the state where it has no whole one."""
    counters: list[int]

    @classmethod
    def of(cls, numbers: list[int]) -> "_Row":
        """The row that these numbers say."""
        model, num_variables, saved, has_own, may_stream, *more = numbers
        step, start, num_bytes, *counters = more
        received = Received(step, start, num_bytes)
        return cls(model, num_variables, saved, bool(has_own), bool(may_stream), received, counters)


class Durable(Protocol):
    """Where a state is kept that outlives all ranks."""

    def newest_step(self) -> int:
        """Step of the newest state there; -1 for none."""

    def load(self, after: int) -> Mapping[str, int] | None:
        """Give the variables the newest good state, if its step is after this one.

        Returns:
            Its counters, by name; None where there is none.
        """


class RingState:
    """A job's variables and counters, which are the same on all ranks of its ring.

    Variables change only after a step's collectives have succeeded on this rank, and then all of
    them at once. So a rank's state is always that of a whole step, and a failed step leaves nothing
    to undo. What is not listed here is lost when a rank is replaced.

    A newcomer may be given a large state bit by bit while the ring goes on (`is_streaming`). Until
    it has all it is a rank without examples: the steps keep current what it has.
    """

    def __init__(
        self,
        variables: Mapping[str, Variable],
        counters: Counters,
        collectives: Collectives,
        *,
        durable: Durable | None = None,
        groups: Sequence[StateGroup] = (),
        join_share: float = 0.0,
    ) -> None:
        """Start as a rank that knows nothing yet.

        Args:
            variables: All that changes while the job runs; same names, order, shapes and types on
                all ranks.
            counters: How far this rank is; the task counts in them, and a sync sets them.
            collectives: The ring's collectives.
            durable: Holds the state if all ranks are lost; None if nothing does.
            groups: The groups of variables; see `Step.groups`.
            join_share: The share of a step's time that may be spent after it on sending state to
                newcomers; 0 sends all of the state at once.
        """
        self.variables = dict(variables)
        self.counters = counters
        self._descriptions = [_description(name, v) for name, v in self.variables.items()]
        self._model = _number_of("".join(self._descriptions))
        self._collectives = collectives
        self._durable = durable
        self._join_share = join_share
        grouped = {name for group in groups for name in group.names}
        self._ungrouped = [v for name, v in self.variables.items() if name not in grouped]
        self._layout = Layout(groups, self.variables)
        self._stream: Stream | None = None
        self._pace = Pace(join_share)
        self._sent_at: float | None = None
        self._rank = 0
        self._is_saved = False
        """Whether the variables are just as they were read from where states are kept durably."""

    @property
    def step(self) -> int:
        """Steps of the job that are done; -1 before the first sync, less where one was broken."""
        return self.counters.step

    @property
    def own_step(self) -> int:
        """Steps that are done in this rank's state; -1 where it has no whole one."""
        return max(NEVER, self.step) if self.is_whole else NEVER

    @property
    def is_whole(self) -> bool:
        """Whether this rank has all of the state, as far as the ring has one."""
        return self._stream is None or self._rank not in self._stream.lacking

    @property
    def is_streaming(self) -> bool:
        """Whether some rank is still receiving the state; the answer is the same on all ranks."""
        return self._stream is not None

    def holders(self, world: World) -> Sequence[int]:
        """The ranks that have the state; the same answer on all ranks."""
        lacking = self._stream.lacking if self._stream is not None else ()
        return [rank for rank in range(world.size) if rank not in lacking]

    def digest(self) -> str:
        """A digest of all variables; the same on ranks whose variables are bit-identical."""
        total = hashlib.blake2b(digest_size=16)
        for variable in self.variables.values():
            total.update(np.ascontiguousarray(variable.numpy()).data)
        return total.hexdigest()

    def commit(self) -> None:
        """Mark a step as done."""
        self.counters.step += 1
        self._is_saved = False

    def recover(self) -> None:
        """Take up what is saved durably, where that is ahead of this rank.

        Raises:
            ConfigError: What is saved is of another data set or plan.
            DataError: What is saved is of another model.
        """
        after = max(NEVER, self.step)
        saved = self._durable.load(after=after) if self._durable is not None else None
        if saved is not None:
            self._set_counters({name: saved.get(name, NEVER) for name in vars(self.counters)})
            self._is_saved = True

    def begin_alone(self) -> None:
        """Do what `sync` does, in a ring of one."""
        self._end_stream()
        self.recover()
        self._require_whole(self.step)
        self._begin()

    def sync(self, world: World, *, may_stream: bool = False) -> None:
        """Give all ranks the state of the most advanced one; a completed step is never rolled back.

        All ranks call it at the same points: once after each forming of the ring, and where the
        leader alone went on between two steps.

        Variables are copied one after the other, so that no rank needs room for a second state, and
        what is equal already is not copied. The source's state stays whole whatever happens, and so
        does one that might be the last: of a rank which has done steps that are not saved, or the
        one that a job begins with. Such a rank takes all that has come at once. Any other has no
        state until the end.

        Args:
            world: The ring.
            may_stream: Whether newcomers may be given a large state while the ring goes on; what
                the leader says counts.

        Raises:
            CollectiveFailed: A member was lost; form the ring again.
            UserCodeError: The ranks do not have the same variables.
        """
        received, self._rank = self._end_stream(), world.rank
        rows = self._gather(received, may_stream)
        # The same rows on all ranks, so all end here or none.
        if len({row.model for row in rows}) > 1:
            raise self._other_models(max(row.num_variables for row in rows))
        # The same rows on all ranks, so all go this way or none. It is for a ring whose members
        # waited outside while those who trained, and saved, were lost.
        if max(row.saved_step for row in rows) > max(row.counters[0] for row in rows):
            self.recover()
            rows = self._gather(received, may_stream)
        root = max(range(len(rows)), key=lambda rank: (*rows[rank].counters, -rank))
        source = rows[root].counters
        self._require_whole(source[0])
        behind = [rank for rank, row in enumerate(rows) if row.counters != source]
        has_own = self._has_own
        if world.rank in behind and not has_own:
            self._set_counters({**dict.fromkeys(vars(self.counters), NEVER), "step": _TORN})
        if self._is_to_stream(rows, root, behind):
            self._collectives.broadcast(self._ungrouped, root, "edl.sync")
            self._begin_stream({rank: rows[rank].received for rank in behind}, source[0])
        else:
            variables = list(self.variables.values())
            if all(row.counters[0] == source[0] for row in rows):
                variables = self._differing(variables, root)
            # What a job begins with is whole, too, although no step is done.
            is_first = source[0] == NEVER
            may_be_last = is_first or (world.rank in behind and has_own)
            if variables:
                self._copy(variables, root, at_once=may_be_last and world.rank != root)
        self._set_counters(dict(zip(vars(self.counters), source, strict=True)))
        self._is_saved = self._is_saved and world.rank not in behind
        self._begin()

    def stream_on(self, *, hurries: bool) -> bool:
        """Give the newcomers the next slice of the state; all ranks call it between two steps.

        Args:
            hurries: Whether all that is left must follow at once; what the leader says counts.

        Returns:
            Whether a rank has the whole state now that did not have it before.

        Raises:
            CollectiveFailed: A member was lost; form the ring again.
        """
        now = time.monotonic()
        if self._sent_at is not None:
            self._pace.stepped(now - self._sent_at)
        is_done = self._send(_ALL if hurries else self._pace.next_bytes)
        self._sent_at = time.monotonic()
        return is_done

    def complete(self) -> None:
        """Give the newcomers all that is left; all ranks call it, where all must have the state.

        Raises:
            CollectiveFailed: A member was lost; form the ring again.
        """
        while self._stream is not None:
            self._stream.next_bytes = _SLICE_BYTES
            self._send(_SLICE_BYTES)

    @property
    def must_send_all(self) -> bool:
        """Whether the leader wants `complete`, before the next step."""
        return self._stream is not None and self._stream.next_bytes == _ALL

    def _send(self, then: int) -> bool:
        """Send the next slice, and how many bytes the one after it has."""
        stream = self._stream
        assert stream is not None
        began = time.monotonic()
        parts, size = stream.next_slice(stream.next_bytes)
        stream.next_bytes = self._collectives.broadcast_rows(parts, then, _LEADER, _STREAM)
        self._pace.sent(size, time.monotonic() - began)
        is_done = stream.advance(size)
        if not stream.lacking:
            self._stream = None
            log.info("all ranks have the state, at step %d", self.step)
        return is_done

    def _is_to_stream(self, rows: Sequence["_Row"], root: int, behind: Sequence[int]) -> bool:
        """Whether those who are behind get the state bit by bit; the same on all ranks.

        The leader must have it, who saves it and runs callbacks.
        """
        return (
            bool(behind)
            and root == _LEADER
            and rows[root].may_stream
            and rows[root].counters[0] > NEVER
            and not any(rows[rank].has_own for rank in behind)
            and self._join_share > 0
            and self._layout.num_bytes >= _LEAST_STREAMED_BYTES
        )

    def _begin_stream(self, received: Mapping[int, Received], step: int) -> None:
        self._stream = Stream(self._layout, received, step)
        self._pace, self._sent_at = Pace(self._join_share), None
        log.info(
            "ranks %s are given the state of %d bytes while the ring goes on",
            ", ".join(map(str, sorted(received))),
            self._layout.num_bytes,
        )

    def _end_stream(self) -> Received:
        """Leave the stream, which a ring ends with; returns what this rank has of the state."""
        stream, self._stream = self._stream, None
        if stream is None or self._rank not in stream.lacking:
            return Received(NEVER)
        received = stream.received(self._rank, self.step)
        self._set_counters({**dict.fromkeys(vars(self.counters), NEVER), "step": _TORN})
        return received

    @property
    def _has_own(self) -> bool:
        """Whether this rank has done steps that nothing else may have."""
        return self.step > NEVER and not self._is_saved

    def _require_whole(self, step: int) -> None:
        if step <= _TORN:
            raise StateLost("the ring's state was lost while it was copied, and nothing is saved")

    def _differing(self, variables: Sequence[Variable], root: int) -> list[Variable]:
        """Variables whose value on some rank differs from the root's; the same on all ranks.

        Ranks that did the same steps have the same bits if they compute in the same way. They need
        not: a sum over a tensor depends on the number of threads, and some functions on the
        processor.
        """
        if not variables:
            return []
        sums = [self._collectives.checksum(variable) for variable in variables]
        table = self._collectives.gather_rows(sums, "edl.sync.checksums")
        differs = (table != table[root]).any(axis=0).tolist()
        return [variable for variable, is_other in zip(variables, differs, strict=True) if is_other]

    def _copy(self, variables: Sequence[Variable], root: int, *, at_once: bool) -> None:
        """Take variables from the root; `at_once` changes none of them before all have come."""
        taking = self._collectives.blank_like(variables) if at_once else variables
        self._collectives.broadcast(taking, root, "edl.sync")
        if at_once:
            for variable, taken in zip(variables, taking, strict=True):
                variable.assign(taken.numpy())

    def _other_models(self, num_variables: int) -> UserCodeError:
        """The error where the ranks have other variables; it names the first that differs.

        All ranks call it after the same rows.

        Args:
            num_variables: The most that a rank has.
        """
        texts = [*self._descriptions, *["none"] * (num_variables - len(self._descriptions))]
        table = self._collectives.gather_rows(list(map(_number_of, texts)), "edl.sync.names")
        place = int((table != table[_LEADER]).any(axis=0).argmax())
        other = int((table[:, place] != table[_LEADER, place]).argmax())
        text = texts[place].encode()[:_DESCRIPTION_BYTES].ljust(_DESCRIPTION_BYTES)
        rows = self._collectives.gather_rows(list(text), "edl.sync.differing")
        of_leader, of_other = (
            bytes(rows[rank].tolist()).decode(errors="replace").strip() for rank in (_LEADER, other)
        )
        return UserCodeError(
            "The ranks of the job made different models or optimizers: the first variable that"
            f" differs is {of_leader} on rank {_LEADER} and {of_other} on rank {other}.",
            hint="Make the same on every rank: what create_model and create_optimizer build must"
            " depend on params alone, not on the process, its machine, its environment or random"
            " numbers.",
        )

    def _gather(self, received: Received, may_stream: bool) -> list["_Row"]:
        """What the ranks must know of each other."""
        newest = self._durable.newest_step() if self._durable is not None else NEVER
        has = [received.step, received.start, received.num_bytes]
        row = [self._model, len(self._descriptions)]
        row += [newest, int(self._has_own), int(may_stream), *has, *vars(self.counters).values()]
        rows = self._collectives.gather_rows(row, "edl.sync.steps").tolist()
        return [_Row.of(row) for row in rows]

    def _set_counters(self, values: Mapping[str, int]) -> None:
        for name, value in values.items():
            setattr(self.counters, name, value)

    def _begin(self) -> None:
        self.counters.step = max(self.counters.step, 0)


def _description(name: str, variable: Variable) -> str:
    # The number of a layer stands within the names of what an optimizer keeps, too:
    # adam/dense_3_kernel_momentum.
    name = re.sub(r"_\d+(?=_|/|:|$)", "", name)
    return f"{name} ({variable.dtype.name}{list(variable.shape)})"


def _number_of(text: str) -> int:
    """A number of 63 bits that tells texts apart."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) >> 1
