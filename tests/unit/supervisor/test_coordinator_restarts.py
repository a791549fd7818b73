"""A coordinator that ends again and again ends the job, with its last words."""

from types import SimpleNamespace

import pytest

from edl_horovod.errors import JobFailed, NotEnoughWorkers, OutputError
from edl_horovod.supervisor import processes


class Time:
    def __init__(self):
        self.now = 1000.0
        self.waits = []

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.waits.append(round(seconds, 3))


@pytest.fixture
def clock(monkeypatch):
    clock = Time()
    monkeypatch.setattr(processes, "time", clock)
    return clock


ENDED = SimpleNamespace(exit_code=1, log_path="coordinator.log", tail=lambda: "port is taken")


def test_quick_ends_wait_longer_and_then_end_the_job(clock):
    restarts = processes._Restarts("coordinator")
    for _ in range(processes.HOPELESS_RESTARTS - 1):
        restarts.count(ENDED)
    assert clock.waits[0] == 0.0
    assert clock.waits == sorted(clock.waits)
    with pytest.raises(JobFailed, match="port is taken"):
        restarts.count(ENDED)


def test_ends_far_apart_are_survived(clock):
    restarts = processes._Restarts("coordinator")
    for _ in range(50):
        restarts.count(ENDED)
        clock.now += processes.QUICK_SECONDS
    assert set(clock.waits) == {0.0}


def test_a_full_disk_is_told_at_once(clock):
    ended = SimpleNamespace(**{**vars(ENDED), "exit_code": OutputError.exit_code})
    with pytest.raises(OutputError, match="cannot be written any more"):
        processes._Restarts("coordinator").count(ended)


def test_a_coordinator_that_gave_up_waiting_is_not_started_again(clock):
    ended = SimpleNamespace(
        exit_code=NotEnoughWorkers.exit_code,
        log_path="coordinator.log",
        tail=lambda _num_lines: "fewer than elastic.min_np=2",
    )
    with pytest.raises(NotEnoughWorkers, match=r"fewer than elastic\.min_np=2"):
        processes._Restarts("coordinator").count(ended)
