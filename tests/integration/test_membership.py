"""Rings whose members come and go in good order: no step is lost, and none is done twice."""

import re
import signal
import time

import pytest

from tests import counting_job
from tests.records import write_records

pytestmark = pytest.mark.long


@pytest.fixture
def counting(start, tmp_path):
    """Start a job that counts its records."""

    def start_job(**settings):
        job = start("train", *counting_job.overrides(tmp_path, **settings))
        job.wait_for_step(3)
        return job

    return start_job


def finish(job, folder):
    """Let the job end; its weights and its steps are those of a job that nothing happened to."""
    (folder / "hurry").touch()
    job.succeed()
    counting_job.assert_each_record_once_an_epoch(folder / "out")
    done = 0
    for recorded in job.events():
        if recorded.event.kind == "step":
            assert recorded.event.step > done, "a step was done twice"
            done = recorded.event.step
        elif recorded.event.kind == "reset":
            assert recorded.event.step >= done, "a step was lost"
    assert not [e for e in job.events("worker") if e.event.state == "failed"]
    assert not [e for e in job.events("reset") if "orovod" in e.event.reason], "a ring broke"


def test_every_kind_of_leave_costs_no_step_and_never_ends_the_job(counting, tmp_path):
    job = counting(**{"launch.np": 3})
    generation = job.wait_for_ring(3)
    job.want(2)  # As `edl scale`, and as a host that discovery withdraws.
    generation = job.wait_for_ring(2, after=generation)
    leader = job.events("generation")[-1].event.members[0]
    job.signal_worker(int(leader.split(":")[1]), signal.SIGTERM)
    generation = job.wait_for_ring(1, after=generation)
    job.wait_for_ring(2, after=generation)
    assert all(e.event.seconds < 5 for e in job.events("reset")[1:])
    finish(job, tmp_path)


def test_sigterm_to_all_ranks_of_a_ring_at_once_but_one(counting, tmp_path):
    job = counting(**{"launch.np": 3})
    generation = job.wait_for_ring(3)
    for slot in (0, 1):
        job.signal_worker(slot, signal.SIGTERM)
    job.wait_for_ring(1, after=generation)
    job.wait_for_ring(3, after=generation)
    finish(job, tmp_path)


def test_a_host_that_flaps_every_second(counting, tmp_path):
    job = counting(**{"launch.np": 2})
    pid = job.worker_pid(0)
    for number in range(20):
        job.want(1 + number % 2)
        time.sleep(1 if number < 10 else 0.1)
    generation = job.generation()
    job.want(2)
    job.wait_for(
        lambda log: [e for e in log if e.event.kind == "generation"][-1].event.size == 2, "both"
    )
    assert job.worker_pid(0) == pid
    assert job.generation() <= generation + 2
    finish(job, tmp_path)


def test_a_spare_beyond_the_lanes_stays_warm_and_follows_at_once(counting, tmp_path):
    job = counting(**{"launch.np": 2, "data_plan.lanes": 2, "elastic.spares": 1})
    generation = job.wait_for_ring(2)
    leader, follower = job.events("generation")[-1].event.members
    (spare,) = {f"localhost:{slot}" for slot in range(3)} - {leader, follower}
    job.want(3)
    job.wait_for(
        lambda log: any(
            e.event.kind == "worker" and e.event.worker == spare and e.event.state == "warm"
            for e in log
        ),
        "the third",
    )
    assert job.generation() == generation
    job.signal_worker(int(leader.partition(":")[2]), signal.SIGTERM)
    job.wait_for_ring(2, after=generation)
    assert {*job.events("generation")[-1].event.members} == {follower, spare}
    finish(job, tmp_path)


def test_from_one_worker_to_none_and_back_with_a_checkpoint(start, tmp_path):
    settings = {"launch.np": 1, "checkpoint.every_steps": 1}
    job = start("train", *counting_job.overrides(tmp_path, **settings))
    # Written beside training: on a busy machine some steps late.
    job.wait_for(
        lambda log: any(
            e.event.kind == "checkpoint" and e.event.state == "written" and e.event.step >= 5
            for e in log
        ),
        "a checkpoint of step 5",
    )
    generation = job.generation()
    # Without a slot: a worker in the same one may be warm before its loss is noticed.
    job.want(0)
    job.signal_worker(0, signal.SIGKILL)
    job.wait_for(
        lambda log: any(
            e.event.kind == "job"
            and e.event.state == "waiting"
            and "0 workers, 1 needed" in e.event.message
            for e in log
        ),
        "a ring without workers",
    )
    job.want(1)
    job.wait_for_ring(1, after=generation)
    (tmp_path / "hurry").touch()
    job.succeed()
    assert job.events("reset")[-1].event.step >= 5
    counting_job.assert_each_record_once_an_epoch(tmp_path / "out")


def test_the_only_rank_of_a_withdrawn_slot_hands_its_steps_over_to_the_next(start, tmp_path):
    """Slot 0 died and gets warm again while slot 1, which alone has the state, is withdrawn."""
    job = start("train", *counting_job.overrides(tmp_path))
    job.wait_for_step(1)
    job.want(2)
    generation = job.wait_for_ring(2)
    job.wait_for_step(5)
    job.signal_worker(0, signal.SIGKILL)
    job.want(1)
    alone = job.wait_for_ring(1, after=generation)
    assert job.events("generation")[-1].event.members == ("localhost:1",)
    job.wait_for_ring(1, after=job.wait_for_ring(2, after=alone))
    assert job.events("generation")[-1].event.members == ("localhost:0",)
    (tmp_path / "hurry").touch()
    job.succeed()
    counting_job.assert_each_record_once_an_epoch(tmp_path / "out")
    steps = [e.event.step for e in job.events("reset")]
    assert steps == sorted(steps)
    assert steps[-1] > 5


def test_a_worker_with_another_model_ends_the_job_and_is_told_what_differs(start, tmp_path):
    data = write_records(tmp_path / "data", 100)
    job = start("train", "model_def=uneven", f"data={data}", "launch.np=2", "train.batch_size=10")
    assert job.end() == 3, job.describe()
    message = job.events("job")[-1].event.message
    assert "hidden" in message
    assert {"8", "9"} <= set(re.findall(r"\d+", message))
