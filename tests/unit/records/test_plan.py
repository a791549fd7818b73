"""The data plan: every record once an epoch, the same records in a step whatever the ring does."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edl_horovod.config.tasks import choose_growing_lanes
from edl_horovod.records.plan import (
    DataPlan,
    FilledSteps,
    Span,
    StepSpans,
    choose_window,
    lanes_of_rank,
)


def plan_with(counts, **settings):
    counts = np.array(counts, np.int64)
    return DataPlan(block_starts=np.cumsum(counts) - counts, block_counts=counts, **settings)


def plan_of(draw, **sizes):
    return plan_with(
        draw(st.lists(st.integers(1, 40), min_size=1, max_size=12)),
        seed=draw(st.integers(0, 5)),
        window=draw(st.integers(1, 50)),
        is_shuffled=draw(st.booleans()),
        **sizes,
    )


@st.composite
def plans(draw):
    num_lanes = draw(st.integers(1, 9))
    batch = num_lanes * draw(st.integers(1, 7))
    return plan_of(draw, global_batch=batch, num_lanes=num_lanes)


def ring_records(plan, order, step, size):
    lanes = [lanes_of_rank(rank, size, plan.num_lanes) for rank in range(size)]
    return np.concatenate([order.records(step, rank_lanes) for rank_lanes in lanes])


@given(plans(), st.integers(0, 3))
@settings(max_examples=200)
def test_every_record_is_in_an_epoch_exactly_once(plan, epoch):
    order = plan.order(epoch)
    all_lanes = range(plan.num_lanes)
    seen = np.concatenate([order.records(s, all_lanes) for s in range(plan.steps_per_epoch)])
    assert sorted(seen) == list(range(plan.num_records))


@pytest.mark.long
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
        plan = plan_with([20] * 50, global_batch=64, num_lanes=8, seed=seed)
        return tuple(plan.order(epoch).records(0, range(8)))

    assert len({first(seed, epoch) for seed in range(3) for epoch in range(3)}) == 9
    assert first(1, 2) == first(1, 2)


def test_a_plan_says_how_it_shuffles_and_nothing_where_it_does_not():
    def facts(is_shuffled):
        return plan_with([3, 4], global_batch=2, num_lanes=1, is_shuffled=is_shuffled).facts()

    assert facts(True)["order of blocks"] == "feistel"
    # The order of files is the same in every version, so its checkpoints still fit.
    assert "order of blocks" not in facts(False)


@pytest.mark.parametrize(
    ("wanted", "record_bytes", "window"),
    [(0, 100, 1024), (0, 4096, 1024), (0, 8192, 512), (0, 1 << 30, 1), (7, 1 << 30, 7)],
)
def test_a_window_is_as_large_as_memory_allows(wanted, record_bytes, window):
    chosen = choose_window(wanted, num_lanes=32, record_bytes=record_bytes, max_bytes=128 << 20)
    assert chosen == window


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


@st.composite
def growing_plans(draw):
    sizes = {"rank_batch": draw(st.integers(1, 9)), "num_lanes": draw(st.integers(1, 13))}
    return plan_of(draw, **sizes)


def parts_of(plan, span, size):
    """The records of a step of growing size, for each rank of a ring."""
    order = plan.order(span.epoch)
    lanes = [plan.lanes_of(rank, size) for rank in range(size)]
    return [order.between(span.first, span.last, rank_lanes) for rank_lanes in lanes]


@pytest.mark.long
@given(growing_plans(), st.lists(st.tuples(st.integers(1, 13), st.integers(1, 6)), min_size=1))
@settings(max_examples=300)
def test_each_record_is_taken_once_an_epoch_for_any_history_of_rings(plan, rings):
    """Each ring, of so many ranks, does so many steps; then come the same rings again."""
    step = taken = 0
    by_epoch = {}
    for size, num_steps in itertools.cycle(rings):
        if taken >= 2 * plan.num_records:
            break
        size = min(size, plan.num_lanes)
        spans = plan.spans(size, first_step=step, first_record=taken)
        for _ in range(num_steps):
            span = spans[step]
            parts = parts_of(plan, span, size)
            assert sum(map(len, parts)) == span.last - span.first <= plan.rank_batch * size
            by_epoch.setdefault(span.epoch, []).extend(np.concatenate(parts).tolist())
            assert spans.records_before(step) == taken
            step, taken = step + 1, taken + span.last - span.first
            assert spans.records_before(step) == taken
    for epoch in range(taken // plan.num_records):
        assert sorted(by_epoch[epoch]) == list(range(plan.num_records))


@pytest.mark.long
@given(growing_plans(), st.data())
@settings(max_examples=100)
def test_a_ring_that_divides_the_lanes_gives_each_rank_the_same_share(plan, data):
    size = data.draw(st.integers(1, plan.num_lanes).filter(lambda n: plan.num_lanes % n == 0))
    spans = plan.spans(size)
    for step in range(spans.first_step_of(1)):
        span = spans[step]
        if span.last - span.first == plan.rank_batch * size:
            assert {*map(len, parts_of(plan, span, size))} == {plan.rank_batch}


@given(growing_plans(), st.data())
@settings(max_examples=100)
def test_other_rings_differ_by_a_record_for_each_round_of_the_lanes(plan, data):
    size = data.draw(st.integers(1, plan.num_lanes))
    spans = plan.spans(size)
    for step in range(spans.first_step_of(1)):
        span = spans[step]
        sizes = [*map(len, parts_of(plan, span, size))]
        rounds = (span.last - 1) // plan.num_lanes - span.first // plan.num_lanes + 1
        assert max(sizes) - min(sizes) <= rounds


@given(
    st.integers(1, 50),
    st.integers(1, 60),
    st.integers(0, 9),
    st.integers(0, 200),
    st.integers(0, 5),
)
def test_the_first_step_of_an_epoch_is_the_one_that_begins_it(records, size, step, record, epoch):
    spans = StepSpans(
        epoch_records=records, step_records=size, first_step=step, first_record=record
    )
    begin = spans.first_step_of(epoch)
    assert spans.records_before(begin) == max(record, epoch * records)
    assert begin == step or spans.records_before(begin - 1) < epoch * records


@given(st.integers(1, 200), st.integers(1, 9), st.integers(1, 5), st.integers(0, 60))
def test_steps_are_larger_after_a_warmup_and_take_each_record_once(records, batch, factor, warm):
    plan = plan_with(
        [records],
        global_batch=batch * factor,
        warmup_steps=warm,
        warmup_batch=batch,
        num_lanes=1,
    )
    spans, taken = plan.spans(1), 0
    for step in range(spans.first_step_of(3)):
        span = spans[step]
        assert plan.records_seen(step) == span.epoch * records + span.first == taken
        full = batch if step < warm else batch * factor
        assert span.last == min(span.first + full, records)
        if span.first == 0:
            assert spans.first_step_of(span.epoch) == step
        taken += span.last - span.first
    assert taken == 3 * records


def test_no_step_goes_beyond_an_epochs_end():
    spans = StepSpans(epoch_records=10, step_records=4, first_step=3, first_record=15)
    taken = [spans[step] for step in range(3, 8)]
    assert taken == [Span(1, 5, 9), Span(1, 9, 10), Span(2, 0, 4), Span(2, 4, 8), Span(2, 8, 10)]


@given(st.integers(1, 300), st.integers(0, 500))
def test_lanes_suit_the_ring_that_is_asked_for(np, max_np):
    lanes = choose_growing_lanes(0, num_ranks=np, most_ranks=max_np)
    assert lanes >= max(32, 4 * np, max_np)
    assert all(lanes % size == 0 for size in (np, 1, 2, 3, 4, 6, 12))
    assert choose_growing_lanes(7, num_ranks=np, most_ranks=max_np) == 7
