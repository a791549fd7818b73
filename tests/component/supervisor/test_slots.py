"""Slots: one worker each, started again with growing patience."""

import os
import re
import signal
import sys
import time

import pytest

from edl_horovod.errors import JobFailed
from edl_horovod.job import events
from edl_horovod.supervisor import slots as module
from edl_horovod.supervisor.plan import Command
from edl_horovod.supervisor.slots import Slots
from tests.job_events import recorded
from tests.waiting import wait_until

LIMIT_SECONDS = 8.0
SLEEP = "import os; print(os.environ['EDL_SLOT'], flush=True); input()"
FAIL = "raise SystemExit(3)"
RAISE = "def step():\n    raise RuntimeError('out of\\nmemory')\nstep()"


class Clock:
    """Time that passes only when it is told to."""

    def __init__(self):
        self.now = 1000.0

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds
        time.sleep(seconds / 10)


@pytest.fixture
def make(tmp_path, monkeypatch):
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    slots_and_logs = []

    def make(code, num_wanted=1, *, program=(sys.executable, "-S", "-c")):
        log = events.EventLog(tmp_path / "events.jsonl", "launcher")
        slots = Slots(Command(argv=(*program, code)), tmp_path, log, backoff_seconds=1.0)
        slots_and_logs.append((slots, log))
        slots.num_wanted = num_wanted
        if num_wanted:
            slots.keep()
        return slots, clock

    yield make
    for slots, log in slots_and_logs:
        for child in slots.children:
            child.close()
        log.close()


def failures(tmp_path):
    """The messages of the workers that failed."""
    log = events.read(tmp_path / "events.jsonl")
    return [e.event.message for e in log if e.event.state == "failed"]


def fail(slots, clock, *, number=0):
    """Let a slot's child end, and be noticed; the wait before the next start."""
    child = slots.children[number]
    assert child.wait(LIMIT_SECONDS)
    slots.keep()
    log = child.log_path.parent / "events.jsonl"
    ended = [e.event for e in events.read(log) if e.event.state in ("failed", "left")]
    return float(re.search(r"starts again in (\d+) s", ended[-1].message)[1])


def test_as_many_workers_as_are_wanted_each_with_its_slot(make, tmp_path):
    slots, _ = make(SLEEP, 2)
    slots.keep()
    assert len(slots.children) == 2
    wait_until(lambda: [child.tail() for child in slots.children] == ["0", "1"])
    assert sorted(path.name for path in tmp_path.glob("*.log")) == ["worker-0.log", "worker-1.log"]


def test_restarts_wait_longer_and_longer(make):
    slots, clock = make(FAIL)
    waits = []
    for _ in range(9):
        waits.append(fail(slots, clock))
        clock.now += waits[-1]
        slots.keep()
    assert waits == [0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]


@pytest.mark.further
def test_a_slot_that_failed_a_thousand_times_still_waits_a_minute(make):
    slots, clock = make("exit 3", program=("sh", "-c"))
    for _ in range(sys.float_info.max_exp + 2):
        assert slots.children[0].wait(LIMIT_SECONDS)
        slots.keep()
        clock.now += 60.0
        slots.keep()
    assert fail(slots, clock) == 60.0


def test_nothing_starts_before_its_time(make):
    slots, clock = make(FAIL)
    fail(slots, clock)
    assert fail(slots, clock) == 1.0
    ended = slots.children[0].pid
    clock.now += 0.9
    slots.keep()
    assert slots.children[0].pid == ended
    clock.now += 0.2
    slots.keep()
    assert slots.children[0].pid != ended


def refuse(*_arguments, **_more):
    raise BlockingIOError("no more processes")


def test_what_cannot_be_started_now_is_tried_again_while_others_work(make, monkeypatch):
    slots, clock = make(SLEEP, 2)
    first, second = slots.children
    second.kill()
    assert second.wait(LIMIT_SECONDS)
    with monkeypatch.context() as patch:
        patch.setattr(module.processes, "start_process", refuse)
        slots.keep()
        clock.now += 60.0
        slots.keep()
        assert slots.children == [first, second]
        assert first.exit_code is None
    clock.now += 60.0
    slots.keep()
    assert slots.children[1].exit_code is None


def test_a_job_that_can_start_nothing_ends_with_the_reason(make, monkeypatch):
    slots, _ = make(SLEEP, 0)
    slots.num_wanted = 2
    monkeypatch.setattr(module.processes, "start_process", refuse)
    with pytest.raises(JobFailed, match="no more"):
        slots.keep()


def test_a_worker_that_ran_long_is_started_again_at_once(make):
    slots, clock = make(FAIL)
    fail(slots, clock)
    clock.now += module.STEADY_SECONDS
    assert fail(slots, clock) == 0.0


def is_hopeless(slots, min_np=1):
    try:
        slots.give_up_if_hopeless(min_np)
    except JobFailed:
        return True
    return False


def test_failures_are_counted_until_the_job_gets_on(make):
    slots, clock = make(FAIL)
    fail_without_progress(slots, clock, number=0, times=2)
    slots.note([recorded("step", step=1)])
    fail_without_progress(slots, clock, number=0, times=2)
    assert not is_hopeless(slots)
    fail_without_progress(slots, clock, number=0, times=1)
    with pytest.raises(JobFailed, match=re.escape(str(slots.children[0].log_path))):
        slots.give_up_if_hopeless(1)


ONE_FAILS = "import os, sys; os.environ['EDL_SLOT'] == '1' and sys.exit(3); input()"


def fail_without_progress(slots, clock, *, number, times):
    for _ in range(times):
        clock.now += fail(slots, clock, number=number)
        slots.keep()


@pytest.mark.parametrize("min_np", [1, 2])
def test_a_failing_slot_ends_a_job_only_where_the_others_are_too_few(make, min_np):
    slots, clock = make(ONE_FAILS, 2)
    fail_without_progress(slots, clock, number=1, times=3)
    assert is_hopeless(slots, min_np) == (min_np == 2)


def test_one_that_failed_and_is_back_in_the_ring_is_healthy(make):
    slots, clock = make(ONE_FAILS, 2)
    fail_without_progress(slots, clock, number=1, times=3)
    assert not is_hopeless(slots)
    os.kill(slots.children[0].pid, signal.SIGKILL)
    fail_without_progress(slots, clock, number=0, times=1)
    assert is_hopeless(slots)
    members = ("localhost:0",)
    slots.note([recorded("generation", members=members)])
    assert is_hopeless(slots)
    slots.note([recorded("generation", members=members, is_formed=True)])
    assert not is_hopeless(slots)
    slots.children[0].close()
    assert is_hopeless(slots)


STEPS = [recorded("step", step=1), recorded("step", step=2), recorded("evaluation", step=2)]
RING = [recorded("generation", members=("localhost:0",), is_formed=True)]


@pytest.mark.parametrize("noted", [RING, STEPS], ids=["rings", "steps that are made once more"])
def test_one_that_dies_again_and_again_is_given_up_without_progress(make, noted):
    slots, clock = make(FAIL)
    slots.note(noted)
    for _ in range(module.HOPELESS_FAILURES):
        assert not is_hopeless(slots)
        slots.note(noted)
        fail_without_progress(slots, clock, number=0, times=1)
    with pytest.raises(JobFailed, match="3 times"):
        slots.give_up_if_hopeless(1)
    slots.note([recorded("step", step=3)])
    assert not is_hopeless(slots)


def test_one_that_is_killed_again_and_again_is_given_up_with_the_likely_cause(make, tmp_path):
    slots, clock = make("import os; os.kill(os.getpid(), 9)")
    fail_without_progress(slots, clock, number=0, times=3)
    with pytest.raises(JobFailed, match=r"SIGKILL.*\.batch_"):
        slots.give_up_if_hopeless(1)
    assert failures(tmp_path)[0].startswith("ended with SIGKILL; starts again in 0 s. ")


def test_one_that_raises_is_one_line_and_its_traceback_stays_in_its_log(make, tmp_path, capfd):
    slots, clock = make(RAISE)
    fail_without_progress(slots, clock, number=0, times=3)
    assert failures(tmp_path)[0] == "ended with 1: RuntimeError: out of; starts again in 0 s"
    with pytest.raises(JobFailed) as caught:
        slots.give_up_if_hopeless(1)
    log = tmp_path / "worker-0.log"
    assert "RuntimeError: out" in str(caught.value)
    assert str(log) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert log.read_text().count("Traceback") >= 3
    assert capfd.readouterr().err == ""


def test_the_fault_of_an_earlier_process_of_the_slot_is_not_told_again(make, tmp_path):
    once = f"import os\nif os.path.exists({str(tmp_path / 'once')!r}): {FAIL}\n"
    slots, clock = make(f"{once}open({str(tmp_path / 'once')!r}, 'x')\n{RAISE}")
    fail(slots, clock)
    fail(slots, clock)
    assert failures(tmp_path)[1] == "ended with 3; starts again in 1 s"
    states = [e.event.state for e in events.read(tmp_path / "events.jsonl")]
    assert states == ["started", "failed", "started", "failed"]


def test_no_slot_has_no_failures(make):
    slots, _ = make(FAIL, 0)
    assert not is_hopeless(slots)


@pytest.mark.parametrize("code", ["pass", "raise SystemExit(143)", "os.kill(os.getpid(), 15)"])
def test_one_that_left_did_not_fail_and_starts_again(make, tmp_path, code):
    slots, clock = make(f"import os; {code}")
    fail_without_progress(slots, clock, number=0, times=4)
    assert not is_hopeless(slots)
    # One that goes again and again still waits longer and longer.
    assert fail(slots, clock) == 8.0
    states = [e.event.state for e in events.read(tmp_path / "events.jsonl")]
    assert "failed" not in states
    assert states.count("left") == 5


def test_one_that_hangs_is_killed_if_it_does_not_end_by_itself(make):
    slots, clock = make(SLEEP, 2)
    first, second = slots.children
    hung = [
        ("localhost:1", second.pid),
        ("localhost:0", second.pid),  # Another process by now.
        ("elsewhere:0", first.pid),
    ]
    slots.note(recorded("worker", state="hung", worker=name, pid=pid) for name, pid in hung)
    clock.now += module.HUNG_GRACE_SECONDS - 0.1
    slots.keep()
    assert second.exit_code is None
    clock.now += 0.2
    slots.keep()
    assert second.wait(LIMIT_SECONDS)
    slots.keep()
    assert second is not slots.children[1]
    assert first.exit_code is None
    assert first is slots.children[0]


def test_one_that_hangs_is_killed_where_only_the_log_tells_of_it(make, tmp_path):
    slots, _ = make(SLEEP, 0)
    slots.num_wanted = 1
    pids = []

    deadline = time.monotonic() + LIMIT_SECONDS

    def is_over():
        assert time.monotonic() < deadline
        for child in slots.children:
            if child.pid not in pids:
                pids.append(child.pid)
                hung = events.WorkerEvent(worker="localhost:0", state="hung", pid=child.pid)
                coordinator.write(hung)
        return len(pids) == 2

    with events.EventLog(tmp_path / "events.jsonl", "coordinator") as coordinator:
        slots.keep_until(is_over, job_events=tmp_path / "events.jsonl", grace_seconds=0.1)
    ended = [e.event.message for e in events.read(tmp_path / "events.jsonl")]
    assert any("SIGKILL" in message for message in ended), ended


def test_an_unwanted_worker_is_left_to_the_coordinator_and_not_replaced(make):
    slots, _ = make(SLEEP, 2)
    slots.num_wanted = 1
    slots.keep()
    assert [child.exit_code for child in slots.children] == [None, None]
    slots.children[1].close()
    slots.keep()
    assert len(slots.children) == 1


def test_a_slot_wanted_again_before_its_worker_went_gets_no_second_one(make):
    slots, _ = make(SLEEP, 2)
    pids = [child.pid for child in slots.children]
    slots.num_wanted = 1
    slots.keep()
    slots.num_wanted = 2
    slots.keep()
    assert [child.pid for child in slots.children] == pids
