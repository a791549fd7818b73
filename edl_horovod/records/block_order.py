"""The shuffled order of an epoch's blocks, and the records at its positions, in little memory."""

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from edl_horovod.records.permutation import Permutation

__all__ = ["BlockOrder"]

_GROUP_BLOCKS = 1024
"""Number of blocks in a group. Only sums of groups are stored; a group is expanded on demand."""
_BLOCKS_AT_ONCE = 16 * _GROUP_BLOCKS
"""Blocks that the initial pass processes at a time: whole groups that fit the processor's cache."""

_Integers = npt.NDArray[np.int64]


class BlockOrder:
    """All records, block after block in shuffled order; a position counts records.

    It stores the number of records before each group of blocks, and caches the groups used last.
    The constructor makes one pass over the counts.
    """

    KIND = "feistel"
    """Identifies this order in checkpoints: a training cannot continue with another order."""

    def __init__(
        self,
        block_starts: _Integers,
        block_counts: _Integers,
        permutation: Permutation,
        *,
        cached_groups: int,
    ) -> None:
        """Sum up the groups.

        Args:
            block_starts: First record id of each block, shape (blocks,); not copied.
            block_counts: Records of each block, at least 1, shape (blocks,); not copied.
            permutation: The order of the blocks.
            cached_groups: Number of groups to cache: one for each position that is read in turn.
        """
        self._starts = block_starts
        self._counts = block_counts
        self._permutation = permutation
        num_blocks = len(block_counts)
        num_groups = -(-num_blocks // _GROUP_BLOCKS)
        self._firsts = np.zeros(num_groups + 1, np.int64)
        """The position of each group's first record, followed by the number of all records."""
        for first in range(0, num_blocks, _BLOCKS_AT_ONCE):
            counts = block_counts[self._blocks(first, first + _BLOCKS_AT_ONCE)]
            sums = np.add.reduceat(counts, np.arange(0, len(counts), _GROUP_BLOCKS))
            group = first // _GROUP_BLOCKS
            self._firsts[group + 1 : group + 1 + len(sums)] = sums
        np.cumsum(self._firsts, out=self._firsts)
        self._group = lru_cache(maxsize=cached_groups)(self._expand)

    def ids(self, first: int, stop: int) -> _Integers:
        """Return the ids of the records at the positions from `first` to `stop` (exclusive)."""
        parts = []
        while first < stop:
            group = int(np.searchsorted(self._firsts, first, side="right")) - 1
            end = min(stop, int(self._firsts[group + 1]))
            parts.append(self._ids_in_group(group, first, end))
            first = end
        return np.concatenate(parts) if parts else np.empty(0, np.int64)

    def _ids_in_group(self, group: int, first: int, stop: int) -> _Integers:
        positions, shifts = self._group(group)
        begin = int(np.searchsorted(positions, first, side="right")) - 1
        end = int(np.searchsorted(positions, stop, side="left"))
        bounds = np.append(positions[begin:end], stop)
        bounds[0] = first
        ids: _Integers = np.repeat(shifts[begin:end], np.diff(bounds))
        ids += np.arange(first, stop)
        return ids

    def _expand(self, group: int) -> tuple[_Integers, _Integers]:
        """Return the first position and the offset from positions to ids of a group's blocks."""
        blocks = self._blocks(group * _GROUP_BLOCKS, (group + 1) * _GROUP_BLOCKS)
        counts = self._counts[blocks]
        positions = self._firsts[group] + np.cumsum(counts) - counts
        return positions, self._starts[blocks] - positions

    def _blocks(self, first: int, stop: int) -> _Integers:
        return self._permutation(np.arange(first, min(stop, len(self._counts))))
