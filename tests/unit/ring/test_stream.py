"""Where a stream of the state is, and who has how much of it: every rank reckons alike."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl_horovod.frameworks.values import Array, StateGroup
from edl_horovod.ring.state import FIRST_BYTES, Layout, Pace, Received, Stream

VARIABLES = {
    "kernel": Array(np.zeros((10, 3), np.float32)),
    "slot": Array(np.zeros((10, 3), np.float64)),
    "bias": Array(np.zeros(5, np.float32)),
    "number": Array(np.float64(0)),
    "nothing": Array(np.zeros((0, 4))),
}
GROUPS = [
    StateGroup(("kernel", "slot"), is_by_rows=True),
    StateGroup(("bias",)),
    StateGroup(("nothing",), is_by_rows=True),
    StateGroup(("number",)),
]
ROW_BYTES, TOTAL = 3 * 4 + 3 * 8, 10 * 36 + 20 + 8


def layout():
    return Layout(GROUPS, VARIABLES)


@given(st.lists(st.integers(1, 200), min_size=1))
def test_slices_of_any_sizes_cover_each_row_of_a_group_once_and_together(sizes):
    place, seen, number = 0, [], 0
    while place < TOTAL:
        parts, end = layout().cut(place, sizes[number % len(sizes)])
        number += 1
        assert parts
        assert end > place
        place = end
        seen += [
            (name, row)
            for part in parts
            for name, variable in VARIABLES.items()
            if part.variable is variable
            for row in (range(part.first, part.last) if part.last is not None else ["all"])
        ]
        rows = {name: {row for n, row in seen if n == name} for name in ("kernel", "slot")}
        assert rows["kernel"] == rows["slot"]
    expected = [(name, row) for name in ("kernel", "slot") for row in range(10)]
    assert sorted(map(str, seen)) == sorted(
        map(str, [*expected, ("bias", "all"), ("number", "all")])
    )


def test_a_slice_is_no_larger_than_asked_for_if_a_row_is_not():
    assert layout().cut(0, 4 * ROW_BYTES + 5)[1] == 4 * ROW_BYTES
    assert layout().cut(0, 1)[1] == ROW_BYTES
    assert layout().cut(8 * ROW_BYTES, 2 * ROW_BYTES + 20)[1] == 10 * ROW_BYTES + 20


def stream_of(**received):
    ranks = {int(rank[1:]): of_rank for rank, of_rank in received.items()}
    return Stream(layout(), ranks, step=7)


def advance(begun, num_bytes):
    parts, size = begun.next_slice(num_bytes)
    assert parts
    return size, begun.advance(size)


def test_a_newcomer_lacks_something_until_all_has_come():
    begun, total = stream_of(r1=Received(-1)), 0
    while begun.lacking:
        assert begun.lacking == {1}
        size, is_done = advance(begun, 50)
        total += size
        assert is_done == (total == TOTAL)
    assert total == TOTAL


def test_a_second_newcomer_takes_up_the_stream_where_it_is_and_gets_its_begin_at_the_end():
    first = stream_of(r1=Received(-1))
    advance(first, 5 * ROW_BYTES)
    begun = stream_of(r1=first.received(1, 7), r2=Received(-1))
    assert begun.offset == 5 * ROW_BYTES
    while 1 in begun.lacking:
        advance(begun, 60)
    assert begun.offset == 0
    assert begun.lacking == {2}
    assert begun.received(2, 9) == Received(9, 5 * ROW_BYTES, TOTAL - 5 * ROW_BYTES)
    advance(begun, 5 * ROW_BYTES)
    assert not begun.lacking


def test_what_was_not_kept_up_with_every_step_is_sent_again():
    begun = stream_of(r1=Received(6, 0, 100), r2=Received(8, 0, 100))
    assert begun.offset == 0
    assert begun.received(1, 7) == Received(7)


def test_where_the_last_slice_reached_one_of_two_both_get_it_again():
    begun = stream_of(r1=Received(7, 0, 5 * ROW_BYTES), r2=Received(7, 0, 4 * ROW_BYTES))
    assert begun.offset == 4 * ROW_BYTES
    assert begun.received(1, 7) == begun.received(2, 7) == Received(7, 0, 4 * ROW_BYTES)


@pytest.mark.parametrize(("step_seconds", "seconds"), [(0.2, 0.5 * 0.25 * 0.2), (30.0, 0.15)])
def test_slices_take_the_share_of_a_usual_step_that_they_may_and_never_long(step_seconds, seconds):
    pace = Pace(0.25)
    assert pace.next_bytes == FIRST_BYTES
    for stepped in [*[step_seconds] * 20, 60.0]:  # One long step among many says nothing.
        pace.stepped(stepped)
        pace.sent(pace.next_bytes, pace.next_bytes / 100e6)
    assert pace.next_bytes == pytest.approx(seconds * 100e6, rel=0.01)


def test_before_a_step_was_timed_slices_stay_as_they_are():
    pace = Pace(0.25)
    pace.sent(FIRST_BYTES, 1e-3)
    assert pace.next_bytes == FIRST_BYTES
