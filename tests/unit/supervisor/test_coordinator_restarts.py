"""A coordinator that ends again and again ends the job, with its last words."""

import pytest

from edl_horovod.errors import JobFailed, NotEnoughWorkers, OutputError
from edl_horovod.supervisor import processes
from edl_horovod.supervisor.plan import Command
from edl_horovod.supervisor.processes import RestartingChild

LIMIT_SECONDS = 8.0


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


@pytest.fixture
def start(tmp_path, clock):
    """Start a coordinator that ends at once, with an exit code and last words."""
    started = []

    def start_coordinator(exit_code=1, words="taken port"):
        command = Command(argv=("sh", "-c", f"echo {words}; exit {exit_code}"))
        started.append(RestartingChild("coordinator", command, tmp_path, is_over=lambda: False))
        return started[-1]

    yield start_coordinator
    for restarting in started:
        restarting.child.close()


def keep(restarting, times=1):
    """Let it end, and start it again where that is right."""
    for _ in range(times):
        assert restarting.child.wait(LIMIT_SECONDS)
        restarting.keep()


def test_quick_ends_wait_longer_and_then_end_the_job(start, clock):
    coordinator = start()
    keep(coordinator, processes.HOPELESS_RESTARTS - 1)
    assert clock.waits[0] == 0.0
    assert clock.waits == sorted(clock.waits)
    with pytest.raises(JobFailed, match="taken port"):
        keep(coordinator)


def test_ends_far_apart_are_survived(start, clock):
    coordinator = start()
    for _ in range(2 * processes.HOPELESS_RESTARTS):
        keep(coordinator)
        clock.now += processes.QUICK_SECONDS
    assert clock.waits == [0.0] * 2 * processes.HOPELESS_RESTARTS


def test_one_that_cannot_be_started_now_is_tried_again(start, clock, monkeypatch):
    def refuse(*_arguments, **_options):
        raise BlockingIOError("no more processes")

    coordinator = start()
    first = coordinator.child
    with monkeypatch.context() as patch:
        patch.setattr(processes.subprocess, "Popen", refuse)
        for _ in range(2 * processes.HOPELESS_RESTARTS):
            assert first.wait(LIMIT_SECONDS)
            coordinator.keep()
            clock.now += 60.0
    coordinator.keep()
    assert coordinator.child is not first


def test_a_full_disk_is_told_at_once(start):
    with pytest.raises(OutputError, match="taken port"):
        keep(start(OutputError.exit_code))


def test_a_coordinator_that_gave_up_waiting_is_not_started_again(start):
    coordinator = start(NotEnoughWorkers.exit_code, "fewer than elastic.min_np=2")
    with pytest.raises(NotEnoughWorkers, match=r"elastic\.min_np=2"):
        keep(coordinator)
