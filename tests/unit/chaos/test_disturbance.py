"""What a schedule does to a job, with a job that only notes it; and whom a real signal reaches."""

import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from edl_horovod.chaos import Target, disturb, disturbance, parse
from edl_horovod.errors import ConfigError
from edl_horovod.job.directory import JobDir
from edl_horovod.job.events import EventLog
from tests.job_events import event


class Clock:
    """Time that passes only where somebody sleeps."""

    def __init__(self):
        self.now = 0.0

    def monotonic(self):
        return self.now

    def time(self):
        return 1e9 + self.now

    def sleep(self, seconds):
        self.now += seconds


class NotedProcess:
    def __init__(self, slot, notes):
        self.label, self.pid, self._notes = slot, 1000, notes

    def send(self, number):
        self._notes.append(f"{number.name} {self.label}")

    def close(self):
        self._notes.append(f"close {self.label}")


class NotedTarget:
    """A job of some slots, between 1 and 3, all of them in the ring."""

    def __init__(self, num_slots=2, over_at=1e9, clock=None):
        self.notes, self.num_slots, self.lost = [], num_slots, set()
        self._clock, self._over_at = clock, over_at
        self.is_over = False

    def update(self):
        self.is_over = self._clock.now >= self._over_at

    def ring(self):
        return tuple(slot for slot in range(self.num_slots) if slot not in self.lost)

    def worker(self, slot):
        return NotedProcess(f"localhost:{slot}", self.notes) if slot in self.ring() else None

    def coordinator(self):
        return NotedProcess("coordinator", self.notes)

    def slots(self):
        return self.num_slots

    def set_slots(self, slots):
        if not 1 <= slots <= 3:
            raise ConfigError(f"Not {slots} slots. Received: {slots}.")
        self.num_slots = slots
        self.notes.append(f"{slots} slots")


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    fake = SimpleNamespace(monotonic=clock.monotonic, time=clock.time, sleep=clock.sleep)
    monkeypatch.setattr(disturbance, "time", fake)
    return clock


def run(clock, schedule, *, target=None, **options):
    target = target or NotedTarget(clock=clock)
    return target, disturb(target, parse(schedule), **options)


def test_a_kill_is_a_kill(clock):
    target, happened = run(clock, "3:kill:1")
    assert target.notes == ["SIGKILL localhost:1", "close localhost:1"]
    assert [(h.kind, h.is_done) for h in happened] == [("kill", True)]
    assert happened[0].seconds == pytest.approx(3.0, abs=0.2)


def test_who_is_stopped_goes_on_after_its_time(clock):
    target, happened = run(clock, "1:stop:0:4")
    assert target.notes == ["SIGSTOP localhost:0", "SIGCONT localhost:0", "close localhost:0"]
    assert happened[1].seconds - happened[0].seconds == pytest.approx(4.0, abs=0.2)


def test_what_was_changed_is_put_back(clock):
    target, happened = run(clock, "1:add 2:stop:0:1000", target=NotedTarget(2, 10.0, clock))
    stopped = ["SIGSTOP localhost:0", "SIGCONT localhost:0", "close localhost:0"]
    assert target.notes == ["3 slots", *stopped]
    assert happened[-1].kind == "continue"
    target, happened = run(clock, "1:add 2:remove 3:remove")
    assert target.notes == ["3 slots", "2 slots", "1 slots", "2 slots"]
    assert (happened[-1].kind, happened[-1].message) == ("restore", "2 slots, as before")


def test_what_was_changed_is_put_back_also_after_an_interruption(clock):
    def interrupt(happened):
        if happened.kind == "stop":
            raise KeyboardInterrupt

    target = NotedTarget(2, clock=clock)
    with pytest.raises(KeyboardInterrupt):
        run(clock, "1:add 2:stop:0", target=target, on_action=interrupt)
    assert target.notes[-3:] == ["SIGCONT localhost:0", "close localhost:0", "2 slots"]


@pytest.mark.parametrize(
    ("schedule", "num_slots", "lost", "reason"),
    [
        ("1:kill:7", 1, set(), "slot 7"),
        ("1:kill", 1, set(), "fewer than"),
        ("1:remove", 1, set(), "without slot 0"),
        ("1:add 2:add 3:add", 1, set(), "4 slots"),
        # The other slot alone holds the ring.
        ("1:remove", 2, {0}, "without slot 1"),
    ],
)
def test_what_cannot_be_is_left_out_and_said(clock, schedule, num_slots, lost, reason):
    target = NotedTarget(num_slots, clock=clock)
    target.lost = lost
    _, happened = run(clock, schedule, target=target)
    assert reason in next(h for h in happened if not h.is_done).message


def test_nobody_is_chosen_who_is_stopped_already(clock):
    target, _ = run(clock, "1:stop:0:50 2:kill 3:kill", target=NotedTarget(3, clock=clock))
    killed = [note for note in target.notes if note.startswith("SIGKILL")]
    assert len(killed) == 2
    assert not [note for note in killed if note.endswith(":0")]


def test_it_stays_as_long_as_it_is_told_and_ends_with_the_job(clock):
    run(clock, "1:coordinator", seconds=30)
    assert clock.now == pytest.approx(30, abs=0.2)
    clock.now = 0.0
    run(clock, "1:coordinator 50:kill", target=NotedTarget(2, 5.0, clock))
    assert clock.now == pytest.approx(5, abs=0.2)


# -- real processes


SLEEP = "import signal; print(flush=True); signal.pause()"


@pytest.fixture
def spawn():
    children = []

    def start(*words, cwd=None):
        command = [sys.executable, "-S", "-c", SLEEP, *words]
        child = subprocess.Popen(command, cwd=cwd, stdout=subprocess.PIPE)
        children.append(child)
        child.stdout.readline()  # Until then the command line may still be empty.
        return child

    yield start
    for child in children:
        child.kill()
        child.wait()
        child.stdout.close()


def target_of(tmp_path, pid, *, at=None):
    with EventLog(tmp_path / "events.jsonl", "launcher") as log:
        log.write(event("worker", worker="localhost:0", state="started", pid=pid))
        log.write(event("coordinator", pid=pid))
        members = ("localhost:2", "other:1", "localhost:0")
        log.write(event("generation", members=members, is_formed=True))
    if at is not None:
        path = tmp_path / "events.jsonl"
        path.write_text(path.read_text().replace('{"time": ', f'{{"time": {at}, "was": '))
    return Target(JobDir(tmp_path), slots=lambda: 1, set_slots=lambda slots: None)


def test_a_worker_is_found_and_reached(tmp_path, spawn):
    child = spawn("--config", str(tmp_path / "config.yaml"))
    target = target_of(tmp_path, child.pid)
    process = target.worker(0)
    assert (process.pid, process.label) == (child.pid, "localhost:0")
    process.send(signal.SIGKILL)
    assert child.wait(10) == -signal.SIGKILL
    process.send(signal.SIGKILL)  # It is gone, and nobody else is hit.
    process.close()
    assert target.worker(0) is None
    assert target.ring() == (0, 2)
    assert target.worker(2) is None


def test_a_path_that_is_relative_is_that_of_the_process(tmp_path, spawn):
    child = spawn("--config", "config.yaml", cwd=tmp_path)
    process = target_of(tmp_path, child.pid).worker(0)
    assert process is not None
    process.close()


def test_a_process_of_another_job_is_not_taken_for_one(tmp_path, spawn):
    child = spawn("--config", str(tmp_path / "other" / "config.yaml"))
    target = target_of(tmp_path, child.pid)
    assert target.worker(0) is None
    assert target.coordinator() is None


def test_a_number_that_was_used_again_is_not_taken_for_it(tmp_path, spawn):
    child = spawn("--config", str(tmp_path / "config.yaml"))
    assert target_of(tmp_path, child.pid, at=time.time() - 3600).worker(0) is None


def test_a_job_that_ended_is_over(tmp_path):
    target = target_of(tmp_path, os.getpid())
    assert not target.is_over
    with EventLog(tmp_path / "events.jsonl", "launcher") as log:
        log.write(event("job", state="finished"))
    target.update()
    assert target.is_over
