"""What ranks must have in common, to the last bit."""

import contextlib
import hashlib
from types import SimpleNamespace

import numpy as np

from tests.parallel.ring_framework import ring_framework

UNWATCHED = SimpleNamespace(doing=lambda *_: contextlib.nullcontext())
"""Stands for a membership where no coordinator watches."""


def assert_rounded_twice_at_most(world, compression, sum_up):
    """Sums over the ring of what `sum_up` is given as arrays, and of what float16 cannot hold."""
    all_values = [np.random.default_rng(rank).normal(0, 3, 1001) for rank in range(world.size)]
    values = np.float32(all_values[world.rank]), np.float32([1e7, np.inf, 0.0])
    total, others = sum_up(values)
    assert_same_everywhere([total, others])
    exact, sizes = np.sum(all_values, 0), np.sum(np.abs(all_values), 0)
    unit = {"bf16": 2.0**-9, "fp16": 2.0**-12}[compression]
    assert np.all(np.abs(total - exact) <= 2 * unit * (sizes + np.abs(exact)))
    # What float16 cannot hold becomes the largest number; what was not finite stays visible.
    assert np.isfinite(others).tolist() == [True, False, True]
    assert np.isinf(others[1])
    assert others[2] == 0.0


def assert_same_everywhere(values):
    """Arrays of this rank have the same bits on all others; all ranks call it."""
    digest = hashlib.sha256()
    for value in values:
        digest.update(np.ascontiguousarray(value).tobytes())
    number = int.from_bytes(digest.digest()[:7], "little")
    assert len(set(ring_framework().collectives.gather_rows([number], "test.digest")[:, 0])) == 1
