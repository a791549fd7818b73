"""A job that was ended goes on from its checkpoint, and nothing of its curve changes."""

import os
import re
import signal
import sys

import numpy as np
import pytest

from edl_horovod.errors import Interrupted
from edl_horovod.job import checkpoint_files
from edl_horovod.job.directory import JobDir
from tests.integration.conftest import ZOO, for_framework
from tests.records import write_records
from tests.waiting import wait_until

STEPS = 15
TOLERANCE = 1e-5


@pytest.fixture
def paced(tmp_path):
    data = write_records(tmp_path / "data", 100)
    return [
        "model_def=paced.PacedSpec",
        f"data={data}",
        "train.batch_size=24",
        "train.epochs=3",
        "data_plan.lanes=6",
        "data_plan.shuffle_window=16",
        f"job_dir={tmp_path}/job",
    ]


def losses(job):
    """Loss by step; a step that was done twice had the same loss both times."""
    resets = {}
    for recorded in job.events("step"):
        before = resets.setdefault(recorded.event.step, recorded.event.loss)
        np.testing.assert_allclose(recorded.event.loss, before, rtol=TOLERANCE)
    return resets


def saved_steps(tmp_path):
    return checkpoint_files.steps_in(tmp_path / "job" / "checkpoints")


def wait_for_checkpoint(job, step):
    """Wait until a checkpoint of this step or a later one is written, beside the training."""
    job.wait_for(
        lambda events: any(
            e.event.kind == "checkpoint" and e.event.state == "written" and e.event.step >= step
            for e in events
        ),
        f"a checkpoint of step {step}",
    )


@pytest.mark.further
def test_the_last_line_after_ctrl_c_says_how_to_go_on(start, paced):
    job = start("train", *paced, "checkpoint.every_steps=2", "launch.np=1", "train.epochs=100")
    wait_for_checkpoint(job, 4)
    job.process.send_signal(signal.SIGINT)
    assert job.end() == Interrupted.exit_code
    last = job.printed.rstrip().rpartition("\n")[2]
    said = re.fullmatch(r"The checkpoint of step (\d+) is in .*: the same .* resume=auto .*", last)
    assert said, job.describe()
    resumed = start("train", *paced, "resume=auto", "launch.np=1", "train.epochs=100")
    # Until its launcher has emptied them, the events are those of the first job.
    resumed.wait_for(
        lambda events: (
            (steps := [e.event.step for e in events if e.event.kind == "step"])
            and min(steps) > int(said[1])
        ),
        "a step after the checkpoint's, and none before",
    )


@pytest.mark.further
def test_the_loss_curve_is_that_of_a_job_that_nothing_happened_to(start, paced, tmp_path):
    undisturbed = [*paced, "launch.np=2", f"job_dir={tmp_path}/whole-job"]
    whole = losses(start("train", *undisturbed).succeed())
    assert list(whole) == list(range(1, STEPS + 1))
    (tmp_path / "out").rename(tmp_path / "whole")

    saving = ["overwrite=true", "checkpoint.every_steps=2", "launch.np=2"]
    job = start("train", *paced, *saving, TMPDIR=str(tmp_path))
    wait_for_checkpoint(job, 4)
    # All workers at once, while coordinator and launcher live: new ones begin at the checkpoint.
    for slot in (0, 1):
        job.signal_worker(slot, signal.SIGKILL)
    job.wait_for(lambda events: len(found_resets(events)) > 1, "a second ring")
    assert found_resets(job.events())[1].event.step in range(4, STEPS, 2)
    wait_for_checkpoint(job, 8)
    # Everything at once: the launcher's end is the end of all its processes.
    job.process.kill()
    job.process.wait()
    before = losses(job)
    wait_until(lambda: not job.processes())

    last = start("train", *paced, "resume=auto", "launch.np=1").succeed()
    assert found_resets(last.events())[0].event.step in range(8, STEPS, 2)
    assert "formed at" in last.printed
    after = losses(last)
    assert max(before) < STEPS == max(after)
    for step, loss in [*before.items(), *after.items()]:
        np.testing.assert_allclose(loss, whole[step], rtol=TOLERANCE, err_msg=f"step {step}")
    assert set(before) | set(after) == set(whole)


def found_resets(events):
    return [recorded for recorded in events if recorded.event.kind == "reset"]


@pytest.mark.long
def test_ctrl_c_keeps_the_last_step_and_a_fresh_job_does_not_lose_it(start, paced, tmp_path):
    job = start("train", *paced, "launch.np=2")
    job.wait_for_step(4)
    job.process.send_signal(signal.SIGINT)
    assert job.end(20) == 130, job.describe()
    last = max(losses(job))
    assert saved_steps(tmp_path)[-1] in (last, last + 1)

    fresh = start("train", *paced)
    assert fresh.end() == 7, fresh.describe()
    assert "resume=auto" in fresh.printed
    assert "overwrite=true" in fresh.printed

    other = start("train", *paced, "resume=must", "data_plan.seed=5")
    assert other.end() == 2, other.describe()
    assert "data_plan.seed=5; the" in other.printed
    assert "Traceback" not in other.printed

    assert min(losses(start("train", *paced, "resume=must").succeed())) > last
    assert saved_steps(tmp_path)[-1] == STEPS


@pytest.mark.root
def test_a_full_disk_stops_no_training(start, paced, tmp_path):
    small = tmp_path / "job" / "checkpoints"
    JobDir(small.parent).claim()
    small.mkdir()
    if os.system(f"mount -t tmpfs -o size=8k tmpfs {small}") != 0:
        pytest.skip("no file system can be mounted here")
    try:
        job = start("train", *paced, "checkpoint.every_steps=3", "resume=auto").succeed()
        failed = [e for e in job.events("checkpoint") if e.event.state == "failed"]
        assert failed
        assert "No space" in failed[0].event.message
        assert "No space" in job.printed
        assert all(path.suffix == ".safetensors" for path in small.iterdir())
    finally:
        os.system(f"umount {small}")


@pytest.mark.further
def test_a_new_leader_goes_on_with_the_callbacks_of_the_lost_one(start, paced, tmp_path):
    called = [*paced, "model_def=called", "launch.np=2"]
    whole = losses(start("train", *called, f"job_dir={tmp_path}/whole-job").succeed())
    (tmp_path / "out").rename(tmp_path / "whole")
    job = start("train", *called)
    job.wait_for_step(7)
    leader = job.events("generation")[-1].event.members[0]
    job.signal_worker(int(leader.split(":")[1]), signal.SIGKILL)
    after = losses(job.succeed())
    assert max(after) == STEPS
    for step, loss in after.items():
        np.testing.assert_allclose(loss, whole[step], rtol=TOLERANCE, err_msg=f"step {step}")


@pytest.mark.further
def test_a_leader_lost_at_the_end_leaves_the_midst_of_the_epoch_to_go_on_from(
    start, framework, paced, tmp_path
):
    called = for_framework(framework, [*paced, "model_def=called", "launch.np=2"])
    called += [f"output={tmp_path}/out", f"model_zoo={ZOO}", "launch.threads_per_rank=1"]
    whole = losses(
        start("train", *paced, "model_def=called", f"job_dir={tmp_path}/whole-job").succeed()
    )
    (tmp_path / "out").rename(tmp_path / "whole")
    command = [sys.executable, "-m", "tests.dying_job", "train", *called, "train.max_steps=12"]
    start("train", *paced, launcher=command, EDL_TEST_DEATHS="finish:0/2").succeed()
    assert list((tmp_path / "job" / "deaths").iterdir())
    (tmp_path / "out").rename(tmp_path / "cut")
    after = losses(start("train", *paced, "model_def=called", "resume=must").succeed())
    assert max(after) == STEPS
    for step, loss in after.items():
        np.testing.assert_allclose(loss, whole[step], rtol=TOLERANCE, err_msg=f"step {step}")
