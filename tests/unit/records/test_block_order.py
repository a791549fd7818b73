"""Records of an epoch by their position: each block once, in shuffled order, without a list."""

import time
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edl_horovod.records.plan import BlockOrder, DataPlan, Permutation

SIZES = st.one_of(
    st.integers(1, 200),
    # Around squares and products of neighbours, where the halves of the network change.
    st.integers(1, 60).flatmap(lambda k: st.sampled_from([k * k, k * k + 1, k * k + k, k * k - 1])),
    st.integers(1, 100_000),
).filter(bool)


def make(counts: np.ndarray, seed: int, group_blocks: int) -> tuple[BlockOrder, np.ndarray]:
    """An order, and the ids that it must give, by a list of all blocks."""
    starts = np.cumsum(counts) - counts
    permutation = Permutation(len(counts), np.random.default_rng(seed))
    blocks = permutation(np.arange(len(counts)))
    ids = [np.arange(starts[block], starts[block] + counts[block]) for block in blocks]
    order = BlockOrder(starts, counts, permutation, cached_groups=2, group_blocks=group_blocks)
    return order, np.concatenate(ids)


@pytest.mark.long
@given(
    counts=st.lists(st.integers(1, 9), min_size=1, max_size=60),
    group=st.integers(1, 20),
    seed=st.integers(0, 9),
    data=st.data(),
)
@settings(max_examples=200)
def test_any_positions_hold_the_records_of_their_blocks(counts, group, seed, data):
    order, expected = make(np.array(counts, np.int64), seed, group)
    for _ in range(4):
        first = data.draw(st.integers(0, sum(counts)))
        stop = data.draw(st.integers(first, sum(counts)))
        assert order.ids(first, stop).tolist() == expected[first:stop].tolist()


@pytest.mark.long
def test_ten_million_blocks_take_little_memory_and_begin_at_once():
    counts = np.full(10_000_000, 1000, np.int64)
    counts[::3] = 997
    plan = DataPlan(
        block_starts=np.cumsum(counts) - counts,
        block_counts=counts,
        global_batch=4096,
        num_lanes=64,
    )
    tracemalloc.start()
    began = time.process_time()
    order = plan.order(0)
    ids = order.records(0, range(64))
    seconds = time.process_time() - began
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 << 20
    assert seconds < 4  # 0.5 on an idle processor; a list of all blocks takes more, and 320 MB.
    assert plan.num_records > 9.9e9
    last = order.records(plan.steps_per_epoch - 1, range(64))
    assert len(np.unique(ids)) == 4096
    assert 0 < len(last) <= 4096
    assert not {*ids.tolist()} & {*last.tolist()}


@pytest.mark.long
@given(n=SIZES, seed=st.lists(st.integers(0, 2**32), min_size=1, max_size=3))
@settings(max_examples=300)
def test_each_number_stands_at_one_place(n, seed):
    shuffled = Permutation(n, np.random.default_rng(seed))(np.arange(n))
    assert np.array_equal(np.sort(shuffled), np.arange(n))


@given(n=SIZES, seed=st.integers(0, 100), data=st.data())
@settings(max_examples=100)
def test_places_may_be_asked_for_in_any_order(n, seed, data):
    places = np.array(data.draw(st.lists(st.integers(0, n - 1), max_size=20)), np.int64)
    permutation = Permutation(n, np.random.default_rng(seed))
    assert np.array_equal(permutation(places), permutation(np.arange(n))[places])


def test_a_permutation_of_many_numbers_needs_little_memory_and_is_one():
    n = 10**10
    tracemalloc.start()
    permutation = Permutation(n, np.random.default_rng(1))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 6 << 20
    places = np.arange(n // 2, n // 2 + 100_000)
    values = permutation(places)
    assert 0 <= values.min() <= values.max() < n
    assert len(np.unique(values)) == len(places)


def test_every_number_is_as_likely_at_every_place():
    n, num_seeds = 12, 6000
    shuffles = [Permutation(n, np.random.default_rng(s))(np.arange(n)) for s in range(num_seeds)]
    table = np.stack(shuffles)
    counts = np.stack([np.bincount(table[:, place], minlength=n) for place in range(n)])
    expected = num_seeds / n
    # 121 degrees of freedom: beyond 180 by chance once in 2,500 choices of seeds; these are fixed.
    assert ((counts - expected) ** 2 / expected).sum() < 180


def test_neighbours_are_parted():
    n = 100_000
    shuffled = Permutation(n, np.random.default_rng(3))(np.arange(n))
    assert abs(np.corrcoef(shuffled[:-1], shuffled[1:])[0, 1]) < 0.015
    # As many neighbours stay neighbours as by chance: one, or few.
    assert np.count_nonzero(np.abs(np.diff(shuffled)) == 1) < 12
    runs = np.diff(shuffled) > 0
    assert abs(runs.mean() - 0.5) < 0.01
