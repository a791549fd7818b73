"""`edl stop` and `edl resume` of a job on this machine: no step is lost, no weight changes."""

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from edl_horovod import trained_model
from edl_horovod.trained_model.params import read_params
from tests.integration.conftest import edl
from tests.records import write_records

STEPS = 60


def weights(output):
    return dict(read_params(trained_model.read(output).params_files))


def saved_step(job):
    return [recorded.event.step for recorded in job.events("checkpoint")][-1]


def steps_shown(job):
    """The steps of a job's run in TensorBoard, in the order in which they were written."""
    folder = job.job_dir / "displays" / "tensorboard"
    return [scalar.step for scalar in EventAccumulator(str(folder)).Reload().Scalars("train/loss")]


@pytest.mark.long
def test_a_job_that_was_stopped_and_resumed_ends_with_the_same_weights(start, tmp_path):
    data = write_records(tmp_path / "data", 120)
    settings = [
        "model_def=paced.PacedSpec",
        f"data={data}",
        "train.batch_size=24",
        f"train.epochs={STEPS // 5}",
        "data_plan.lanes=6",
        "launch.np=2",
        "elastic.min_np=2",
        "elastic.max_np=2",
        "checkpoint.every_seconds=600",  # None but at the stop.
    ]
    start("train", *settings, f"output={tmp_path}/whole", f"job_dir={tmp_path}/w").succeed()
    job = start("train", *settings, f"job_dir={tmp_path}/job", "displays=[tensorboard]")
    job.wait_for_step(4)

    assert "edl resume" in edl("stop", str(job.job_dir))

    assert job.end(10) == 130, job.describe()
    assert not job.processes()
    last = saved_step(job)
    assert max(recorded.event.step for recorded in job.events("step")) in (last, last - 1)
    assert last < STEPS
    assert "state      suspended" in edl("status", str(job.job_dir))
    assert f"of step {saved_step(job)}" in edl("logs", str(job.job_dir))

    assert f"output:  {tmp_path}/out" in edl("resume", str(job.job_dir))

    (reset,) = job.events("reset")
    assert reset.event.step == last
    whole, resumed = weights(tmp_path / "whole"), weights(tmp_path / "out")
    assert sorted(resumed) == sorted(whole)
    for name, value in resumed.items():
        np.testing.assert_array_equal(value, whole[name], err_msg=name)
    shown = steps_shown(job)
    assert shown == sorted(set(shown))
    assert shown[0] <= last < shown[-1] == STEPS


@pytest.mark.long
def test_a_stop_of_a_job_without_checkpoints_must_be_meant(start_paced):
    job = start_paced(
        "train.epochs=20",
        "checkpoint.every_seconds=0",
    )
    job.wait_for_step(2)

    assert "are lost" in edl("stop", str(job.job_dir), code=2)
    edl("stop", str(job.job_dir), "-y")

    assert job.end(10) == 130, job.describe()
    edl("delete", str(job.job_dir), "-y")
    assert not job.job_dir.exists()
