"""Records of an epoch by their position: block after block, without a list of all blocks."""

import time
import tracemalloc

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from edl_horovod.records import block_order
from edl_horovod.records.block_order import BlockOrder
from edl_horovod.records.permutation import Permutation
from edl_horovod.records.plan import DataPlan


def make(counts: np.ndarray, seed: int) -> tuple[BlockOrder, np.ndarray]:
    """An order, and the ids that it must give, by a list of all blocks."""
    starts = np.cumsum(counts) - counts
    permutation = Permutation(len(counts), np.random.default_rng(seed))
    blocks = permutation(np.arange(len(counts)))
    ids = [np.arange(starts[block], starts[block] + counts[block]) for block in blocks]
    return BlockOrder(starts, counts, permutation, cached_groups=2), np.concatenate(ids)


@given(
    counts=st.lists(st.integers(1, 9), min_size=1, max_size=60),
    group=st.integers(1, 20),
    groups_at_once=st.integers(1, 4),
    seed=st.integers(0, 9),
    data=st.data(),
)
@settings(max_examples=200)
def test_any_positions_hold_the_records_of_their_blocks(
    counts: list[int], group: int, groups_at_once: int, seed: int, data: st.DataObject
) -> None:
    former = block_order._GROUP_BLOCKS, block_order._BLOCKS_AT_ONCE
    block_order._GROUP_BLOCKS, block_order._BLOCKS_AT_ONCE = group, group * groups_at_once
    try:
        order, expected = make(np.array(counts, np.int64), seed)
        for _ in range(4):
            first = data.draw(st.integers(0, sum(counts)))
            stop = data.draw(st.integers(first, sum(counts)))
            assert order.ids(first, stop).tolist() == expected[first:stop].tolist()
    finally:
        block_order._GROUP_BLOCKS, block_order._BLOCKS_AT_ONCE = former


def test_positions_over_several_groups() -> None:
    counts = np.random.default_rng(0).integers(1, 5, 40 * block_order._GROUP_BLOCKS + 7)
    order, expected = make(counts, 1)
    assert np.array_equal(order.ids(0, len(expected)), expected)


def test_ten_million_blocks_take_little_memory_and_begin_at_once() -> None:
    num_blocks = 10_000_000
    counts = np.full(num_blocks, 1000, np.int64)
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
