"""The shuffled order of an epoch's blocks, and the records at its positions, in little memory.

A permutation array of n blocks would take 8 n bytes in every rank, again in each epoch. Here
a generalised Feistel network permutes the numbers below a * b, which is n or little more; a result
that is not below n is permuted again until it is ("cycle walking"). Both are from J. Black and
P. Rogaway, "Ciphers with Arbitrary Finite Domains", CT-RSA 2002, sections 3 and 5. Their ciphers
need keyed functions in each round; a shuffle has no attacker, so a round uses a table of random
numbers, which is faster. With truly random tables, six rounds cannot be distinguished from a random
permutation by fewer than about sqrt(n) of its values (M. Luby and C. Rackoff, 1988).
"""

import math
from functools import lru_cache

import numpy as np
import numpy.typing as npt

__all__ = ["BlockOrder", "Permutation"]

_GROUP_BLOCKS = 1024
"""Number of blocks in a group. Only sums of groups are stored; a group is expanded on demand."""
_BLOCKS_AT_ONCE = 16 * _GROUP_BLOCKS
"""Blocks that the initial pass processes at a time: whole groups that fit the processor's cache."""

_ROUNDS = 6
"""Rounds alternate between the two halves of a number."""

_Integers = npt.NDArray[np.int64]


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

    def __call__(self, positions: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the elements at some positions of the shuffled order, shape (positions,)."""
        values = self._network(positions)
        while len(outside := np.flatnonzero(values >= self._n)):
            # The loop ends: the cycle of the network through a position returns to the position.
            values[outside] = self._network(values[outside])
        return values

    def _network(self, numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
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
