"""A batch that grows with the ring: each record once an epoch, whatever rings there were."""

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from edl_horovod.records.lanes import choose_growing_lanes, interleaved_lanes
from edl_horovod.records.plan import DataPlan
from edl_horovod.records.spans import Span, StepSpans


@st.composite
def growing_plans(draw):
    counts = np.array(draw(st.lists(st.integers(1, 40), min_size=1, max_size=12)), np.int64)
    return DataPlan(
        block_starts=np.cumsum(counts) - counts,
        block_counts=counts,
        rank_batch=draw(st.integers(1, 9)),
        num_lanes=draw(st.integers(1, 13)),
        seed=draw(st.integers(0, 5)),
        window=draw(st.integers(1, 50)),
        is_shuffled=draw(st.booleans()),
    )


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
            order = plan.order(span.epoch)
            parts = [
                order.between(span.first, span.last, plan.lanes_of(rank, size))
                for rank in range(size)
            ]
            assert sum(map(len, parts)) == span.last - span.first <= plan.rank_batch * size
            by_epoch.setdefault(span.epoch, []).extend(np.concatenate(parts).tolist())
            assert spans.records_before(step) == taken
            step, taken = step + 1, taken + span.last - span.first
            assert spans.records_before(step) == taken
    for epoch in range(taken // plan.num_records):
        assert sorted(by_epoch[epoch]) == list(range(plan.num_records))


@given(growing_plans(), st.data())
@settings(max_examples=100)
def test_a_ring_that_divides_the_lanes_gives_each_rank_the_same_share(plan, data):
    size = data.draw(st.integers(1, plan.num_lanes).filter(lambda n: plan.num_lanes % n == 0))
    order, spans = plan.order(0), plan.spans(size)
    for step in range(spans.first_step_of(1)):
        span = spans[step]
        if span.last - span.first == plan.rank_batch * size:
            for rank in range(size):
                found = order.between(span.first, span.last, plan.lanes_of(rank, size))
                assert len(found) == plan.rank_batch


@given(growing_plans(), st.data())
@settings(max_examples=100)
def test_other_rings_differ_by_a_record_for_each_round_of_the_lanes(plan, data):
    size = data.draw(st.integers(1, plan.num_lanes))
    order, spans = plan.order(0), plan.spans(size)
    for step in range(spans.first_step_of(1)):
        span = spans[step]
        parts = [
            len(order.between(span.first, span.last, plan.lanes_of(rank, size)))
            for rank in range(size)
        ]
        rounds = (span.last - 1) // plan.num_lanes - span.first // plan.num_lanes + 1
        assert max(parts) - min(parts) <= rounds


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
    found = spans.first_step_of(epoch)
    assert spans.records_before(found) == max(record, epoch * records)
    assert found == step or spans.records_before(found - 1) < epoch * records


def test_no_step_goes_beyond_an_epochs_end():
    spans = StepSpans(epoch_records=10, step_records=4, first_step=3, first_record=15)
    found = [spans[step] for step in range(3, 8)]
    assert found == [Span(1, 5, 9), Span(1, 9, 10), Span(2, 0, 4), Span(2, 4, 8), Span(2, 8, 10)]


@given(st.integers(1, 300), st.integers(0, 500))
def test_lanes_suit_the_ring_that_is_asked_for(np, max_np):
    found = choose_growing_lanes(0, num_ranks=np, most_ranks=max_np)
    assert found >= max(32, 4 * np, max_np)
    assert all(found % size == 0 for size in (np, 1, 2, 3, 4, 6, 12))
    assert choose_growing_lanes(7, num_ranks=np, most_ranks=max_np) == 7


def test_interleaved_lanes_are_dealt_once():
    dealt = [lane for rank in range(5) for lane in interleaved_lanes(rank, 5, 32)]
    assert sorted(dealt) == list(range(32))
