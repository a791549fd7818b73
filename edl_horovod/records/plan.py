"""Which records belong to which step and which lane: pure functions of integers (DESIGN D3, D4).

An epoch's order is computed in three stages: shuffle the blocks, cut that order into lanes of equal
length (to within one record), shuffle inside small windows of each lane. A step takes the next
records of every lane. No stage lists all blocks or records (`BlockOrder`). The order is independent
of the ring; a rank only decides which lanes it reads. With a fixed global batch the records of a
step are independent of the ring, too; where the batch grows with the ring, they depend on the
number of records taken before and on the size of the ring (`StepSpans`).

Positions in an epoch's order are counted across the lanes: the first record of each lane, then the
second of each, and so on. A step takes the next positions, and no step crosses the end of an epoch.
One integer, the number of positions taken, is therefore the full state of the training's progress,
even if the size of the steps has changed.

A permutation array of n blocks would take 8 n bytes in every rank, again in each epoch. Here
a generalised Feistel network permutes the numbers below a * b, which is n or little more; a result
that is not below n is permuted again until it is ("cycle walking"). Both are from J. Black and
P. Rogaway, "Ciphers with Arbitrary Finite Domains", CT-RSA 2002, sections 3 and 5. Their ciphers
need keyed functions in each round; a shuffle has no attacker, so a round uses a table of random
numbers, which is faster. With truly random tables, six rounds cannot be distinguished from a random
permutation by fewer than about sqrt(n) of its values (M. Luby and C. Rackoff, 1988).
"""

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

MAX_WINDOW = 1024
_NO_RECORD = -1
Ids = NDArray[np.int64]
GROUP_BLOCKS = 1024
"""Number of blocks in a group. Only sums of groups are stored; a group is expanded on demand."""
_GROUPS_AT_ONCE = 16
"""Groups that the initial pass processes at a time: they fit the processor's cache."""

_ROUNDS = 6
"""Rounds alternate between the two halves of a number."""


def choose_window(requested: int, *, num_lanes: int, record_bytes: float, max_bytes: int) -> int:
    """Choose the number of records of a lane that are shuffled together.

    A rank reads the records of a window in random order, so the windows of all its lanes, which may
    be all lanes of the job, should fit into memory; otherwise it decodes each chunk repeatedly.

    Args:
        requested: The user's setting; 0 for 1,024, or fewer if those do not fit.
        num_lanes: Lanes of the job.
        record_bytes: Average size of a record in memory, in bytes.
        max_bytes: Memory for the windows of all lanes, in bytes.
    """
    return requested or max(1, min(MAX_WINDOW, int(max_bytes / (num_lanes * record_bytes))))


@dataclass(frozen=True)
class Span:
    """The positions that one step takes: `first` to `last` (exclusive) of an epoch."""

    epoch: int
    """Counted from 0."""
    first: int
    last: int


@dataclass(frozen=True, kw_only=True)
class StepSpans:
    """The spans of consecutive steps of equal size, beginning with `first_step`."""

    epoch_records: int
    """Records of one epoch; at least 1."""
    step_records: int
    """Records of a full step; at least 1."""
    first_step: int = 0
    """The first step that has a span here, counted over all epochs."""
    first_record: int = 0
    """Records that earlier steps took, over all epochs."""
    earlier: "StepSpans | None" = None
    """The spans of the steps before `first_step`, if they are known."""

    def __getitem__(self, step: int) -> Span:
        if self.earlier is not None and step < self.first_step:
            return self.earlier[step]
        assert step >= self.first_step, (step, self.first_step)
        epoch, position = divmod(self.first_record, self.epoch_records)
        number = step - self.first_step
        if number < self._steps_of_first_epoch:
            first = position + number * self.step_records
        else:
            number -= self._steps_of_first_epoch
            later_epochs, within = divmod(number, self._steps_per_epoch)
            epoch, first = epoch + 1 + later_epochs, within * self.step_records
        return Span(epoch, first, min(first + self.step_records, self.epoch_records))

    def records_before(self, step: int) -> int:
        """Return the number of records that earlier steps take, over all epochs."""
        span = self[step]
        return span.epoch * self.epoch_records + span.first

    def first_step_of(self, epoch: int) -> int:
        """Return the first step of an epoch, or of all these steps if the epoch began before."""
        if epoch * self.epoch_records <= self.first_record:
            return self.first_step if self.earlier is None else self.earlier.first_step_of(epoch)
        later_epochs = epoch - self.first_record // self.epoch_records - 1
        return self.first_step + self._steps_of_first_epoch + later_epochs * self._steps_per_epoch

    @property
    def _steps_of_first_epoch(self) -> int:
        remaining = self.epoch_records - self.first_record % self.epoch_records
        return -(-remaining // self.step_records)

    @property
    def _steps_per_epoch(self) -> int:
        return -(-self.epoch_records // self.step_records)


@dataclass(frozen=True, kw_only=True)
class DataPlan:
    """The order of records of a whole job. Equal plans give the same records in each step."""

    block_starts: Ids
    """First record id of each block, shape (blocks,); starts at 0, without gaps."""
    block_counts: Ids
    """Records of each block, at least 1, shape (blocks,)."""
    global_batch: int = 0
    """Records of a full step; 0 where the batch grows with the ring."""
    rank_batch: int = 0
    """Records of a full step for each rank of the ring; 0 where the global batch is fixed."""
    warmup_steps: int = 0
    """Steps at the beginning of the job that take `warmup_batch` records, with a fixed global
    batch."""
    warmup_batch: int = 0
    num_lanes: int
    """Number of lanes; divides the global batch if that is fixed."""
    seed: int = 0
    """Seed of the order of records."""
    window: int = MAX_WINDOW
    """Number of records of a lane that are shuffled together."""
    is_shuffled: bool = True
    """Whether records are shuffled; if not, lanes are runs of the source's order."""
    data_fingerprint: str = ""
    """Fingerprint of the source that numbers the records."""

    def __post_init__(self) -> None:
        assert (self.global_batch > 0) != (self.rank_batch > 0), self
        assert self.global_batch % self.num_lanes == 0, (self.global_batch, self.num_lanes)
        assert not self.warmup_steps or self.global_batch, self

    @cached_property
    def num_records(self) -> int:
        """Records of one epoch."""
        return int(self.block_starts[-1] + self.block_counts[-1])

    @property
    def is_growing(self) -> bool:
        """Whether the records of a step grow with the ring."""
        return self.rank_batch > 0

    @property
    def lane_batch(self) -> int:
        """Records that a full step takes from one lane, with a fixed global batch."""
        return self.global_batch // self.num_lanes

    @cached_property
    def steps_per_epoch(self) -> int:
        """Steps of one epoch with a fixed global batch, after the warm-up.

        The last may be smaller than the others.
        """
        longest_lane = -(-self.num_records // self.num_lanes)
        return -(-longest_lane // self.lane_batch)

    def spans(self, size: int, *, first_step: int = 0, first_record: int = 0) -> StepSpans:
        """Return the spans of the steps on a ring.

        With a fixed global batch the spans of all steps are fixed, and the arguments are ignored.

        Args:
            size: Ranks of the ring.
            first_step: The ring's first step.
            first_record: Records that earlier steps took, over all epochs.
        """
        if self.warmup_steps:
            records, first_step = self.num_records, self.warmup_steps
            earlier = StepSpans(epoch_records=records, step_records=self.warmup_batch)
            return StepSpans(
                epoch_records=records,
                step_records=self.global_batch,
                first_step=first_step,
                first_record=earlier.records_before(first_step),
                earlier=earlier,
            )
        if not self.is_growing:
            return StepSpans(epoch_records=self.num_records, step_records=self.global_batch)
        return StepSpans(
            epoch_records=self.num_records,
            step_records=self.rank_batch * size,
            first_step=first_step,
            first_record=first_record,
        )

    def lanes_of(self, rank: int, size: int) -> range:
        """Return the lanes that a rank of a ring reads."""
        assign = interleaved_lanes if self.is_growing else lanes_of_rank
        return assign(rank, size, self.num_lanes)

    def lane_bounds(self, lane: int) -> tuple[int, int]:
        """Return the first position of a lane in the epoch's order and the one after its last."""
        length, num_longer = divmod(self.num_records, self.num_lanes)
        start = lane * length + min(lane, num_longer)
        return start, start + length + (lane < num_longer)

    def places(self, span: Span, lanes: range) -> Ids:
        """Return the place in its step of each record that some lanes have in it.

        Args:
            span: The span of the step.
            lanes: The lanes to return the places of.

        Returns:
            Numbers from 0 on, unique over all lanes; lane after lane, as `EpochOrder.between`
            returns the ids.
        """
        rows = np.arange(span.first // self.num_lanes, -(-span.last // self.num_lanes))
        positions = rows * self.num_lanes + np.asarray(lanes, np.int64)[:, None]
        is_selected = (span.first <= positions) & (positions < min(span.last, self.num_records))
        places: Ids = positions[is_selected] - span.first
        return places

    def facts(self) -> dict[str, int | bool | str]:
        """Return everything that determines the order of records, by the name of the setting."""
        facts: dict[str, int | bool | str] = {
            "data": self.data_fingerprint,
            "train.batch_size": self.global_batch or self.rank_batch,
            "data_plan.lanes": self.num_lanes,
            "data_plan.seed": self.seed,
            "data_plan.shuffle": self.is_shuffled,
            "data_plan.shuffle_window": self.window,
        }
        if self.is_growing:
            facts["elastic.batching"] = "per_rank"
        if self.is_shuffled:
            # Not a setting: versions of edl_horovod may shuffle the blocks differently.
            facts["order of blocks"] = BlockOrder.KIND
        return facts

    def order(self, epoch: int) -> "EpochOrder":
        """Return the order of one epoch, counted from 0."""
        return EpochOrder(self, epoch)

    def records_seen(self, steps: int) -> int:
        """Return the records of the first `steps` steps of the job, with a fixed global batch."""
        return self.spans(1).records_before(steps)


class FilledSteps:
    """The steps from `first` to `last` (exclusive) in which some lanes have records.

    Steps are counted from 0 over all epochs. In the last step of an epoch shorter lanes may have no
    records.
    """

    def __init__(self, plan: DataPlan, lanes: range, *, first: int, last: int) -> None:
        bounds = map(plan.lane_bounds, lanes)
        longest_lane = max((stop - start for start, stop in bounds), default=0)
        self._per_epoch = plan.steps_per_epoch
        self._filled_per_epoch = -(-longest_lane // plan.lane_batch)
        self._num_before = self._count(first)
        self._num_steps = self._count(last) - self._num_before

    def __len__(self) -> int:
        return self._num_steps

    def __getitem__(self, number: int) -> int:
        epoch, within = divmod(self._num_before + number, self._filled_per_epoch)
        return epoch * self._per_epoch + within

    def __contains__(self, step: int) -> bool:
        number = self._count(step) - self._num_before
        return 0 <= number < self._num_steps and self[number] == step

    def _count(self, step: int) -> int:
        """Return the number of earlier steps that are filled."""
        epoch, within = divmod(step, self._per_epoch)
        return epoch * self._filled_per_epoch + min(within, self._filled_per_epoch)


class EpochOrder:
    """The order of one epoch: maps (step, lane) to record ids."""

    def __init__(self, plan: DataPlan, epoch: int) -> None:
        self._plan = plan
        self._epoch = epoch
        # Each lane reads at its own position, which may be at the border of two groups.
        self._blocks = plan.is_shuffled and BlockOrder(
            plan.block_starts,
            plan.block_counts,
            Permutation(len(plan.block_counts), self._random()),
            cached_groups=2 * plan.num_lanes,
        )
        # A lane reads its windows in sequence; caching the last two of each lane suffices.
        self._window_ids = lru_cache(maxsize=2 * plan.num_lanes)(self._make_window_ids)
        self._grid = lru_cache(maxsize=2)(self._make_grid)

    def records(self, step: int, lanes: range) -> Ids:
        """Return the ids of the records of a step of the epoch on some lanes, lane after lane.

        Returns:
            Shape (records,); shorter than lanes * lane_batch in an epoch's last step, maybe empty.
        """
        first = step * self._plan.global_batch
        return self.between(first, first + self._plan.global_batch, lanes)

    def between(self, first: int, last: int, lanes: range) -> Ids:
        """Return the ids of the records of some lanes at some positions of the epoch.

        Args:
            first: The first position, counted across the lanes as in `StepSpans`.
            last: The position after the last; it may be beyond the end of the epoch.
            lanes: The lanes to return the records of.

        Returns:
            Lane after lane, shape (records,), maybe empty.
        """
        plan = self._plan
        row, end = first // plan.num_lanes, -(-last // plan.num_lanes)
        parts = []
        for window in range(row // plan.window, -(-end // plan.window)):
            first_row = window * plan.window
            parts.append(self._grid(window, lanes)[:, max(row - first_row, 0) : end - first_row])
        padded = np.concatenate(parts, axis=1)
        is_selected = padded != _NO_RECORD
        if first % plan.num_lanes or last % plan.num_lanes:
            rows = np.arange(row, row + padded.shape[1])
            positions = rows * plan.num_lanes + np.asarray(lanes, np.int64)[:, None]
            is_selected &= (first <= positions) & (positions < last)
        ids: Ids = padded[is_selected]  # Row by row.
        return ids

    def _make_grid(self, window: int, lanes: range) -> Ids:
        """Return the ids of a window of some lanes, padded to the shape (lanes, window)."""
        grid = np.full((len(lanes), self._plan.window), _NO_RECORD, np.int64)
        for row, lane in zip(grid, lanes, strict=True):
            ids = self._window_ids(lane, window)
            row[: len(ids)] = ids
        return grid

    def _make_window_ids(self, lane: int, window: int) -> Ids:
        """Return the ids of a window of one lane in their order; shorter at the lane's end."""
        plan = self._plan
        start, stop = plan.lane_bounds(lane)
        first = start + window * plan.window
        length = max(0, min(plan.window, stop - first))
        if not self._blocks:
            return np.arange(first, first + length)
        order = self._random(lane, window).permutation(length)
        ids: Ids = self._blocks.ids(first, first + length)[order]
        return ids

    def _random(self, *key: int) -> np.random.Generator:
        return np.random.default_rng([self._plan.seed, self._epoch, *key])


class Permutation:
    """A permutation of the numbers from 0 to n - 1; takes memory in the order of sqrt(n)."""

    def __init__(self, n: int, random: np.random.Generator) -> None:
        """Draw a random permutation.

        Args:
            n: Number of elements, at least 1.
            random: Source of the random tables; equal states give equal permutations.
        """
        assert n >= 1, n
        self._n = n
        self._b = math.isqrt(n - 1) + 1
        self._a = -(-n // self._b)  # a * b - n < b: about one in sqrt(n) is permuted again.
        sides = [(self._a, self._b), (self._b, self._a)] * (_ROUNDS // 2)
        # A round adds `table[other half]`, a number below `values`, to one half.
        self._tables = [random.integers(0, values, size, dtype=np.int64) for values, size in sides]

    def __call__(self, positions: Ids) -> Ids:
        """Return the elements at some positions of the shuffled order, shape (positions,)."""
        values = self._network(positions)
        while len(outside := np.flatnonzero(values >= self._n)):
            # The loop ends: the cycle of the network through a position returns to the position.
            values[outside] = self._network(values[outside])
        return values

    def _network(self, numbers: Ids) -> Ids:
        left = numbers // self._b
        right = numbers - left * self._b
        halves = [(left, right, self._a), (right, left, self._b)]
        added, reduced = np.empty_like(left), np.empty_like(left)
        for number, table in enumerate(self._tables):
            changed, other, modulus = halves[number % 2]
            np.take(table, other, out=added, mode="clip")
            changed += added
            np.subtract(changed, modulus, out=reduced)
            # As unsigned numbers the negative ones are the larger: this is `changed % modulus`.
            unsigned = changed.view(np.uint64)
            np.minimum(unsigned, reduced.view(np.uint64), out=unsigned)
        left *= self._b
        left += right
        return left


class BlockOrder:
    """All records, block after block in shuffled order; a position counts records.

    It stores the number of records before each group of blocks, and caches the groups used last.
    The constructor makes one pass over the counts.
    """

    KIND = "feistel"
    """Identifies this order in checkpoints: a training cannot continue with another order."""

    def __init__(
        self,
        block_starts: Ids,
        block_counts: Ids,
        permutation: Permutation,
        *,
        cached_groups: int,
        group_blocks: int = GROUP_BLOCKS,
    ) -> None:
        """Sum up the groups.

        Args:
            block_starts: First record id of each block, shape (blocks,); not copied.
            block_counts: Records of each block, at least 1, shape (blocks,); not copied.
            permutation: The order of the blocks.
            cached_groups: Number of groups to cache: one for each position that is read in turn.
            group_blocks: Number of blocks in a group.
        """
        self._starts = block_starts
        self._counts = block_counts
        self._permutation = permutation
        self._group_blocks = group_blocks
        num_blocks = len(block_counts)
        num_groups = -(-num_blocks // group_blocks)
        self._firsts = np.zeros(num_groups + 1, np.int64)
        """The position of each group's first record, followed by the number of all records."""
        at_once = _GROUPS_AT_ONCE * group_blocks
        for first in range(0, num_blocks, at_once):
            counts = block_counts[self._blocks(first, first + at_once)]
            sums = np.add.reduceat(counts, np.arange(0, len(counts), group_blocks))
            group = first // group_blocks
            self._firsts[group + 1 : group + 1 + len(sums)] = sums
        np.cumsum(self._firsts, out=self._firsts)
        self._group = lru_cache(maxsize=cached_groups)(self._expand)

    def ids(self, first: int, stop: int) -> Ids:
        """Return the ids of the records at the positions from `first` to `stop` (exclusive)."""
        parts = []
        while first < stop:
            group = int(np.searchsorted(self._firsts, first, side="right")) - 1
            end = min(stop, int(self._firsts[group + 1]))
            parts.append(self._ids_in_group(group, first, end))
            first = end
        return np.concatenate(parts) if parts else np.empty(0, np.int64)

    def _ids_in_group(self, group: int, first: int, stop: int) -> Ids:
        positions, shifts = self._group(group)
        begin = int(np.searchsorted(positions, first, side="right")) - 1
        end = int(np.searchsorted(positions, stop, side="left"))
        bounds = np.append(positions[begin:end], stop)
        bounds[0] = first
        ids: Ids = np.repeat(shifts[begin:end], np.diff(bounds))
        ids += np.arange(first, stop)
        return ids

    def _expand(self, group: int) -> tuple[Ids, Ids]:
        """Return the first position and the offset from positions to ids of a group's blocks."""
        blocks = self._blocks(group * self._group_blocks, (group + 1) * self._group_blocks)
        counts = self._counts[blocks]
        positions = self._firsts[group] + np.cumsum(counts) - counts
        return positions, self._starts[blocks] - positions

    def _blocks(self, first: int, stop: int) -> Ids:
        return self._permutation(np.arange(first, min(stop, len(self._counts))))


def interleaved_lanes(rank: int, size: int, num_lanes: int) -> range:
    """Return the lanes of a rank in a job whose steps may take less than one record per lane.

    Lanes are dealt out in turn, so any run of consecutive records is shared almost equally.
    """
    assert 0 <= rank < size <= num_lanes, (rank, size, num_lanes)
    return range(rank, num_lanes, size)


def lanes_of_rank(rank: int, size: int, num_lanes: int) -> range:
    """Return the contiguous lanes of a rank; ranks differ by at most one lane.

    Args:
        rank: The rank, below `size`.
        size: Ranks of the ring, at most `num_lanes`.
        num_lanes: Lanes of the job.
    """
    assert 0 <= rank < size <= num_lanes, (rank, size, num_lanes)
    return range(rank * num_lanes // size, (rank + 1) * num_lanes // size)
