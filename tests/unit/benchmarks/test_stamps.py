"""What follows from the ends of steps."""

import math

import pytest

from benchmarks import stamps
from benchmarks.elastic.goodput import account_lines, ideal_steps
from benchmarks.stamps import Stamp
from edl_horovod.job.account import Account, RankAccount


def steady(begin, end, *, every=0.1, first=1, size=1):
    """Steps that end every so often."""
    count = round((end - begin) / every)
    return [Stamp(at=begin + n * every, step=first + n, size=size) for n in range(count)]


@pytest.mark.parametrize(
    ("ends", "begin", "end", "seconds"),
    [
        ([*steady(0, 2), *steady(3.4, 5, first=21)], 1.95, 4.0, 1.5 - 0.1),
        # A gap that began before the event's window counts, and those of other events do not.
        ([*steady(0, 2), *steady(5, 6, first=21)], 3.0, 4.0, 3.1 - 0.1),
        (
            [*steady(0, 2), *steady(7, 9, first=21), *steady(9.4, 10, first=41)],
            8.0,
            10.0,
            0.5 - 0.1,
        ),
        ([*steady(0, 1, every=0.2), *steady(1, 2)], 1.1, 2.0, 0.0),
    ],
)
def test_stall_is_the_longest_gap_around_the_event_less_a_median_step(ends, begin, end, seconds):
    assert stamps.stall(ends, begin, end) == pytest.approx(seconds)


@pytest.mark.parametrize(("begin", "end"), [(-1.0, -0.5), (5.0, 6.0), (0.0, 1.0)])
def test_stall_without_steps_on_both_sides_is_an_error(begin, end):
    with pytest.raises(ValueError, match="no steps"):
        stamps.stall(steady(0, 2), begin, end)


def test_change_of_size_is_the_first_step_of_the_other_ring_after_the_event():
    ends = [*steady(0, 1), *steady(1, 2, size=2), *steady(2, 3), *steady(3, 4, size=2)]
    assert stamps.change_of_size(ends, 2, after=0.5) == pytest.approx(1.0)
    assert stamps.change_of_size(ends, 2, after=1.5) == pytest.approx(3.0)
    assert stamps.change_of_size(ends, 1, after=2.5) is None


def test_num_redone_counts_each_repeated_step():
    numbers = [1, 2, 3, 4, 3, 4, 5, 5]
    ends = [Stamp(at=float(n), step=step, size=1) for n, step in enumerate(numbers)]
    assert stamps.num_redone(ends) == 3
    assert stamps.num_redone(steady(0, 3)) == 0


@pytest.mark.parametrize(
    ("text", "whole"),
    [("1.5 7 2 0.5\n1.6 8", [Stamp(at=1.5, step=7, size=2, loss=0.5)]), ("", [])],
)
def test_read_leaves_a_torn_last_line_out(tmp_path, text, whole):
    (tmp_path / "0.1").write_text(text)
    assert stamps.read(tmp_path / "0.1") == whole


def test_stamper_writes_what_read_reads(tmp_path):
    stamper = stamps.Stamper(tmp_path / "new" / "0.1")
    stamper.step(1, 2)
    stamper.step(2, 2, 0.25)
    ends = stamps.read(tmp_path / "new" / "0.1")
    assert [(stamp.step, stamp.size) for stamp in ends] == [(1, 2), (2, 2)]
    assert math.isnan(ends[0].loss)
    assert ends[1].loss == 0.25
    assert ends[0].at <= ends[1].at
    assert stamps.read(tmp_path / "none") == []


def test_steps_per_second_counts_new_steps_of_all_ranks_once():
    ranks = [*steady(0, 10, size=2), *steady(0, 10, size=2)]
    assert stamps.steps_per_second(ranks, 2.05, 7.05) == pytest.approx(10)


def test_rate_over_time_shows_size_and_pauses():
    ends = [*steady(0, 2), *steady(4, 6, first=21, size=2)]
    rows = stamps.rate_over_time(ends, 0.0, 6.0, every=2.0)
    assert [size for _, _, size in rows] == [1, 0, 2]
    assert [rate for _, rate, _ in rows] == pytest.approx([10, 0, 10])


def test_loss_over_time_stands_still_where_no_step_ends():
    steps = [
        Stamp(at=at, step=step, size=size, loss=loss)
        for at, step, size, loss in [(5.2, 1, 3, 2.0), (5.8, 1, 3, 1.0), (9.5, 2, 2, 0.5)]
    ]
    rows = stamps.loss_over_time(steps, 5.0, 10.0, every=1.0)
    assert [size for _, _, size in rows] == [3, 0, 0, 0, 2]
    assert [loss for _, loss, _ in rows] == [1.5, 1.5, 1.5, 1.5, 0.5]


def test_an_account_is_held_against_the_lives_of_all_processes():
    whole = RankAccount("a:0", 1, 100.0, 110.0, 10.0, {"computing": 9.0, "input": 1.0})
    short = RankAccount("a:1", 2, 105.0, 115.0, 10.0, {"computing": 9.9})
    account = Account({rank.process: rank for rank in (whole, short)})

    goodput, missed, cost = account_lines([(account, 1000)])

    assert goodput.values == (pytest.approx(100 * 18.9 / 19.9),)
    assert missed.values == (pytest.approx(1.0),)
    assert missed.is_reached is False
    assert 0 < cost.values[0] < 5


def test_ideal_steps_follow_the_slots_that_were_there():
    assert ideal_steps([(0.0, 2), (10.0, 1), (20.0, 2)], 25.0, {1: 6.0, 2: 10.0}) == pytest.approx(
        100 + 60 + 50
    )
