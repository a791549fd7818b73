"""A model of a step's time over ranks, bytes and bandwidth, fitted to measured steps.

Sending n bytes takes alpha + n / bandwidth (R. W. Hockney, "The communication challenge for MPP:
Intel Paragon and Meiko CS-2", Parallel Computing 20(3), 1994). A ring all-reduce of n bytes over p
ranks has 2 (p - 1) rounds, in which each rank sends 2 n (p - 1) / p bytes (P. Patarasuk, X. Yuan,
"Bandwidth optimal all-reduce algorithms for clusters of workstations", J. Parallel Distrib. Comput.
69(2), 2009). To the wire comes what a rank's processor does with each byte that it sends: copying
it, and adding it up.

Computing and reducing overlap in part: t = max(c, r) + (1 - overlap) min(c, r).

Alpha is not fitted: where several ranks share a core, they wait for it in each round, and in a few
rounds of two and four ranks that would hide behind the other two.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

__all__ = ["AlphaBeta", "Measured", "fit"]

_SCALES = np.array([1e-9, 1.0])
"""Usual sizes of the two parameters, so that the fit's steps suit both."""
_START = np.array([1.0, 0.5])


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One measured step."""

    num_ranks: int
    compute_seconds: float
    """Of a step without any reduction, with so many ranks on this machine."""
    bits_per_second: float
    """Of the one link that all ranks share; infinite where there is no limit."""
    step_seconds: float


@dataclass(frozen=True, kw_only=True)
class AlphaBeta:
    """The parameters."""

    num_bytes: float
    """That are reduced in a step."""
    alpha_seconds: float
    """Of each round of a ring."""
    seconds_per_byte: float
    """Of a rank's processor, for a byte that it sends."""
    overlap: float
    """Share of the shorter of computing and reducing that the longer hides; 0 to 1."""

    def step_seconds(self, num_ranks: int, compute_seconds: float, bits_per_second: float) -> float:
        """A step of ranks that each have a link of their own.

        Args:
            num_ranks: Of the ring.
            compute_seconds: Of a step without any reduction.
            bits_per_second: Of each rank's link, in each direction.
        """
        sent = 2.0 * self.num_bytes * (num_ranks - 1) / num_ranks
        return self._overlapped(num_ranks, compute_seconds, 8.0 * sent / bits_per_second)

    def shared_step_seconds(self, measured: Measured) -> float:
        """A step of ranks that all send over one link, as on a limited loopback.

        Args:
            measured: Says how many, at which rate; its own step does not matter.
        """
        sent = 2.0 * self.num_bytes * (measured.num_ranks - 1)
        wire = 8.0 * sent / measured.bits_per_second
        return self._overlapped(measured.num_ranks, measured.compute_seconds, wire)

    def _overlapped(self, num_ranks: int, compute: float, wire: float) -> float:
        rounds = 2 * (num_ranks - 1)
        sent = 2.0 * self.num_bytes * (num_ranks - 1) / num_ranks
        reduce = rounds * self.alpha_seconds + wire + self.seconds_per_byte * sent
        return max(compute, reduce) + (1.0 - self.overlap) * min(compute, reduce)


def fit(measured: Sequence[Measured], num_bytes: float, alpha_seconds: float) -> AlphaBeta:
    """The parameters with the least relative errors, squared.

    Args:
        measured: Steps of rings of at least two sizes and rates, all on one machine.
        num_bytes: That are reduced in a step.
        alpha_seconds: Of each round of a ring.
    """

    def of(scaled: NDArray[np.float64]) -> AlphaBeta:
        per_byte, overlap = (float(value) for value in scaled * _SCALES)
        return AlphaBeta(
            num_bytes=num_bytes,
            alpha_seconds=alpha_seconds,
            seconds_per_byte=per_byte,
            overlap=overlap,
        )

    def errors(scaled: NDArray[np.float64]) -> NDArray[np.float64]:
        model = of(scaled)
        return np.array([model.shared_step_seconds(one) / one.step_seconds - 1 for one in measured])

    bounds = (np.zeros(2), np.array([1e2, 1.0]))
    return of(least_squares(errors, _START, bounds=bounds).x)
