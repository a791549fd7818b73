"""Curves of bounded size."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from edl_horovod.displays.page.snapshot import Series


@given(count=st.integers(0, 3000), limit=st.integers(2, 50))
def test_a_curve_keeps_its_ends_and_thins_evenly(count, limit):
    series = Series(limit)
    for x in range(count):
        series.add(x, -x)

    xs = [x for x, _ in series.points]
    assert len(xs) <= limit + 1
    assert all(y == -x for x, y in series.points)
    assert xs == sorted(set(xs))
    if count:
        assert (xs[0], xs[-1]) == (0, count - 1)
        gaps = {second - first for first, second in itertools.pairwise(xs[:-1])}
        assert len(gaps) <= 1, "but for the last point all are as far apart"
    if count <= limit:
        assert xs == list(range(count))


@given(count=st.integers(1, 500), back=st.integers(0, 500))
def test_steps_that_are_done_again_take_the_place_of_the_old_ones(count, back):
    series = Series(20)
    for x in range(count):
        series.add(x, 1.0)
    series.rewind(back)
    for x in range(back, back + 5):
        series.add(x, 2.0)

    xs = [x for x, _ in series.points]
    assert xs == sorted(set(xs))
    assert series.points[-1] == (back + 4, 2.0)
    assert all(y == (1.0 if x < back else 2.0) for x, y in series.points)
