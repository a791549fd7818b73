"""The order of an epoch's blocks, and which record is at a place of it, in constant memory."""

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from edl_horovod.records.permutation import Permutation

__all__ = ["BlockOrder"]

_GROUP_BLOCKS = 1024
"""Sums are kept of groups of so many blocks; a group is spread out when its records are needed."""
_BLOCKS_AT_ONCE = 16 * _GROUP_BLOCKS
"""Whole groups that the pass over all blocks has in memory, and in a processor's cache."""

_Integers = npt.NDArray[np.int64]


class BlockOrder:
    """All records, block after block in shuffled order; a position counts records.

    In memory are the number of records before each group of blocks, and the groups that were used
    last. Making it takes one pass over the counts.
    """

    KIND = "feistel"
    """Names this order in checkpoints: what is shuffled otherwise goes on otherwise."""

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
            block_starts: First record id of each block, shape (blocks,); kept, not copied.
            block_counts: Records of each block, at least 1, shape (blocks,); kept, not copied.
            permutation: The order of the blocks.
            cached_groups: Groups to keep: as many as there are places that are read in turns.
        """
        self._starts = block_starts
        self._counts = block_counts
        self._permutation = permutation
        num_blocks = len(block_counts)
        num_groups = -(-num_blocks // _GROUP_BLOCKS)
        self._firsts = np.zeros(num_groups + 1, np.int64)
        """The position of each group's first record; at the end the number of all records."""
        for first in range(0, num_blocks, _BLOCKS_AT_ONCE):
            counts = block_counts[self._blocks(first, first + _BLOCKS_AT_ONCE)]
            sums = np.add.reduceat(counts, np.arange(0, len(counts), _GROUP_BLOCKS))
            group = first // _GROUP_BLOCKS
            self._firsts[group + 1 : group + 1 + len(sums)] = sums
        np.cumsum(self._firsts, out=self._firsts)
        self._group = lru_cache(maxsize=cached_groups)(self._spread_out)

    def ids(self, first: int, stop: int) -> _Integers:
        """The ids of the records at the positions from `first` to before `stop`."""
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

    def _spread_out(self, group: int) -> tuple[_Integers, _Integers]:
        """Of each block of a group its first position, and what a position lacks to its id."""
        blocks = self._blocks(group * _GROUP_BLOCKS, (group + 1) * _GROUP_BLOCKS)
        counts = self._counts[blocks]
        positions = self._firsts[group] + np.cumsum(counts) - counts
        return positions, self._starts[blocks] - positions

    def _blocks(self, first: int, stop: int) -> _Integers:
        return self._permutation(np.arange(first, min(stop, len(self._counts))))
