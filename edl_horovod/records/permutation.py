"""A permutation of the numbers below n that is computed on demand, at any position.

A permutation array of n blocks would take 8 n bytes in every rank, again in each epoch. Here
a generalised Feistel network permutes the numbers below a * b, which is n or little more; a result
that is not below n is permuted again until it is ("cycle walking"). Both are from J. Black and
P. Rogaway, "Ciphers with Arbitrary Finite Domains", CT-RSA 2002, sections 3 and 5. Their ciphers
need keyed functions in each round; a shuffle has no attacker, so a round uses a table of random
numbers, which is faster. With truly random tables, six rounds cannot be distinguished from a random
permutation by fewer than about sqrt(n) of its values (M. Luby and C. Rackoff, 1988).
"""

import math

import numpy as np
import numpy.typing as npt

__all__ = ["Permutation"]

_ROUNDS = 6
"""Rounds alternate between the two halves of a number."""


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
