"""The state that all ranks of a ring must agree on, and how it reaches newcomers (D7).

A newcomer is sent the state slice by slice between steps (D18). Where the stream is and how much
each newcomer has, every rank computes by itself, from what all exchanged when the ring began. Only
the size of the next slice comes from the leader, because it depends on measured times.
"""

import hashlib
import logging
import re
import statistics
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from edl_horovod.errors import UserCodeError
from edl_horovod.frameworks.base import Collectives
from edl_horovod.frameworks.values import Rows, StateGroup, Variable, num_bytes
from edl_horovod.frameworks.world import World
from edl_horovod.ring.checkpoint import Checkpoints

log = logging.getLogger(__name__)

FIRST_BYTES = 1 << 20
"""Size of the first slice, before anything is measured."""
_LEAST_BYTES = 1 << 18
"""Smaller slices save nothing: a collective takes about 1 ms whatever its size."""
_MOST_BYTES = 32 << 20
"""While a slice is sent, each rank holds three copies of it, and all ranks wait for it."""
_MOST_SECONDS = 0.15
"""Longest time that a slice may take, however long the steps are."""
_GROWTH = 2.0
"""Largest ratio of consecutive slices: the rate of a small slice says little about a large one."""
_REMEMBERED_STEPS = 15
_AIM = 0.5
"""Part of the allowed time that a slice aims at: the times vary, and the leader's measurement does
not contain the time that a newcomer takes to write a slice."""
NEVER = -1
_TORN = -2
"""Stands for the step of a rank whose variables are partly its own and partly another rank's."""


_LEADER = 0
_ALL = 1 << 62
"""Sent as the size of the next slice if the leader wants the rest of the state at once."""
_DESCRIPTION_BYTES = 256
"""Space for a text that ranks exchange, in bytes."""
_NO_TEXT = -1
"""Stands for the hash of a text that a rank does not have."""
_STREAM = "edl.sync.stream"
_LEAST_STREAMED_BYTES = 16 << 20
"""A smaller state is not streamed, but copied when the ring begins."""
_SLICE_BYTES = 32 << 20
"""Size of the slices in which `complete` sends the rest of the state."""


@dataclass(frozen=True)
class _Table:
    """A group of variables as rows of bytes."""

    variables: tuple[Variable, ...]
    num_rows: int
    """1 if the group is only sent as a whole."""
    row_bytes: int
    start: int
    """Offset of the group in the stream, in bytes."""


class Layout:
    """The groups of variables one after the other, with offsets in bytes."""

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
        """Cut the next slice from the stream: at least one row, and never beyond the stream's end.

        Args:
            start: The offset of the slice in bytes: 0, or one that an earlier call returned.
            wanted: Size of the slice in bytes; exceeded only by a single row that is larger.

        Returns:
            The rows of the slice, and the offset of its end.
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
            rows = () if table.num_rows == 1 else (first, last)
            parts += [Rows(variable, *rows) for variable in table.variables]
            end = table.start + last * table.row_bytes
        return parts, end


@dataclass(frozen=True)
class Received:
    """The part of the state that a newcomer has; each step since has updated it."""

    step: int
    """Steps that are done in this part."""
    start: int = 0
    """Offset at which it begins. The stream is circular: the part may continue at offset 0."""
    num_bytes: int = 0


class Stream:
    """The progress of the stream, the same on all ranks: its offset, and what each newcomer has."""

    def __init__(self, layout: Layout, received: Mapping[int, Received], step: int) -> None:
        """Continue an interrupted stream, or begin a new one.

        Args:
            layout: The layout of the state.
            received: What each newcomer has received, by its rank.
            step: The steps in the ring's state. What was received of another step is useless.
        """
        self._layout = layout
        self.next_bytes = FIRST_BYTES
        usable = [part for part in received.values() if part.step == step and part.num_bytes]
        # If the ring broke during a slice, some newcomers have it and some do not.
        least = min(usable, key=lambda part: part.num_bytes, default=Received(step))
        self.offset = (least.start + least.num_bytes) % layout.num_bytes
        self._have = {rank: self._continued(progress, step) for rank, progress in received.items()}

    def _continued(self, received: Received, step: int) -> Received:
        """What a newcomer keeps of its part: that up to the offset, or nothing if it has a gap."""
        reach = (self.offset - received.start) % self._layout.num_bytes
        if received.step == step and reach <= received.num_bytes:
            return Received(step, received.start, reach)
        return Received(step, self.offset)

    @property
    def lacking(self) -> frozenset[int]:
        """Ranks that do not have the whole state yet."""
        return frozenset(self._have)

    def received(self, rank: int, step: int) -> Received:
        """The part that a newcomer has; `step` is the number of steps that it is updated to."""
        had = self._have[rank]
        return Received(step, had.start, had.num_bytes)

    def next_slice(self, most_bytes: int) -> tuple[list[Rows], int]:
        """The next rows of the stream, and their size in bytes."""
        parts, end = self._layout.cut(self.offset, most_bytes)
        return parts, end - self.offset

    def advance(self, num_bytes: int) -> bool:
        """Count a slice that was sent; returns whether it gave a newcomer the whole state."""
        self.offset = (self.offset + num_bytes) % self._layout.num_bytes
        before = len(self._have)
        self._have = {
            rank: Received(had.step, had.start, had.num_bytes + num_bytes)
            for rank, had in self._have.items()
            if had.num_bytes + num_bytes < self._layout.num_bytes
        }
        return len(self._have) < before


class Pace:
    """Chooses the size of slices, so that sending one takes a given share of a step's time."""

    def __init__(self, share: float) -> None:
        """`share` is the part of a step's median time that sending may take."""
        self._share = share
        self._steps: deque[float] = deque(maxlen=_REMEMBERED_STEPS)
        self.next_bytes = FIRST_BYTES
        """Size in bytes of the slice after the next: the size of the next one was sent already."""

    def stepped(self, seconds: float) -> None:
        """Add the time of a step, without that of the slice after it."""
        self._steps.append(seconds)

    def sent(self, num_bytes: int, seconds: float) -> None:
        """Add the size and the time of a slice."""
        if self._steps:
            target = min(_AIM * self._share * statistics.median(self._steps), _MOST_SECONDS)
            fits = int(num_bytes / max(seconds, 1e-6) * target)
            most = min(_MOST_BYTES, int(_GROWTH * self.next_bytes))
            self.next_bytes = max(_LEAST_BYTES, min(fits, most))


class StateLost(Exception):
    """No rank of the ring has a whole state, not even the one that a job begins with."""


@dataclass
class Counters:
    """The progress of a rank; a task adds its own numbers.

    Of two ranks, the one whose fields are larger, compared in order, is the more advanced.
    """

    step: int = NEVER
    """Steps of the job that are done; -1 before the first sync."""


@dataclass(frozen=True)
class _Row:
    """The facts that a rank sends to all others at a sync."""

    model: int
    """A hash of 63 bits of the names, types and shapes of the variables."""
    saved_step: int
    """The step of the newest checkpoint that this rank sees; -1 for none."""
    has_own: bool
    """Whether it has done steps that may exist on no other rank and in no checkpoint."""
    may_stream: bool
    received: Received
    """The part of the state that it has, if it does not have all."""
    counters: list[int]

    @classmethod
    def of(cls, numbers: list[int]) -> "_Row":
        """Decode a row."""
        model, saved, has_own, may_stream = numbers[:4]
        received, counters = Received(*numbers[4:7]), numbers[7:]
        return cls(model, saved, bool(has_own), bool(may_stream), received, counters)


class RingState:
    """A job's variables and counters, which are the same on all ranks of its ring.

    Variables change only after a step's collectives have succeeded on this rank, and then all of
    them at once. So a rank's state is always that of a whole step, and a failed step leaves nothing
    to undo. What is not among the variables and counters is lost when a rank is replaced.

    A newcomer may receive a large state in slices while the ring trains (`is_streaming`). Until it
    has all of it, it takes part in every step without examples, which updates the part that it has.
    """

    def __init__(
        self,
        variables: Mapping[str, Variable],
        counters: Counters,
        collectives: Collectives,
        *,
        durable: Checkpoints | None = None,
        groups: Sequence[StateGroup] = (),
        join_share: float = 0.0,
    ) -> None:
        """Start as a rank without state.

        Args:
            variables: Everything that changes while the job runs. Names, order, shapes and types
                are the same on all ranks.
            counters: The progress of this rank; the task changes them, and a sync sets them.
            collectives: The ring's collectives.
            durable: Holds the state if all ranks are lost; None if nothing does.
            groups: The groups of variables; see `Step.groups`.
            join_share: The share of a step's time that may be spent after it on sending state to
                newcomers; 0 sends all of the state at once.
        """
        self.variables = dict(variables)
        self.counters = counters
        self.descriptions = [_description(name, v) for name, v in self.variables.items()]
        """Name, type and shape of each variable, the same on all ranks."""
        self._model = _number_of_all(self.descriptions)
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
        """Whether the variables are unchanged since they were loaded from the durable store."""

    @property
    def step(self) -> int:
        """Steps of the job that are done; -1 before the first sync, -2 if a sync broke halfway."""
        return self.counters.step

    @property
    def own_step(self) -> int:
        """Steps that are done in this rank's state; -1 if it does not have all of the state."""
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

    def texts_of_all(self, text: str, name: str) -> list[str]:
        """The first 256 bytes of a text of each rank; all ranks call it.

        Raises:
            CollectiveFailed: A member was lost.
        """
        return gathered_texts(self._collectives, text, name)

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
        """Load the newest state of the durable store if it is ahead of this rank.

        Raises:
            ConfigError: That state belongs to another data set or plan.
            DataError: That state belongs to another model.
        """
        after = max(NEVER, self.step)
        saved = self._durable.load(after=after) if self._durable is not None else None
        if saved is not None:
            self._set_counters({name: saved.get(name, NEVER) for name in vars(self.counters)})
            self._is_saved = True

    def begin_alone(self) -> None:
        """Do what `sync` does, for a ring of one rank."""
        self._end_stream()
        self.recover()
        self._require_whole(self.step)
        self._begin()

    def sync(self, world: World, *, may_stream: bool = False) -> None:
        """Give all ranks the state of the most advanced one; a completed step is never rolled back.

        All ranks call it at the same points: once after each forming of the ring, and after the
        leader alone changed variables between two steps (callbacks).

        Variables are copied one after the other, so that no rank needs memory for a second state,
        and those that are equal already are not copied. A member may be lost halfway. So the state
        of the source does not change, and a state that might be the last one is replaced only when
        everything has arrived: that of a rank with steps which are not saved, and the initial state
        of a job. Any other rank counts as having no state until the copy is complete.

        Args:
            world: The ring.
            may_stream: Whether newcomers may receive a large state while the ring trains; the
                leader's value counts.

        Raises:
            CollectiveFailed: A member was lost; form the ring again.
            UserCodeError: The ranks do not have the same variables.
        """
        received, self._rank = self._end_stream(), world.rank
        rows = self._gather(received, may_stream)
        # All ranks have the same rows, so either all raise here or none.
        if len({row.model for row in rows}) > 1:
            raise self._other_models()
        # All ranks have the same rows, so either all recover or none. A checkpoint is ahead of all
        # members if they waited outside while the ranks that trained, and saved it, were lost.
        if max(row.saved_step for row in rows) > max(row.counters[0] for row in rows):
            self.recover()
            rows = self._gather(received, may_stream)
        root = max(range(len(rows)), key=lambda rank: (*rows[rank].counters, -rank))
        source = rows[root].counters
        self._require_whole(source[0])
        behind = [rank for rank, row in enumerate(rows) if row.counters != source]
        has_own = self._has_own
        if world.rank in behind and not has_own:
            self._tear()
        if self._should_stream(rows, root, behind):
            self._collectives.broadcast(self._ungrouped, root, "edl.sync")
            self._begin_stream({rank: rows[rank].received for rank in behind}, source[0])
        else:
            variables = list(self.variables.values())
            if all(row.counters[0] == source[0] for row in rows):
                variables = self._differing(variables, root)
            # The initial state of a job must not be lost either, although no step is done.
            is_first = source[0] == NEVER
            may_be_last = is_first or (world.rank in behind and has_own)
            if variables:
                self._copy(variables, root, at_once=may_be_last and world.rank != root)
        self._set_counters(dict(zip(vars(self.counters), source, strict=True)))
        self._is_saved = self._is_saved and world.rank not in behind
        self._begin()

    def stream_on(self, *, hurries: bool) -> bool:
        """Send the newcomers the next slice of the state; all ranks call it between two steps.

        Args:
            hurries: Whether the rest of the state must follow at once; the leader's value counts.

        Returns:
            Whether this slice gave a newcomer the whole state.

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
        """Send the newcomers the rest of the state; called by all ranks when all must have it.

        Raises:
            CollectiveFailed: A member was lost; form the ring again.
        """
        while self._stream is not None:
            self._stream.next_bytes = _SLICE_BYTES
            self._send(_SLICE_BYTES)

    @property
    def must_send_all(self) -> bool:
        """Whether the leader has asked for the rest of the state at once (`complete`)."""
        return self._stream is not None and self._stream.next_bytes == _ALL

    def _send(self, then: int) -> bool:
        """Send the next slice of the state, and `then`: the leader's size of the one after it.

        The size must be known to all ranks before they begin the collective, so it is sent ahead.
        """
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

    def _should_stream(self, rows: Sequence["_Row"], root: int, behind: Sequence[int]) -> bool:
        """Whether the ranks that are behind receive the state in slices; the same on all ranks.

        Only the leader can be the source, because it saves the state and runs callbacks.
        A rank with steps of its own keeps its state until the new one is complete: see `sync`.
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
        ranks, size = ", ".join(map(str, sorted(received))), self._layout.num_bytes
        log.info("ranks %s receive the state of %d bytes while the ring trains", ranks, size)

    def _end_stream(self) -> Received:
        """End the stream, as its ring has ended; returns the part that this rank has received."""
        stream, self._stream = self._stream, None
        if stream is None or self._rank not in stream.lacking:
            return Received(NEVER)
        received = stream.received(self._rank, self.step)
        self._tear()
        return received

    @property
    def _has_own(self) -> bool:
        """Whether this rank has done steps that may exist on no other rank and in no checkpoint."""
        return self.step > NEVER and not self._is_saved

    def _require_whole(self, step: int) -> None:
        if step <= _TORN:
            raise StateLost("the ring's state was lost while it was copied, and nothing is saved")

    def _differing(self, variables: Sequence[Variable], root: int) -> list[Variable]:
        """Variables whose value on any rank differs from the root's; the same list on all ranks.

        Ranks that did the same steps mostly have the same bits, but not always: the sum of a tensor
        depends on the number of threads, and some functions depend on the processor.
        """
        if not variables:
            return []
        sums = [self._collectives.checksum(variable) for variable in variables]
        table = self._collectives.gather_rows(sums, "edl.sync.checksums")
        differs = (table != table[root]).any(axis=0).tolist()
        return [variable for variable, is_other in zip(variables, differs, strict=True) if is_other]

    def _copy(self, variables: Sequence[Variable], root: int, *, at_once: bool) -> None:
        """Copy variables from the root; with `at_once` none changes before all have arrived."""
        received = self._collectives.blank_like(variables) if at_once else variables
        self._collectives.broadcast(received, root, "edl.sync")
        if at_once:
            for variable, value in zip(variables, received, strict=True):
                variable.assign(value.numpy())

    def _other_models(self) -> UserCodeError:
        """The error for ranks with different variables; it names the first variable that differs.

        Its collectives are safe: all ranks have the same rows, so all of them call it.
        """
        difference = first_difference(self._collectives, self.descriptions)
        assert difference is not None
        texts, (other, *_) = difference
        return UserCodeError(
            "The ranks of the job built different models or optimizers: the first variable that"
            f" differs is {texts[_LEADER]} on rank {_LEADER} and {texts[other]} on rank {other}.",
            hint="Build the same on every rank: what create_model and create_optimizer build must"
            " depend on params alone, not on the process, its machine, its environment or random"
            " numbers.",
        )

    def _gather(self, received: Received, may_stream: bool) -> list["_Row"]:
        """Exchange what the ranks must know of each other; returns one row for each rank."""
        newest = self._durable.newest_step() if self._durable is not None else NEVER
        has = [received.step, received.start, received.num_bytes]
        row = [self._model, newest, int(self._has_own), int(may_stream)]
        row += [*has, *vars(self.counters).values()]
        rows = self._collectives.gather_rows(row, "edl.sync.steps").tolist()
        return [_Row.of(row) for row in rows]

    def _set_counters(self, values: Mapping[str, int]) -> None:
        for name, value in values.items():
            setattr(self.counters, name, value)

    def _tear(self) -> None:
        """Note that the variables are no state: some may be from another rank or another step."""
        self._set_counters({**dict.fromkeys(vars(self.counters), NEVER), "step": _TORN})

    def _begin(self) -> None:
        self.counters.step = max(self.counters.step, 0)


def first_difference(
    collectives: Collectives, texts: Sequence[str]
) -> tuple[list[str], list[int]] | None:
    """Find the first of some texts that is not the same on all ranks; all ranks call it.

    Returns:
        The first 256 bytes of this text as each rank has it, "none" where a rank has fewer texts,
        and the ranks whose text is not that of rank 0; None if all are equal.

    Raises:
        CollectiveFailed: A member was lost.
    """
    row = [_number_of_all(texts), len(texts)]
    rows = collectives.gather_rows(row, "edl.sync.texts")
    # All ranks have the same rows, so either all return here or none.
    if (rows == rows[_LEADER]).all():
        return None
    num_missing = int(rows[:, 1].max()) - len(texts)
    numbers = [*map(_number_of, texts), *[_NO_TEXT] * num_missing]
    table = collectives.gather_rows(numbers, "edl.sync.names")
    differs = table != table[_LEADER]
    place = int(differs.any(axis=0).argmax())
    text = texts[place] if place < len(texts) else "none"
    gathered = gathered_texts(collectives, text, "edl.sync.differing")
    return gathered, np.flatnonzero(differs[:, place]).tolist()


def gathered_texts(collectives: Collectives, text: str, name: str) -> list[str]:
    """The first 256 bytes of the text of each rank; all ranks call it.

    Raises:
        CollectiveFailed: A member was lost.
    """
    padded = text.encode()[:_DESCRIPTION_BYTES].ljust(_DESCRIPTION_BYTES)
    rows = collectives.gather_rows(list(padded), name)
    return [bytes(row.tolist()).decode(errors="replace").strip() for row in rows]


def _description(name: str, variable: Variable) -> str:
    # Keras counts the layers of a process, so the numbers in names may differ between ranks, also
    # in the names of an optimizer's variables: adam/dense_3_kernel_momentum.
    name = re.sub(r"_\d+(?=_|/|:|$)", "", name)
    return f"{name} ({variable.dtype.name}{list(variable.shape)})"


def _number_of(text: str) -> int:
    """A hash of 63 bits, which fits a signed integer of 64 bits."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) >> 1


def _number_of_all(texts: Sequence[str]) -> int:
    """A hash of several texts and of where each of them ends."""
    return _number_of(repr([_number_of(text) for text in texts]))
