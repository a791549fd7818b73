"""What a main thread does, as another thread sees it."""

import inspect
import itertools
import random
import threading
import time
import timeit
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from edl_horovod.coordinator.messages import Pong
from edl_horovod.frameworks.base import CollectiveFailed
from edl_horovod.job.events import EventLog, read
from edl_horovod.ring import activity as module
from edl_horovod.ring.activity import Activity, accounted
from tests.waiting import wait_until


@pytest.fixture
def clock(monkeypatch):
    clock = SimpleNamespace(now=1000.0)
    times = SimpleNamespace(monotonic=lambda: clock.now, time=lambda: clock.now)
    monkeypatch.setattr(module, "time", times)
    return clock


@pytest.fixture
def activity(clock):
    return Activity(age=0.0)


def pong(doing, phase, seconds):
    return Pong(generation=2, doing=doing, phase=phase, seconds=seconds)


def test_it_says_what_and_since_when(clock, activity):
    clock.now += 5
    assert activity.report(2) == pong("joins", "getting warm", 5.0)
    activity.begin("works", "step 3")
    clock.now += 2
    assert activity.report(2) == pong("works", "step 3", 2.0)


def test_a_long_step_of_its_own_is_no_waiting(clock, activity):
    is_waiting = SimpleNamespace(value=False)
    activity.begin("works", "step 3", is_waiting=lambda: is_waiting.value)
    clock.now += 400
    assert activity.report(2) == pong("works", "step 3", 400.0)
    is_waiting.value = True
    assert activity.report(2) == pong("waits", "step 3", 0.0)
    clock.now += 7
    assert activity.report(2).seconds == 7.0


def test_the_wait_of_the_next_step_is_counted_anew(clock, activity):
    for step in (3, 4):
        activity.begin("works", f"step {step}", is_waiting=lambda: True)
        assert activity.report(2) == pong("waits", f"step {step}", 0.0)
        clock.now += 7


def test_after_a_block_it_does_again_what_it_did_before(clock, activity):
    activity.begin("works", "step 3", is_waiting=lambda: True)

    def call_back():
        with activity.doing("unwatched", "callbacks"):
            clock.now += 5
            with activity.doing("works", "a batch"):
                clock.now += 7
                assert activity.report(2) == pong("works", "a batch", 7.0)
            assert activity.report(2) == pong("unwatched", "callbacks", 0.0)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        call_back()
    clock.now += 2
    # It had come to the collective of step 3, and so it waits again.
    assert activity.report(2) == pong("waits", "step 3", 0.0)
    clock.now += 2
    assert activity.report(2).seconds == 2.0


def test_each_second_of_its_life_has_one_cause(clock):
    activity = Activity(age=4.0)
    activity.begin("joins", "waiting for a place", "warm")
    clock.now += 3
    with activity.doing("works", "between two steps", "between"):
        clock.now += 0.5
        with activity.doing("works", "step 3", "computing"):
            clock.now += 10
            activity.had_other_causes(exchange=2.5)
            with activity.doing("works", "a part of it"):
                clock.now += 1
        with activity.doing("works", "step 4", "computing"):
            clock.now += 7
            activity.is_done_again(waited=2.0)
    clock.now += 2
    seconds, age, doing = activity.account()
    assert {cause: spent for cause, spent in seconds.items() if spent} == {
        "importing": 4.0,
        "warm": 5.0,
        "between": 0.5,
        "computing": 8.5,
        "exchange": 2.5,
        "redone": 5.0,
        "broken": 2.0,
    }
    assert (sum(seconds.values()), doing) == (age, "warm")


def test_a_clock_that_was_set_takes_no_time_from_other_phases(clock, activity):
    activity.begin("works", "step 3", "computing")
    clock.now += 5
    activity.had_other_causes(applying=-1e6, exchange=1e6)
    activity.begin("works", "between two steps", "between")
    seconds, age, _ = activity.account()
    assert (seconds["computing"], seconds["exchange"], seconds["applying"]) == (0.0, 5.0, 0.0)
    assert age == 5.0


@pytest.mark.parametrize(("waited", "redone"), [(0.0, 5.0), (5.0, 0.0), (1e6, 0.0)])
def test_no_more_of_a_step_that_broke_is_a_wait_than_it_took(clock, activity, waited, redone):
    activity.begin("works", "step 3", "computing")
    clock.now += 5
    activity.is_done_again(waited=waited)
    activity.begin("joins", "joining the next ring", "forming")
    seconds = activity.account()[0]
    assert (seconds["redone"], seconds["broken"]) == (redone, 5.0 - redone)


def test_an_exchange_that_breaks_is_no_time_of_steps(clock, activity):
    activity.begin("works", "between two segments", "between")
    with activity.doing("waits", "segment 3", "exchange"):
        clock.now += 2

    def wait():
        with activity.doing("waits", "segment 4", "exchange"):
            clock.now += 5
            assert activity.account()[0]["exchange"] == 2.0
            raise CollectiveFailed("a peer closed its connection")

    with pytest.raises(CollectiveFailed):
        wait()
    seconds = activity.account()[0]
    assert (seconds["exchange"], seconds["broken"]) == (2.0, 5.0)


def test_no_causes_seconds_ever_fall(clock, activity):
    seen = [activity.account()[0]]

    def look():
        seen.append(activity.account()[0])

    for _ in range(3):
        with activity.doing("works", "step", "computing"):
            clock.now += 5
            look()
            activity.had_other_causes(exchange=3.0, applying=1.0)
            look()
        look()
        with activity.doing("works", "step", "computing"):
            clock.now += 4
            activity.is_done_again(waited=1.0)
            look()
        clock.now += 1
        look()
    for before, after in itertools.pairwise(seen):
        assert all(after[cause] >= spent for cause, spent in before.items())
    assert sum(seen[-1].values()) == 30


def test_the_last_account_of_a_rank_that_hangs_while_it_waits_takes_its_seconds_back(
    clock, activity
):
    activity.begin("waits", "more of the state", "state")
    clock.now += 5
    assert activity.account()[0]["state"] == 5.0
    activity.end_as_hung()
    seconds = activity.account()[0]
    assert (seconds["state"], seconds["hung"]) == (0.0, 5.0)


def test_what_a_rank_works_on_is_booked_at_its_end(clock, activity):
    activity.begin("works", "examples of step 3", "input")
    clock.now += 5
    assert activity.account()[0]["input"] == 0.0
    activity.begin("works", "step 3", "computing")
    assert activity.account()[0]["input"] == 5.0


@pytest.fixture
def trace(tmp_path):
    """An activity that writes its events, and a function that returns those that it has written."""
    activity, path = Activity(age=0.0), tmp_path / "events.jsonl"
    with EventLog(path, "host:0") as log:
        activity.write_to(log)
        yield activity, lambda: [recorded.event for recorded in read(path)]


def test_a_rank_that_hangs_books_the_time_since_its_last_progress(trace, clock):
    activity, events = trace
    activity._began = clock.now
    activity.begin("works", "step 3", "computing")
    clock.now += 5
    activity.begin("works", "examples of step 4", "input")
    clock.now += 300
    activity.end_as_hung()
    (account,) = events()
    assert (account.seconds["computing"], account.seconds["hung"]) == (5.0, 300.0)
    assert "input" not in account.seconds
    assert account.doing == ""


def test_the_time_of_an_account_is_that_of_its_age_however_late_it_is_written(
    tmp_path, monkeypatch
):
    path = tmp_path / "events.jsonl"
    with EventLog(path, "host:0") as log:
        monkeypatch.setattr(log, "has_room", lambda: time.sleep(0.5) or True)
        activity = Activity(age=0.0)
        activity.write_to(log)
        activity.write_account()
    (account,) = read(path)
    assert account.time - account.event.began == pytest.approx(account.event.age, abs=0.2)


def hang(is_reached, until):
    is_reached.set()
    until.wait()


def test_a_trace_says_where_in_the_users_code_the_main_thread_is(trace):
    activity, events = trace
    is_reached, go_on = threading.Event(), threading.Event()

    def look():
        is_reached.wait()
        activity.leave_trace("it hangs", 2)
        go_on.set()

    activity.step_bytes = 800
    with activity.doing("works", "step 3", "computing"):
        activity.step_ended(exchange=0.0)
    with activity.doing("works", "step 4", "computing"):
        threading.Thread(target=look).start()
        hang(is_reached, go_on)
    (written,) = events()
    assert (written.doing, written.phase, written.generation) == ("works", "step 4", 2)
    assert written.place.startswith("test_activity.py:")
    assert written.place.endswith(" in hang")
    assert any(Path(__file__).name in call for call in written.stack)
    assert "step 3" in [span.name for span in written.last]


def test_a_trace_has_the_last_exchanges_with_their_times_and_sizes(trace):
    activity, events = trace
    activity.step_bytes = 800
    for number in range(30):
        with activity.doing("works", f"step {number}", "computing"):
            threading.Event().wait(0.002)
            activity.step_ended(exchange=0.001, applying=0.0)
    activity.leave_trace("the ring broke", 2)
    *_, step, exchange = events()[0].last
    assert (step.name, step.num_bytes) == ("step 29", None)
    assert (exchange.name, exchange.num_bytes) == ("exchange of step 29", 800)
    assert exchange.seconds == pytest.approx(0.001, abs=2e-4)
    end = exchange.began + exchange.seconds
    assert end == pytest.approx(step.began + step.seconds, abs=5e-4)
    assert len(events()[0].last) <= 20


def test_a_ring_that_broke_is_traced_where_it_broke(trace):
    activity, events = trace
    with (
        pytest.raises(CollectiveFailed),
        activity.doing("works", "between two steps", "between"),
        activity.doing("works", "step 3", "computing", lambda: True),
    ):
        raise CollectiveFailed("a peer closed its connection")
    activity.begin("joins", "waiting for a place", "forming")
    activity.leave_trace("a peer closed its connection", 2)
    activity.leave_trace("it hangs", 3)
    broken, later = events()
    assert (broken.doing, broken.phase) == ("waits", "step 3")
    assert inspect.currentframe().f_code.co_name in broken.stack[-1]
    assert later.phase == "waiting for a place"


def add_700_numbers():
    """Takes some 16 us, a thousandth of a step of 16 ms, and longer on a machine that is slower."""
    total = 0
    for number in range(700):
        total += number


def test_the_account_and_the_trace_of_a_step_cost_less_than_adding_700_numbers(trace):
    activity, _ = trace

    def step():
        """What `tasks.train` does in each step of the leader, which has a phase more."""
        with activity.doing("works", "examples of step 7", "input"):
            pass
        with activity.doing("works", "step 7", "computing", bool):
            activity.step_ended(exchange=0.001, applying=0.001)
        with (
            activity.doing("works", "the end of step 7", "between"),
            activity.doing("works", "the checkpoint", "checkpoint"),
        ):
            pass

    activity.begin("works", "between two steps", "between")
    # The least of many: other processes take the processor, too.
    seconds, most_seconds = (
        min(timeit.repeat(function, number=100, repeat=200)) for function in (step, add_700_numbers)
    )
    assert seconds < most_seconds


def test_the_account_of_a_process_is_written_with_its_end(tmp_path):
    with EventLog(tmp_path / "events.jsonl", "host:0") as events, accounted(Activity(), events):
        pass
    (recorded,) = read(tmp_path / "events.jsonl")
    began, written = psutil.Process().create_time(), recorded.time
    assert recorded.event.doing == ""
    assert recorded.event.began == pytest.approx(began, abs=1.5)
    assert sum(recorded.event.seconds.values()) == pytest.approx(written - began, abs=1.5)
    assert recorded.event.age == pytest.approx(sum(recorded.event.seconds.values()), abs=1e-2)


@pytest.mark.long
def test_accounts_leave_the_numbers_that_models_draw_alone(tmp_path):
    random.seed(7)
    expected = random.getstate()
    with EventLog(tmp_path / "events.jsonl", "host:0") as events, accounted(Activity(), events):
        wait_until(lambda: len(read(tmp_path / "events.jsonl")) > 1)
    assert random.getstate() == expected
