"""A shuffle of the numbers below n that is computed, not stored: any place of it, in any order.

A permutation array of n blocks takes 8 n bytes in every rank and is made anew for each epoch. Here
a generalised Feistel network permutes the numbers below a * b, which is n or little more; a result
that is not below n is permuted again until it is ("cycle walking"). Both are from J. Black and
P. Rogaway, "Ciphers with Arbitrary Finite Domains", CT-RSA 2002, sections 3 and 5. Their ciphers
need keyed functions in each round; nobody attacks a shuffle, so a round has a table of random
numbers, which is faster to read. With tables that are truly random, six rounds cannot be told from
a random permutation by fewer than about sqrt(n) of its values (M. Luby and C. Rackoff, 1988).
"""

import math

import numpy as np
import numpy.typing as npt

__all__ = ["Permutation"]

_ROUNDS = 6
"""Of these, every other one changes the same half."""


class Permutation:
    """One permutation of the numbers from 0 to before n, in memory of the order of sqrt(n)."""

    def __init__(self, n: int, random: np.random.Generator) -> None:
        """Draw the permutation.

        Args:
            n: At least 1.
            random: What the tables are drawn from; equal states give equal permutations.
        """
        assert n >= 1, n
        self._n = n
        self._b = math.isqrt(n - 1) + 1
        self._a = -(-n // self._b)  # a * b - n < b: about one in sqrt(n) is permuted again.
        sides = [(self._a, self._b), (self._b, self._a)] * (_ROUNDS // 2)
        # A round adds to a number below the first what the table has at one below the second.
        self._tables = [random.integers(0, values, size, dtype=np.int64) for values, size in sides]

    def __call__(self, places: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """What stands at some places of the shuffled order, shape (places,)."""
        found = self._network(places)
        while len(outside := np.flatnonzero(found >= self._n)):
            # It ends: the walk follows a cycle of the network, which leads back to its place.
            found[outside] = self._network(found[outside])
        return found

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
