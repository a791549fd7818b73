"""Why a ring stopped, from the events of its job."""

import pytest

from edl_horovod.job.state import summarize
from tests.job_events import recorded

MEMBERS = ("a:0", "b:0", "b:1")
RING = recorded("generation", generation=3, size=3, members=MEMBERS, is_formed=True)
AFTER = recorded("generation", generation=4, size=2, members=("a:0", "b:0"), is_formed=True)


def worker(name, state, message="", **fields):
    fields |= {"worker": name, "state": state, "message": message}
    return recorded("worker", 10.0, "coordinator", **fields)


def trace(name, phase, place="", generation=3):
    return recorded("trace", 10.0, name, generation=generation, phase=phase, place=place)


def stops(*events):
    return summarize(events).stops.losses


KILLED = (
    worker("b:1", "lost"),
    trace("a:0", "step 7"),
    trace("b:0", "step 7"),
    worker("b:1", "failed", "ended with SIGKILL"),
)


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (1, 2, 0, 3), (3, 1, 2, 0)])
def test_it_names_the_rank_its_end_and_where_the_others_were(order):
    (stop,) = stops(RING, *(KILLED[place] for place in order))
    assert (stop.rank, stop.worker, stop.generation) == (2, "b:1", 3)
    text = str(stop)
    assert text == "rank 2 (b:1) was lost, and 2 others had to stop in step 7: ended with SIGKILL"


def test_what_comes_after_the_next_ring_belongs_to_the_same_loss():
    lost, *traces, failed = KILLED
    (stop,) = stops(RING, lost, *traces, AFTER, failed, worker("b:1", "failed", "ended with 1"))
    assert stop.end == "ended with SIGKILL"
    assert set(stop.traces) == {"a:0", "b:0"}


def test_it_says_where_in_the_users_code_a_rank_hung():
    message = "no progress for 301 s in step 7, while 2 others waited for it"
    (stop,) = stops(
        RING,
        trace("a:0", "step 7"),
        worker("b:0", "hung", message, pid=7, seconds=301.0),
        trace("b:0", "step 7", "model.py:12 in call"),
        worker("b:0", "lost"),
        worker("b:0", "failed", "ended with 9"),
    )
    assert str(stop) == f"rank 1 (b:0) hung at model.py:12 in call: {message}; ended with 9"


def test_the_next_process_of_a_slot_may_be_lost_as_well():
    again = recorded("generation", generation=5, size=3, members=MEMBERS, is_formed=True)
    losses = stops(RING, *KILLED, AFTER, worker("b:1", "warm"), again, worker("b:1", "lost"))
    assert [(stop.generation, stop.end) for stop in losses] == [(3, "ended with SIGKILL"), (5, "")]


@pytest.mark.parametrize(
    "after", [(RING,), (worker("b:1", "lost"), worker("b:1", "returned"))], ids=["ring", "returned"]
)
def test_one_that_hung_and_came_back_may_be_lost_later(after):
    hung = worker("b:1", "hung", "no sign of life for 30 s", pid=7)
    losses = stops(RING, hung, *after, worker("b:1", "lost"))
    assert [stop.hung for stop in losses] == ["no sign of life for 30 s", ""]


def test_one_of_which_only_the_connection_was_lost_did_not_stop_the_ring():
    blip = (worker("b:1", "lost"), worker("b:1", "returned"))
    assert stops(RING, *blip) == ()
    lost, failed = worker("b:1", "lost"), worker("b:1", "failed", "ended with SIGKILL")
    (stop,) = stops(RING, *blip, lost._replace(time=3610.0), failed)
    assert (stop.time, stop.rank, stop.end) == (3610.0, 2, "ended with SIGKILL")


def test_a_worker_that_leaves_or_is_in_no_ring_stops_none():
    for name in ("b:1", "c:0"):
        assert stops(RING, worker("b:1", "left"), worker(name, "failed", "ended with 1")) == ()
    assert summarize([worker("c:0", "lost")]).stops.last is None


def test_many_losses_take_bounded_room():
    events = [RING]
    for number in range(300):
        events += [RING, worker(f"b:{number % 2}", "lost"), worker(f"b:{number % 2}", "warm")]
    assert len(stops(*events)) <= 50
    assert summarize(events).stops.num_losses == 300
