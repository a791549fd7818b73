"""What happens to a job, and what it must not lose: each record counts exactly once."""

import signal

import pytest

from edl_horovod.job.directory import JobDir
from edl_horovod.ledger import prove
from tests import counting_job
from tests.records import write_records
from tests.waiting import wait_until


@pytest.fixture
def counting(tmp_path):
    """Overrides of a job whose weights count how often each record was applied."""
    return lambda **settings: counting_job.overrides(tmp_path, **settings)


def assert_each_record_once_an_epoch(tmp_path):
    counting_job.assert_each_record_once_an_epoch(tmp_path / "out")


def test_kill_9_shrinks_the_ring_and_the_slot_comes_back(start, counting, framework, tmp_path):
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    job = start("train", *counting(**{"launch.np": 2}), TMPDIR=str(temporary))
    job.wait_for_step(5)
    first = job.generation()
    job.signal_worker(1, signal.SIGKILL)
    job.wait_for_ring(2, after=job.wait_for_ring(1, after=first))
    if framework == "keras":
        assert list(temporary.rglob("*.py")), "functions that TensorFlow converted"
    (tmp_path / "hurry").touch()
    job.succeed()
    assert_each_record_once_an_epoch(tmp_path)
    assert not list(temporary.iterdir())


@pytest.mark.long
@pytest.mark.parametrize(
    "exported", [{}, {"HOROVOD_CYCLE_TIME": "2"}, {"HOROVOD_FUSION_THRESHOLD": "1500000"}], ids=str
)
def test_a_lost_slot_joins_again_where_gradients_are_large(start, counting, tmp_path, exported):
    """Survivors and newcomers must cut a step's gradients alike, whatever is exported."""
    settings = {"launch.np": 2, "params.num_records": 600_000}  # 2.4 MB, above 1 MB.
    job = start("train", *counting(**settings), **exported)
    job.wait_for_step(5)
    first = job.generation()
    job.signal_worker(1, signal.SIGKILL)
    job.wait_for_ring(2, after=job.wait_for_ring(1, after=first))
    (tmp_path / "hurry").touch()
    job.succeed()
    ended = [e.event.worker for e in job.events("worker") if e.event.state == "failed"]
    assert ended == ["localhost:1"]


@pytest.mark.long
def test_a_ring_whose_leader_is_killed_trains_on(start, counting, tmp_path):
    job = start("train", *counting(**{"launch.np": 3}))
    job.wait_for_step(5)
    first, members = job.generation(), job.events("generation")[-1].event.members
    job.signal_worker(int(members[0].split(":")[1]), signal.SIGKILL)
    job.wait_for_ring(2, after=first)
    # Also the survivor that the dead member owed nothing hears of it at once, not by a time-out.
    lost = next(e for e in job.events("reset") if e.event.new_size == 2)
    assert lost.event.old_size == 3
    assert lost.event.seconds < 3
    (tmp_path / "hurry").touch()
    job.succeed()
    assert_each_record_once_an_epoch(tmp_path)


def test_the_hosts_file_grows_and_shrinks_the_ring(start, counting, tmp_path):
    job = start("train", *counting(**{"launch.np": 1, "elastic.max_np": 3}))
    job.wait_for_step(2)
    job.want(3)
    grown = job.wait_for_ring(3)
    job.want(1)
    job.wait_for_ring(1, after=grown)
    (tmp_path / "hurry").touch()
    job.succeed()
    assert_each_record_once_an_epoch(tmp_path)
    # Nobody waits for a newcomer's start: the ring trained on while two processes got warm.
    steps = [e.event.step for e in job.events("reset")]
    assert steps[1] > 2
    assert all(e.event.seconds < 5 for e in job.events("reset")[1:])


@pytest.mark.long
def test_sigterm_makes_a_worker_leave_and_end_well(start, counting, tmp_path):
    job = start("train", *counting(**{"launch.np": 2}))
    job.wait_for_step(5)
    job.signal_worker(0, signal.SIGTERM)
    job.wait_for_ring(1)
    job.wait_for(
        lambda events: any(e.event.kind == "worker" and e.event.state == "left" for e in events),
        "a leave",
    )
    (tmp_path / "hurry").touch()
    job.succeed()
    assert not [e for e in job.events("reset") if "broke" in str(e.event.reason)]
    assert_each_record_once_an_epoch(tmp_path)


@pytest.mark.long
def test_the_ring_trains_on_without_its_coordinator(start, counting, tmp_path):
    import os

    job = start("train", *counting(**{"launch.np": 2}))
    job.wait_for_step(3)
    generation = job.generation()
    os.kill(job.coordinator_pid(), signal.SIGKILL)
    job.wait_for_step(12)
    (tmp_path / "hurry").touch()
    job.succeed()
    assert job.generation() == generation
    assert_each_record_once_an_epoch(tmp_path)


@pytest.mark.long
def test_below_min_np_the_job_waits_then_ends_with_its_reason(start, counting):
    settings = {"launch.np": 2, "elastic.min_np": 2, "elastic.wait_seconds": 40}
    job = start("train", *counting(**settings))
    job.wait_for_step(3)
    job.want(1)
    assert job.end() == 6, job.describe()
    assert "min_np=2" in job.printed


@pytest.mark.long
def test_evaluation_between_steps_survives_a_kill(start, counting, tmp_path):
    data = write_records(tmp_path / "held_out", 96)
    settings = {"launch.np": 2, "validation_data": data, "train.evaluate_steps": 2}
    job = start("train", *counting(epochs=3, **settings))
    job.wait_for_step(5)
    job.signal_worker(1, signal.SIGKILL)
    (tmp_path / "hurry").touch()
    job.succeed()
    counting_job.assert_each_record_once_an_epoch(tmp_path / "out", epochs=3)
    evaluations = job.events("evaluation")
    steps = [e.event.step for e in evaluations]
    assert steps == sorted(set(steps)), job.describe()
    assert {e.event.examples for e in evaluations} == {96}
    assert {round(e.event.metrics["mean_id"], 3) for e in evaluations} == {47.5}


@pytest.mark.long
def test_ctrl_c_ends_everything(start, counting, tmp_path):
    job = start("train", *counting(**{"launch.np": 2}))
    job.wait_for_step(3)
    job.process.send_signal(signal.SIGINT)
    assert job.end(20) == 130, job.describe()
    assert not job.processes()
    assert not (tmp_path / "out").exists()
    assert "Traceback" not in job.printed


@pytest.mark.long
def test_a_killed_launcher_leaves_no_process_behind(start, counting, tmp_path):
    job = start("train", *counting(**{"launch.np": 2}), TMPDIR=str(tmp_path))
    job.wait_for_step(3)
    job.process.kill()
    job.process.wait()
    wait_until(lambda: not job.processes(), seconds=10)


@pytest.mark.long
def test_each_record_is_taken_once_where_the_batch_grows_with_the_ring(start, counting, tmp_path):
    """A kill, a join and a leave: a ring of another size takes other steps of the same records."""
    settings = {
        "launch.np": 2,
        "elastic.max_np": 3,
        "elastic.batching": "per_rank",
        "elastic.learning_rate_warmup_steps": 3,
        "train.batch_size": 5,
        "data_plan.lanes": 0,
        "train.epochs": 12,
        "debug.ledger": "true",
    }
    job = start("train", *counting(**settings))
    job.wait_for_step(5)
    first = job.generation()
    job.signal_worker(1, signal.SIGKILL)
    back = job.wait_for_ring(2, after=job.wait_for_ring(1, after=first))
    job.want(3)
    grown = job.wait_for_ring(3, after=back)
    job.want(2)
    job.wait_for_ring(2, after=grown)
    (tmp_path / "hurry").touch()
    job.succeed()
    proof = prove(JobDir(job.job_dir))
    assert proof.is_good, f"{proof.violations}\n{job.describe()}"
    assert proof.is_finished
    assert (proof.num_epochs, proof.num_records) == (12, 12 * counting_job.NUM_RECORDS)
    assert proof.num_redone_steps == 0
    last = job.events("step")[-1].event
    assert last.step == last.total_steps == proof.num_steps
    assert last.records_seen == proof.num_records
