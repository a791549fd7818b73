"""Workers that hang: the ring goes on within a stated time, and the job says which one and why."""

import itertools
import json
import re
import signal
import time

import pytest

from edl_horovod.job.directory import JobDir
from edl_horovod.ledger import prove
from tests import counting_job
from tests.integration.conftest import edl
from tests.waiting import watch

STALL_SECONDS = 12
FORMING_SECONDS = 5
"""The default, and so the time-out of every transfer in the ring."""
LOAD_SECONDS = 6
"""What a busy machine may add to a stated time."""
LONG_EPOCHS = 3 * counting_job.EPOCHS
"""Of a job that outlasts a newcomer's 35 s, however busy the machine is."""


class Hanging:
    """A job of the model that hangs where it is told to."""

    def __init__(self, start, folder, **settings):
        self._folder = folder
        self._start = start
        settings = {"model_def": "hanging", "params.hang_in": str(folder), **settings}
        settings |= {"elastic.stall_seconds": STALL_SECONDS}
        self._overrides = counting_job.overrides(folder, **settings)

    def start(self, first_step=3, *, is_warm=True):
        self.job = self._start("train", *self._overrides, is_warm=is_warm)
        if first_step:
            self.job.wait_for_step(first_step)
        return self.job

    def hang(self, place, slot):
        (self._folder / f"{place}-{slot}").touch()

    def go_on(self, place, slot):
        (self._folder / f"{place}-{slot}").unlink()

    def wait_until_reached(self, place, slot):
        file = self._folder / f"{place}-{slot}.reached"
        self.job.wait_for(lambda _: file.exists(), f"slot {slot} in {place}")
        watch(lambda: self.job.process.poll() is None, 1)  # The others come to wait for it.

    def seconds_until_ring(self, size, after):
        """From now until a ring of this size is there, by the coordinator's clock."""
        began = time.time()
        generation = self.job.wait_for_ring(size, after=after)
        formed = next(
            e
            for e in self.job.events("generation")
            if e.event.is_formed and e.event.size == size and e.event.generation > after
        )
        return formed.time - began, generation

    def hung(self, slot):
        """The event that says which worker hung."""

        def find(recorded_events):
            return next(
                (
                    e
                    for e in recorded_events
                    if e.event.kind == "worker"
                    and e.event.state == "hung"
                    and e.event.worker == f"localhost:{slot}"
                ),
                None,
            )

        return self.job.wait_for(find, f"slot {slot} is said to hang")

    def last_loss(self):
        """What `edl status` says about the last rank that was lost, when it is all known."""

        def look(_):
            state = json.loads(edl("status", str(self.job.job_dir), "-o", "json"))
            return next((stop for stop in reversed(state["stops"]) if stop["end"]), None)

        loss = self.job.wait_for(look, "the last loss")
        rings = (recorded.event for recorded in self.job.events("generation"))
        (ring,) = (ring for ring in rings if ring.generation == loss["generation"])
        assert ring.members[loss["rank"]] == loss["worker"]
        return loss

    def time_of(self, pid):
        """The account of a process: its causes, which add up to its life."""
        report = json.loads(edl("report", str(self.job.job_dir), "-o", "json"))
        (rank,) = [rank_report for rank_report in report["ranks"] if rank_report["pid"] == pid]
        life = rank["until"] - rank["began"]
        assert sum(rank["seconds"].values()) == pytest.approx(life, rel=0.005, abs=0.02)
        assert rank["doing"] == ""
        return rank["seconds"]

    def log_of(self, slot):
        return (self.job.job_dir / "logs" / f"worker-{slot}.log").read_text()

    def hurry(self):
        (self._folder / "hurry").touch()
        self.job.succeed()

    def finish(self, **of_job):
        self.hurry()
        counting_job.assert_each_record_once_an_epoch(self._folder / "out", **of_job)


@pytest.fixture
def hanging(start, tmp_path):
    return lambda **settings: Hanging(start, tmp_path, **settings)


@pytest.mark.long
def test_a_stopped_worker_is_left_out_ended_and_replaced(hanging):
    job = hanging(**{"launch.np": 2})
    running = job.start()
    first, pid = running.generation(), running.worker_pid(1)
    running.signal_worker(1, signal.SIGSTOP)
    seconds, shrunk = job.seconds_until_ring(1, after=first)
    assert seconds < FORMING_SECONDS + 1 + LOAD_SECONDS
    recorded = job.hung(1)
    assert recorded.event.pid == pid
    assert "of life" in recorded.event.message
    running.wait_for_ring(2, after=shrunk)
    assert running.worker_pid(1) != pid
    loss = job.last_loss()
    others = r"1 other had to stop in step \d+"
    hung = rf"rank \d \(localhost:1\) hung, and {others}: no sign of life for"
    assert re.match(hung, loss["text"])
    assert job.time_of(pid)["hung"] > 8
    job.finish()


@pytest.mark.long
@pytest.mark.parametrize(
    ("slot", "number"), [(1, signal.SIGKILL), (0, signal.SIGKILL), (1, signal.SIGSTOP)]
)
def test_a_worker_lost_between_two_buckets_costs_the_step_in_flight_alone(hanging, slot, number):
    settings = {"launch.np": 3, "params.num_clocks": 20, "train.bucket_bytes": 1}
    job = hanging(**settings, **{"debug.ledger": "true"})
    running = job.start()
    running.wait_for_ring(3)
    first = running.generation()
    job.hang("backward", slot)
    job.wait_until_reached("backward", slot)
    # The buckets of the clocks are through on all ranks by then; that of the counts is not.
    running.signal_worker(slot, number)
    running.wait_for_ring(2, after=first)
    job.go_on("backward", slot)
    job.finish()
    proof = prove(JobDir(running.job_dir))
    assert proof.is_good, f"{proof.violations}\n{running.describe()}"
    assert proof.num_redone_steps == 0


@pytest.mark.long
def test_a_worker_lost_while_fragments_are_summed_costs_its_own_replicas_alone(hanging):
    rounds = {"steps": 4, "replicas": 4, "fragments": 4}
    settings = {f"train.local.{key}": value for key, value in rounds.items()}
    settings |= {"data_plan.lanes": 4, "debug.ledger": "true", "launch.np": 2}
    job = hanging(**settings)
    running = job.start()
    running.wait_for_ring(2)
    first = running.generation()
    job.hang("backward", 1)
    job.wait_until_reached("backward", 1)
    # The other one has trained its replicas, and waits in the sum of the first fragment that it
    # has started, or in the last one.
    running.signal_worker(1, signal.SIGKILL)
    running.wait_for_ring(1, after=first)
    job.go_on("backward", 1)
    job.hurry()
    proof = prove(JobDir(running.job_dir))
    assert proof.is_good, f"{proof.violations}\n{running.describe()}"


@pytest.mark.long
def test_a_worker_that_was_stopped_for_a_while_comes_back_warm(hanging):
    job = hanging(**{"launch.np": 2})
    running = job.start()
    first, pid = running.generation(), running.worker_pid(1)
    running.signal_worker(1, signal.SIGSTOP)
    _, shrunk = job.seconds_until_ring(1, after=first)
    running.signal_worker(1, signal.SIGCONT)
    seconds, _ = job.seconds_until_ring(2, after=shrunk)
    assert seconds < FORMING_SECONDS + LOAD_SECONDS
    assert running.worker_pid(1) == pid
    job.finish()


@pytest.mark.long
def test_a_worker_whose_python_is_stuck_is_killed_and_replaced(hanging):
    job = hanging(**{"launch.np": 2})
    running = job.start()
    first, pid = running.generation(), running.worker_pid(1)
    job.hang("lock", 1)
    recorded = job.hung(1)
    job.go_on("lock", 1)
    assert (recorded.event.pid, "of life" in recorded.event.message) == (pid, True)
    _, shrunk = job.seconds_until_ring(1, after=first)
    running.wait_for_ring(2, after=shrunk)
    job.finish()


@pytest.mark.long
@pytest.mark.parametrize("place", ["input", "forward"])
def test_a_stuck_worker_is_ended_with_its_stacks_and_replaced(hanging, place):
    job = hanging(**{"launch.np": 2})
    # Where a warm process was forked is a place in files that are in no package, as a user's are.
    running = job.start(is_warm=False)
    first, pid = running.generation(), running.worker_pid(1)
    job.hang(place, 1)
    recorded = job.hung(1)
    job.go_on(place, 1)
    seconds = recorded.time - running.events("step")[-1].time
    assert STALL_SECONDS <= seconds < STALL_SECONDS + 4 + LOAD_SECONDS
    assert recorded.event.pid == pid
    assert "1 other" in recorded.event.message
    alone, shrunk = job.seconds_until_ring(1, after=first)
    assert alone < LOAD_SECONDS
    running.wait_for_ring(2, after=shrunk)
    # The log holds where it hung: the user's own function among the stacks of all threads.
    assert re.search(r'hanging.py", line \d+ in _wait', job.log_of(1))
    assert recorded.event.message in job.log_of(1)
    loss = job.last_loss()
    assert re.match(r"rank \d \(localhost:1\) hung at \w*hanging.py:\d+ in _wait: ", loss["text"])
    step = "examples of step" if place == "input" else "step"
    assert re.search(rf" in {step} \d+, while 1 other waited for it", loss["text"])
    assert loss["traces"]["localhost:0"]["doing"] == "waits"
    assert any(
        span["name"].startswith("exchange of step")
        for span in loss["traces"]["localhost:0"]["last"]
    )
    seconds = job.time_of(pid)
    assert seconds["hung"] == pytest.approx(STALL_SECONDS, abs=4 + LOAD_SECONDS)
    assert "lost" not in seconds
    survivor = running.worker_pid(0)
    job.finish()
    seconds = job.time_of(survivor)
    assert seconds["broken"] == pytest.approx(STALL_SECONDS, abs=4 + LOAD_SECONDS)
    assert seconds["redone"] < STALL_SECONDS / 2


@pytest.mark.long
def test_a_newcomer_that_takes_35_seconds_to_start_stops_nobody(hanging):
    job = hanging(epochs=LONG_EPOCHS, **{"launch.np": 1, "elastic.max_np": 2})
    job.hang("build", 1)
    running = job.start()
    running.want(2)
    running.wait_for(lambda _: running.worker_pid(0) and "localhost:1" in str(running.events()), "")
    first = running.events("step")[-1].event.step
    watch(lambda: len(running.events("generation")) == 1, 35)
    steps = running.events("step")
    assert steps[-1].event.step > first
    assert max(b.time - a.time for a, b in itertools.pairwise(steps)) < LOAD_SECONDS
    assert len(running.events("generation")) == 1
    job.go_on("build", 1)
    running.wait_for_ring(2)
    job.finish(epochs=LONG_EPOCHS)


@pytest.mark.long
def test_a_newcomer_that_hangs_as_the_ring_forms_is_left_out(hanging):
    job = hanging(**{"launch.np": 1, "elastic.max_np": 2})
    running = job.start()
    running.want(2)
    running.wait_for(
        lambda log: any(
            e.event.kind == "worker" and e.event.worker == "localhost:1" and e.event.state == "warm"
            for e in log
        ),
        "a warm newcomer",
    )
    running.signal_worker(1, signal.SIGSTOP)
    stopped = time.time()
    running.wait_for(
        lambda log: any(e.event.kind == "step" and e.time > stopped + 3 for e in log), "steps"
    )
    # It may have been too late to stop it, between two steps; no worse than that may it be.
    resets = [e.event.seconds for e in running.events("reset")[1:]]
    assert all(seconds < 2 * FORMING_SECONDS + LOAD_SECONDS for seconds in resets)
    running.wait_for_ring(2)
    job.finish()


@pytest.mark.long
def test_the_hosts_file_becomes_unusable_and_good_again(hanging):
    job = hanging(**{"launch.np": 2})
    running = job.start()
    path, first = running.job_dir / "hosts", running.generation()

    def write(hosts):
        # In one piece, or it might be read when it is empty: that is not damaged, and wants nobody.
        new = path.with_name("new-hosts")
        new.write_bytes(hosts)
        new.rename(path)

    for number, hosts in enumerate([b"rubbish", None, b"\xff\xfe"], start=1):
        path.unlink() if hosts is None else write(hosts)
        now = time.time()
        running.wait_for(
            lambda log, now=now: any(e.event.kind == "step" and e.time > now + 3 for e in log),
            "steps",
        )
        assert running.generation() == first
        log = (running.job_dir / "logs" / "coordinator.log").read_text()
        assert log.count("hosts file:") == number
        running.want(2)
        # Or the coordinator, which looks now and then, may not see that it was good.
        watch(lambda: running.generation() == first, 1)
    write(b"")  # Not damaged: no host at all is wanted. The workers stay warm.
    running.wait_for(
        lambda log: any(e.event.kind == "job" and e.event.state == "waiting" for e in log),
        "the wait",
    )
    running.want(2)
    _, again = job.seconds_until_ring(2, after=first)
    assert running.events("reset")[-1].event.step > 0
    running.want(1)
    running.wait_for_ring(1, after=again)
    job.finish()
