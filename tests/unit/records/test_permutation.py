"""The shuffle of blocks: each number once, at places asked for in any order."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from edl_horovod.records.permutation import Permutation

SIZES = st.one_of(
    st.integers(1, 200),
    # Around squares and products of neighbours, where the halves of the network change.
    st.integers(1, 60).flatmap(lambda k: st.sampled_from([k * k, k * k + 1, k * k + k, k * k - 1])),
    st.integers(1, 100_000),
).filter(bool)


@given(n=SIZES, seed=st.lists(st.integers(0, 2**32), min_size=1, max_size=3))
@settings(max_examples=300)
def test_each_number_stands_at_one_place(n: int, seed: list[int]) -> None:
    shuffled = Permutation(n, np.random.default_rng(seed))(np.arange(n))
    assert np.array_equal(np.sort(shuffled), np.arange(n))


@given(n=SIZES, seed=st.integers(0, 100), data=st.data())
@settings(max_examples=100)
def test_places_may_be_asked_for_in_any_order(n: int, seed: int, data: st.DataObject) -> None:
    places = np.array(data.draw(st.lists(st.integers(0, n - 1), max_size=20)), np.int64)
    permutation = Permutation(n, np.random.default_rng(seed))
    assert np.array_equal(permutation(places), permutation(np.arange(n))[places])


def test_a_permutation_of_many_numbers_needs_little_memory_and_is_one() -> None:
    n = 10**10
    permutation = Permutation(n, np.random.default_rng(1))
    assert sum(table.nbytes for table in permutation._tables) < 6 << 20
    places = np.arange(n // 2, n // 2 + 100_000)
    found = permutation(places)
    assert 0 <= found.min() <= found.max() < n
    assert len(np.unique(found)) == len(places)


def test_every_number_is_as_likely_at_every_place() -> None:
    n, num_seeds = 12, 6000
    shuffles = [Permutation(n, np.random.default_rng(s))(np.arange(n)) for s in range(num_seeds)]
    table = np.stack(shuffles)
    counts = np.stack([np.bincount(table[:, place], minlength=n) for place in range(n)])
    expected = num_seeds / n
    # 121 degrees of freedom: beyond 180 by chance once in 2,500 choices of seeds; these are fixed.
    assert ((counts - expected) ** 2 / expected).sum() < 180


def test_neighbours_are_parted() -> None:
    n = 100_000
    shuffled = Permutation(n, np.random.default_rng(3))(np.arange(n))
    correlation = np.corrcoef(shuffled[:-1], shuffled[1:])[0, 1]
    assert abs(correlation) < 0.015
    # As many neighbours stay neighbours as by chance: one, or few.
    assert np.count_nonzero(np.abs(np.diff(shuffled)) == 1) < 12
    runs = np.diff(shuffled) > 0
    assert abs(runs.mean() - 0.5) < 0.01
