"""What a main thread does, as another thread sees it."""

from types import SimpleNamespace

import pytest

from edl_horovod.coordinator.messages import Pong
from edl_horovod.ring.membership import coordinated as module
from edl_horovod.ring.membership.coordinated import Activity


@pytest.fixture
def clock(monkeypatch):
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock.now))
    return clock


def test_it_says_what_and_since_when(clock):
    activity = Activity()
    clock.now += 5
    assert activity.report(2) == Pong(
        generation=2, doing="joins", phase="getting warm", seconds=5.0
    )
    activity.begin("works", "step 3")
    clock.now += 2
    assert activity.report(2) == Pong(generation=2, doing="works", phase="step 3", seconds=2.0)


def test_a_long_step_of_its_own_is_no_waiting(clock):
    activity = Activity()
    is_waiting = SimpleNamespace(value=False)
    activity.begin("works", "step 3", lambda: is_waiting.value)
    clock.now += 400
    assert activity.report(2) == Pong(generation=2, doing="works", phase="step 3", seconds=400.0)
    is_waiting.value = True
    assert activity.report(2) == Pong(generation=2, doing="waits", phase="step 3", seconds=0.0)
    clock.now += 7
    assert activity.report(2).seconds == 7.0


def test_the_wait_of_the_next_step_is_counted_anew(clock):
    activity = Activity()
    for step in (3, 4):
        activity.begin("works", f"step {step}", lambda: True)
        assert activity.report(2) == Pong(
            generation=2, doing="waits", phase=f"step {step}", seconds=0.0
        )
        clock.now += 7


def test_after_a_block_it_does_again_what_it_did_before(clock):
    activity = Activity()
    activity.begin("works", "step 3", lambda: True)

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
