"""Compressed sums over a ring: how far they are from exact ones, and how many bytes they send."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from edl_horovod.tasks.compressed_sums import sum_compressed
from tests.thread_ring import Ring

SHAPES = {"kernel": (37, 61), "bias": (3,), "scalar": (), "empty": (0, 4)}
TOLERANCES = {"bf16": 2**-8, "fp16": 2**-10, "int8": 1 / 127}
"""Of the largest sum of magnitudes in a block: half a unit for each of two roundings."""
COMPRESSIONS = list(TOLERANCES)


def sum_up(summands, compression):
    """The sums that each rank receives, and the bytes that it has sent."""
    ring = Ring(len(summands))
    collectives = [ring.of(rank) for rank in range(len(summands))]

    def on(rank):
        return sum_compressed(
            summands[rank], collectives[rank], compression, num_ranks=len(summands), name="sum"
        )

    with ThreadPoolExecutor(len(summands)) as pool:
        totals = list(pool.map(on, range(len(summands))))
    return totals, [of_rank.num_bytes for of_rank in collectives]


def draw(size, scale=1.0, shapes=SHAPES):
    random = np.random.default_rng(size)
    return [
        {
            name: np.asarray(scale * random.normal(size=shape), np.float32)
            for name, shape in shapes.items()
        }
        for _ in range(size)
    ]


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_sums_are_close_to_exact_ones_and_the_same_on_all_ranks(size, compression, scale):
    summands = draw(size, scale)
    totals, _ = sum_up(summands, compression)
    for name, shape in SHAPES.items():
        exact = np.sum([part[name].astype(float) for part in summands], 0)
        largest = np.sum([np.abs(part[name]).max(initial=0) for part in summands])
        assert totals[0][name].shape == shape
        np.testing.assert_allclose(
            totals[0][name], exact, rtol=0, atol=TOLERANCES[compression] * largest
        )
        for other in totals[1:]:
            np.testing.assert_array_equal(other[name], totals[0][name])


def test_a_small_array_keeps_its_digits_beside_a_large_one():
    summands = [{"large": np.float32([1e6]), "small": np.float32([3e-6, -1e-6])}] * 2
    totals, _ = sum_up(summands, "int8")
    np.testing.assert_allclose(totals[0]["small"], [6e-6, -2e-6], rtol=0.02)


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_number_that_is_not_finite_shows_in_the_sum(compression, bad):
    summands = draw(3)
    summands[1]["bias"][2] = bad
    totals, _ = sum_up(summands, compression)
    for total in totals:
        assert not np.isfinite(total["bias"]).all()
        assert np.isfinite(total["kernel"]).all()


@pytest.mark.parametrize(("compression", "share"), [("bf16", 0.5), ("fp16", 0.51), ("int8", 0.26)])
def test_the_bytes_sent_are_a_half_or_a_quarter_of_those_of_a_ring_allreduce(compression, share):
    size, shapes = 4, {"kernel": (512, 256)}
    _, sent = sum_up(draw(size, shapes=shapes), compression)
    allreduce = 2 * (size - 1) / size * 4 * 512 * 256
    assert max(sent) <= share * allreduce
