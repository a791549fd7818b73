"""What a main thread does, as another thread sees it."""

import itertools
import random
from types import SimpleNamespace

import psutil
import pytest

from edl_horovod.coordinator.messages import Pong
from edl_horovod.job.events import EventLog, read
from edl_horovod.ring import activity as module
from edl_horovod.ring.activity import Activity, accounted
from tests.waiting import wait_until


@pytest.fixture
def clock(monkeypatch):
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock.now))
    return clock


def test_it_says_what_and_since_when(clock):
    activity = Activity(age=0.0)
    clock.now += 5
    assert activity.report(2) == Pong(
        generation=2, doing="joins", phase="getting warm", seconds=5.0
    )
    activity.begin("works", "step 3")
    clock.now += 2
    assert activity.report(2) == Pong(generation=2, doing="works", phase="step 3", seconds=2.0)


def test_a_long_step_of_its_own_is_no_waiting(clock):
    activity = Activity(age=0.0)
    is_waiting = SimpleNamespace(value=False)
    activity.begin("works", "step 3", is_waiting=lambda: is_waiting.value)
    clock.now += 400
    assert activity.report(2) == Pong(generation=2, doing="works", phase="step 3", seconds=400.0)
    is_waiting.value = True
    assert activity.report(2) == Pong(generation=2, doing="waits", phase="step 3", seconds=0.0)
    clock.now += 7
    assert activity.report(2).seconds == 7.0


def test_the_wait_of_the_next_step_is_counted_anew(clock):
    activity = Activity(age=0.0)
    for step in (3, 4):
        activity.begin("works", f"step {step}", is_waiting=lambda: True)
        assert activity.report(2) == Pong(
            generation=2, doing="waits", phase=f"step {step}", seconds=0.0
        )
        clock.now += 7


def test_after_a_block_it_does_again_what_it_did_before(clock):
    activity = Activity(age=0.0)
    activity.begin("works", "step 3", is_waiting=lambda: True)

    def call_back():
        with activity.doing("unwatched", "callbacks"):
            clock.now += 5
            with activity.doing("works", "a batch"):
                clock.now += 7
                assert activity.report(2) == Pong(
                    generation=2, doing="works", phase="a batch", seconds=7.0
                )
            assert activity.report(2) == Pong(
                generation=2, doing="unwatched", phase="callbacks", seconds=0.0
            )
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        call_back()
    clock.now += 2
    # It had come to the collective of step 3, and so it waits again.
    assert activity.report(2) == Pong(generation=2, doing="waits", phase="step 3", seconds=0.0)
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
            activity.is_done_again()
    clock.now += 2
    seconds, age, doing = activity.account()
    assert {cause: spent for cause, spent in seconds.items() if spent} == {
        "importing": 4.0,
        "warm": 5.0,
        "between": 0.5,
        "computing": 8.5,
        "exchange": 2.5,
        "redone": 7.0,
    }
    assert (sum(seconds.values()), doing) == (age, "warm")


def test_a_clock_that_was_set_takes_no_time_from_other_phases(clock):
    activity = Activity(age=0.0)
    activity.begin("works", "step 3", "computing")
    clock.now += 5
    activity.had_other_causes(applying=-1e6, exchange=1e6)
    activity.begin("works", "between two steps", "between")
    seconds, age, _ = activity.account()
    assert (seconds["computing"], seconds["exchange"], seconds["applying"]) == (0.0, 5.0, 0.0)
    assert age == 5.0


def test_no_causes_seconds_ever_fall(clock):
    activity = Activity(age=0.0)
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
            activity.is_done_again()
            look()
        clock.now += 1
        look()
    for before, after in itertools.pairwise(seen):
        assert all(after[cause] >= spent for cause, spent in before.items())
    assert sum(seen[-1].values()) == 30


def test_the_account_of_a_process_is_written_with_its_end(tmp_path):
    with EventLog(tmp_path / "events.jsonl", "host:0") as events, accounted(Activity(), events):
        pass
    (recorded,) = read(tmp_path / "events.jsonl")
    began, written = psutil.Process().create_time(), recorded.time
    assert recorded.event.doing == ""
    assert recorded.event.began == pytest.approx(began, abs=1.5)
    assert sum(recorded.event.seconds.values()) == pytest.approx(written - began, abs=1.5)


def test_accounts_leave_the_numbers_that_models_draw_alone(tmp_path):
    random.seed(7)
    expected = random.getstate()
    with EventLog(tmp_path / "events.jsonl", "host:0") as events, accounted(Activity(), events):
        wait_until(lambda: len(read(tmp_path / "events.jsonl")) > 1)
    assert random.getstate() == expected
