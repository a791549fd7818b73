"""Which records belong to which step and which lane: pure functions of integers (DESIGN D3, D4).

An epoch's order is made in three moves: shuffle the blocks, cut that order into lanes of equal
length (give or take one record), shuffle inside small windows of each lane. A step takes the next
records of every lane. No move lists all blocks or records (`BlockOrder`). The order does not know
the ring; a rank only decides which lanes it reads. With a fixed global batch a step's records do
not depend on the ring either; where the batch grows with the ring, they follow from how many were
taken before and from the ring's size (`StepSpans`).
"""

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt

from edl_horovod.records.block_order import BlockOrder
from edl_horovod.records.lanes import interleaved_lanes, lanes_of_rank
from edl_horovod.records.permutation import Permutation
from edl_horovod.records.spans import StepSpans

__all__ = ["DataPlan", "EpochOrder", "FilledSteps", "choose_window"]

MOST_WINDOW = 1024
_NO_RECORD = -1
Ids = npt.NDArray[np.int64]


def choose_window(wanted: int, *, num_lanes: int, record_bytes: float, most_bytes: int) -> int:
    """How many records of a lane are shuffled among each other.

    A rank meets the records of a window in no order, so it must be able to hold the windows of all
    its lanes, which may be all there are; else it reads and decodes each chunk again and again.

    Args:
        wanted: What the user asked for; 0 takes 1,024, or what fits.
        num_lanes: Lanes of the job.
        record_bytes: What a record takes in memory, in bytes.
        most_bytes: Room for the windows of all lanes, in bytes.
    """
    return wanted or max(1, min(MOST_WINDOW, int(most_bytes / (num_lanes * record_bytes))))


@dataclass(frozen=True, kw_only=True)
class DataPlan:
    """The order of records of a whole job. Equal plans give equal records in equal steps."""

    block_starts: Ids
    """First record id of each block, shape (blocks,); 0 first, each the end of the one before."""
    block_counts: Ids
    """Records of each block, at least 1, shape (blocks,)."""
    global_batch: int = 0
    """Records of a full step; 0 where they grow with the ring."""
    rank_batch: int = 0
    """Records of a full step for each rank of the ring; 0 where the global batch is fixed."""
    num_lanes: int
    """Lanes; divides the global batch, if that is fixed."""
    seed: int = 0
    """Seed of the order."""
    window: int = MOST_WINDOW
    """Records of a lane that are shuffled among each other."""
    is_shuffled: bool = True
    """Whether there is any shuffling; without it lanes are runs of the files' own order."""
    data_fingerprint: str = ""
    """Fingerprint of the source that numbers the records."""

    def __post_init__(self) -> None:
        assert (self.global_batch > 0) != (self.rank_batch > 0), (
            self.global_batch,
            self.rank_batch,
        )
        assert self.global_batch % self.num_lanes == 0, (self.global_batch, self.num_lanes)

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
        """Records that a full step takes of one lane, with a fixed global batch."""
        return self.global_batch // self.num_lanes

    @cached_property
    def steps_per_epoch(self) -> int:
        """Steps of one epoch with a fixed global batch; the last may be smaller than the others."""
        longest_lane = -(-self.num_records // self.num_lanes)
        return -(-longest_lane // self.lane_batch)

    def spans(self, size: int, *, first_step: int = 0, first_record: int = 0) -> StepSpans:
        """What the steps take on a ring of some size.

        Args:
            size: Ranks of the ring; of no matter with a fixed global batch.
            first_step: The ring's first step.
            first_record: Records that the steps before it took, over all epochs. Both are of no
                matter with a fixed global batch: there each step has its place from the start.
        """
        if not self.is_growing:
            return StepSpans(epoch_records=self.num_records, step_records=self.global_batch)
        return StepSpans(
            epoch_records=self.num_records,
            step_records=self.rank_batch * size,
            first_step=first_step,
            first_record=first_record,
        )

    def lanes_of(self, rank: int, size: int) -> range:
        """The lanes that a rank of a ring reads."""
        deal = interleaved_lanes if self.is_growing else lanes_of_rank
        return deal(rank, size, self.num_lanes)

    def lane_bounds(self, lane: int) -> tuple[int, int]:
        """First position of a lane in the epoch's order, and the position after its last."""
        length, longer = divmod(self.num_records, self.num_lanes)
        start = lane * length + min(lane, longer)
        return start, start + length + (lane < longer)

    def facts(self) -> dict[str, int | bool | str]:
        """All that the order of records follows from, by the name of its setting."""
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
            # No setting: what shuffles the blocks may differ between versions of edl_horovod.
            facts["order of blocks"] = BlockOrder.KIND
        return facts

    def order(self, epoch: int) -> "EpochOrder":
        """The order of one epoch, counted from 0."""
        return EpochOrder(self, epoch)

    def records_seen(self, steps: int) -> int:
        """Records that the first `steps` steps of the job hold, with a fixed global batch."""
        return self.spans(1).records_before(steps)


class FilledSteps:
    """Of the steps from `first` to before `last`, those in which some lanes have records.

    Steps are counted from 0 over all epochs. In the last step of an epoch the shorter lanes may
    have none.
    """

    def __init__(self, plan: DataPlan, lanes: range, *, first: int, last: int) -> None:
        longest = max((stop - start for start, stop in map(plan.lane_bounds, lanes)), default=0)
        self._per_epoch = plan.steps_per_epoch
        self._filled_per_epoch = -(-longest // plan.lane_batch)
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
        """How many steps before this one are filled."""
        epoch, within = divmod(step, self._per_epoch)
        return epoch * self._filled_per_epoch + min(within, self._filled_per_epoch)


class EpochOrder:
    """The order of one epoch: from (step, lane) to record ids."""

    def __init__(self, plan: DataPlan, epoch: int) -> None:
        self._plan = plan
        self._epoch = epoch
        # Each lane reads at a place of its own, which may lie between two groups.
        self._blocks = plan.is_shuffled and BlockOrder(
            plan.block_starts,
            plan.block_counts,
            Permutation(len(plan.block_counts), self._random()),
            cached_groups=2 * plan.num_lanes,
        )
        # A lane meets its windows one after the other; the two last of each lane are enough.
        self._window_ids = lru_cache(maxsize=2 * plan.num_lanes)(self._make_window_ids)
        self._grid = lru_cache(maxsize=2)(self._make_grid)

    def records(self, step: int, lanes: range) -> Ids:
        """Ids of the records that some lanes give to a step of the epoch, lane after lane.

        Returns:
            Shape (records,); shorter than lanes * lane_batch in an epoch's last step, maybe empty.
        """
        first = step * self._plan.global_batch
        return self.between(first, first + self._plan.global_batch, lanes)

    def between(self, first: int, last: int, lanes: range) -> Ids:
        """Ids of the records of some lanes in some places of the epoch, lane after lane.

        Args:
            first: The first place; `spans` says how places are counted.
            last: The place after the last; it may lie behind the epoch's end.
            lanes: Whose records are wanted.

        Returns:
            Shape (records,), maybe empty.
        """
        plan = self._plan
        row, end = first // plan.num_lanes, -(-last // plan.num_lanes)
        parts = [
            self._grid(window, lanes)[
                :, max(row - window * plan.window, 0) : end - window * plan.window
            ]
            for window in range(row // plan.window, -(-end // plan.window))
        ]
        padded = np.concatenate(parts, axis=1)
        is_there = padded != _NO_RECORD
        if first % plan.num_lanes or last % plan.num_lanes:
            rows = np.arange(row, row + padded.shape[1])
            places = rows * plan.num_lanes + np.asarray(lanes, np.int64)[:, None]
            is_there &= (first <= places) & (places < last)
        ids: Ids = padded[is_there]  # Row after row.
        return ids

    def _make_grid(self, window: int, lanes: range) -> Ids:
        """The record ids of a window of some lanes, shape (lanes, window), filled up at the end."""
        grid = np.full((len(lanes), self._plan.window), _NO_RECORD, np.int64)
        for row, lane in zip(grid, lanes, strict=True):
            ids = self._window_ids(lane, window)
            row[: len(ids)] = ids
        return grid

    def _make_window_ids(self, lane: int, window: int) -> Ids:
        """The record ids of a window of one lane in their order; shorter at the lane's end."""
        plan = self._plan
        start, stop = plan.lane_bounds(lane)
        first = start + window * plan.window
        length = max(0, min(plan.window, stop - first))
        if not self._blocks:
            return np.arange(first, first + length)
        order = self._random(lane, window).permutation(length)
        ids: Ids = self._blocks.ids(first, first + length)[order]
        return ids

    def _random(self, *more: int) -> np.random.Generator:
        return np.random.default_rng([self._plan.seed, self._epoch, *more])
