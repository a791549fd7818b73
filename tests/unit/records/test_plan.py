"""The data plan: every record once an epoch, the same records in a step whatever the ring does."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edl_horovod.records.lanes import lanes_of_rank
from edl_horovod.records.plan import DataPlan, FilledSteps, choose_window


@st.composite
def plans(draw):
    counts = np.array(draw(st.lists(st.integers(1, 40), min_size=1, max_size=12)), np.int64)
    starts = np.cumsum(counts) - counts
    num_lanes = draw(st.integers(1, 9))
    return DataPlan(
        block_starts=starts,
        block_counts=counts,
        global_batch=num_lanes * draw(st.integers(1, 7)),
        num_lanes=num_lanes,
        seed=draw(st.integers(0, 5)),
        window=draw(st.integers(1, 50)),
        is_shuffled=draw(st.booleans()),
    )


def ring_records(plan, order, step, size):
    return np.concatenate(
        [order.records(step, lanes_of_rank(rank, size, plan.num_lanes)) for rank in range(size)]
    )


@given(plans(), st.integers(0, 3))
@settings(max_examples=200)
def test_every_record_is_in_an_epoch_exactly_once(plan, epoch):
    order = plan.order(epoch)
    all_lanes = range(plan.num_lanes)
    seen = np.concatenate([order.records(s, all_lanes) for s in range(plan.steps_per_epoch)])
    assert sorted(seen) == list(range(plan.num_records))


@given(plans(), st.data())
@settings(max_examples=200)
def test_resizes_anywhere_change_neither_the_records_of_a_step_nor_their_order(plan, data):
    order = plan.order(1)
    for step in range(plan.steps_per_epoch):
        size = data.draw(st.integers(1, plan.num_lanes))
        whole = order.records(step, range(plan.num_lanes))
        assert np.array_equal(ring_records(plan, order, step, size), whole)


@given(plans())
@settings(max_examples=100)
def test_a_full_step_holds_the_global_batch_and_records_seen_counts_them(plan):
    order, seen = plan.order(0), 0
    for step in range(plan.steps_per_epoch):
        assert plan.records_seen(step) == seen
        count = len(order.records(step, range(plan.num_lanes)))
        assert 0 < count <= plan.global_batch
        if step < plan.steps_per_epoch - 2:
            assert count == plan.global_batch
        seen += count
    assert plan.records_seen(plan.steps_per_epoch) == plan.num_records == seen


@given(plans())
@settings(max_examples=50)
def test_without_shuffle_each_lane_is_a_contiguous_run(plan):
    still = DataPlan(**{**plan.__dict__, "is_shuffled": False})
    order = still.order(0)
    for lane in range(still.num_lanes):
        run = [order.records(s, range(lane, lane + 1)) for s in range(still.steps_per_epoch)]
        start, stop = still.lane_bounds(lane)
        assert np.concatenate(run).tolist() == list(range(start, stop))


def test_epochs_and_seeds_have_orders_of_their_own():
    def first(seed, epoch):
        counts = np.full(50, 20, np.int64)
        plan = DataPlan(
            block_starts=np.arange(50, dtype=np.int64) * 20,
            block_counts=counts,
            global_batch=64,
            num_lanes=8,
            seed=seed,
        )
        return tuple(plan.order(epoch).records(0, range(8)))

    assert len({first(seed, epoch) for seed in range(3) for epoch in range(3)}) == 9
    assert first(1, 2) == first(1, 2)


def test_a_plan_says_how_it_shuffles_and_nothing_where_it_does_not():
    def facts(is_shuffled):
        counts = np.array([3, 4])
        plan = DataPlan(
            block_starts=np.array([0, 3]),
            block_counts=counts,
            global_batch=2,
            num_lanes=1,
            is_shuffled=is_shuffled,
        )
        return plan.facts()

    assert facts(True)["order of blocks"] == "feistel"
    # The order of files is the same in every version, so its checkpoints still fit.
    assert "order of blocks" not in facts(False)


@pytest.mark.parametrize(
    ("wanted", "record_bytes", "window"),
    [(0, 100, 1024), (0, 4096, 1024), (0, 8192, 512), (0, 1 << 30, 1), (7, 1 << 30, 7)],
)
def test_a_window_is_as_large_as_memory_allows(wanted, record_bytes, window):
    found = choose_window(wanted, num_lanes=32, record_bytes=record_bytes, max_bytes=128 << 20)
    assert found == window


@given(plans(), st.data())
@settings(max_examples=200)
def test_filled_steps_are_those_in_which_the_lanes_have_records(plan, data):
    size = data.draw(st.integers(1, plan.num_lanes))
    lanes = lanes_of_rank(data.draw(st.integers(0, size - 1)), size, plan.num_lanes)
    first = data.draw(st.integers(0, 3 * plan.steps_per_epoch))
    last = first + data.draw(st.integers(0, 3 * plan.steps_per_epoch))

    filled = FilledSteps(plan, lanes, first=first, last=last)

    order = plan.order(0)  # How many records a step holds is the same in each epoch.
    expected = [
        step
        for step in range(first, last)
        if len(order.records(step % plan.steps_per_epoch, lanes))
    ]
    assert [filled[number] for number in range(len(filled))] == expected
    assert [step for step in range(last + 2) if step in filled] == expected
