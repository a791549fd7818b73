"""Which rank is slow, from the accounts of a job's ranks."""

import pytest

from edl_horovod.job.pace import Paces
from tests.job_events import recorded


def account(worker, steps, exchange=1.0, **seconds):
    seconds = {"building": 5.0, "exchange": exchange, **seconds}
    return recorded("account", 0.0, worker, pid=1, seconds=seconds, steps=steps)


def ring(size):
    return recorded("generation", size=size, is_formed=True)


def slowest(*events):
    paces = Paces()
    for event in events:
        paces.add(event)
    return paces.slowest


def test_a_rank_is_measured_without_its_waits_for_others():
    rank = slowest(
        ring(3),
        account("a:0", 10, computing=1.0, exchange=4.0),
        account("a:1", 10, computing=4.0, input=1.0, exchange=0.0),
        account("a:2", 10, computing=1.0, exchange=4.0),
    )
    assert (rank.worker, rank.step_seconds) == ("a:1", 0.5)
    assert rank.score == pytest.approx(0.2)
    assert rank.score_of_past is None
    assert "a:1 (pid 1)" in str(rank)
    assert "20%" in str(rank)


def test_a_rank_is_measured_against_its_own_past():
    events = [ring(2), account("a:0", 2000, computing=20.0)]
    for number in range(1, 31):
        seconds = number + max(0.0, number - 25.0)
        events.append(account("a:1", 100 * number, computing=seconds))
    rank = slowest(*events)
    assert rank.worker == "a:1"
    assert rank.score_of_past == pytest.approx(0.5)
    assert "50%" in str(rank)


@pytest.mark.parametrize("seconds_in_small_ring", [1.0, 2.0])
def test_a_rank_is_measured_against_its_past_in_rings_of_the_same_size(seconds_in_small_ring):
    """With `elastic.batching=per_rank` its part is the same in each ring, else it is not."""
    rings = [(4, 15, 1.0), (2, 15, seconds_in_small_ring), (4, 6, 2.0)]
    events, seconds, steps = [ring(4), account("a:0", 4000, computing=20.0)], 0.0, 0
    scores = []
    for size, num_accounts, seconds_each in rings:
        events.append(ring(size))
        for _ in range(num_accounts):
            seconds, steps = seconds + seconds_each, steps + 100
            events.append(account("a:0", 4000 + steps, seconds, computing=20.0 + seconds))
            events.append(account("a:1", steps, computing=seconds))
        scores.append(slowest(*events).score_of_past)
    assert scores == [pytest.approx(1.0), pytest.approx(1.0), pytest.approx(0.5)]


def test_ranks_are_compared_within_the_same_ring():
    """The part of a step is smaller in a larger ring, and the wait for the others is longer."""
    events = [ring(2)]
    old, new = ("a:0", "a:1"), [f"b:{slot}" for slot in range(6)]
    for number in range(1, 101):
        events += [
            account(worker, 100 * number, 0.5 * number, computing=10.0 * number) for worker in old
        ]
    events.append(ring(8))
    for number in range(1, 101):
        spent, waits = 2.5 * number, 1.5 * number
        events += [
            account(worker, 10_000 + 100 * number, 50.0 + waits, computing=1000.0 + spent)
            for worker in old
        ]
        events += [account(worker, 100 * number, waits, computing=spent) for worker in new]
    assert slowest(*events).score == pytest.approx(1.0)


def test_a_rank_that_is_slow_in_any_of_its_rings_is_slow():
    events = [ring(2), account("a:0", 100, 9.0, computing=1.0)]
    events += [account("a:1", 100, 0.0, computing=10.0)]
    events += [ring(2), account("a:0", 100, 9.0, computing=1.0)]
    events += [account("a:0", 200, 10.0, computing=10.0), account("c:0", 100, computing=9.0)]
    rank = slowest(*events)
    assert (rank.worker, rank.score) == ("a:1", pytest.approx(0.1))


def test_steps_in_two_rings_count_in_neither():
    events = [ring(2), account("a:0", 10, computing=1.0), account("a:1", 10, computing=1.0)]
    events += [ring(3), account("a:0", 20, 1.0, computing=90.0), account("b:0", 10, computing=1.0)]
    events += [account("b:1", 10, computing=1.0)]
    assert slowest(*events).score == pytest.approx(1.0)


def test_steps_that_are_slow_for_all_make_no_rank_slow():
    events = [ring(2)]
    events += [account("a:0", 1000, computing=10.0, exchange=0.5)]
    events += [account("a:1", 1000, computing=10.0, exchange=0.5)]
    events += [account("a:1", 1100, computing=110.0, exchange=1.0)]
    events += [account("a:2", 500, computing=490.0, exchange=2.0)]
    assert slowest(*events).score > 0.95


def test_steps_alone_say_nothing():
    events = [ring(2), account("a:0", 100, computing=1.0), account("a:1", 100, computing=1.5)]
    events += [ring(1), account("a:0", 900, computing=100.0)]
    assert slowest(*events).worker == "a:1"


@pytest.mark.parametrize(
    "events",
    [
        (),
        (account("a:0", 10, computing=1.0),),
        (account("a:0", 0, computing=1.0), account("a:1", 0, computing=1.0)),
        (account("a:0", None, computing=1.0), account("a:1", None, computing=1.0)),
        (account("a:0", 5), account("a:1", 5)),
    ],
)
def test_without_two_ranks_that_did_steps_none_is_slow(events):
    assert slowest(*events) is None


def test_a_rank_that_did_but_a_few_steps_is_not_measured():
    rank = slowest(
        ring(2),
        account("a:0", 100, computing=10.0),
        account("a:1", 9, computing=5.0, exchange=0.0),
        account("b:1", 90, computing=10.0, exchange=0.5),
    )
    assert rank.worker == "b:1"
