"""Checkpoints of an earlier job are kept, removed or a reason to stop; never lost by accident."""

from dataclasses import replace

import pytest

from edl_horovod.config.schema import JobConfig
from edl_horovod.errors import ConfigError, OutputError
from edl_horovod.job import checkpoint_files, outcome
from edl_horovod.job.directory import JobDir
from edl_horovod.job.earlier import resume_hint, settle_checkpoints
from edl_horovod.job.outcome import Failure, Success

CONFIG = JobConfig(task="train", data="d", output="/out", model_def="m")


def steps(job_dir):
    return checkpoint_files.steps_in(job_dir / "checkpoints")


@pytest.fixture
def job_dir(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    for step in (5, 10):
        checkpoint_files.path_of(tmp_path / "checkpoints", step).touch()
    return tmp_path


def test_a_fresh_job_refuses_to_lose_them_and_says_how_to_go_on(job_dir):
    with pytest.raises(OutputError, match=r"up to step 10.*resume=auto.*overwrite=true"):
        settle_checkpoints(CONFIG, JobDir(job_dir))
    assert steps(job_dir) == [5, 10]


def test_a_fresh_job_that_may_overwrite_removes_them(job_dir):
    settle_checkpoints(replace(CONFIG, overwrite=True), JobDir(job_dir))
    assert steps(job_dir) == []


def test_what_the_user_put_beside_them_stays(job_dir):
    mine = job_dir / "checkpoints" / "best" / "step-000000005.safetensors"
    mine.parent.mkdir()
    mine.touch()
    (job_dir / "checkpoints" / ".step-000000011.host.7.partial").touch()
    settle_checkpoints(replace(CONFIG, overwrite=True), JobDir(job_dir))
    assert [path for path in job_dir.rglob("*") if path.is_file()] == [mine]


def test_those_behind_a_link_to_another_disk_may_go_too(job_dir):
    (job_dir / "checkpoints").rename(job_dir / "elsewhere")
    (job_dir / "checkpoints").symlink_to("elsewhere")
    settle_checkpoints(replace(CONFIG, overwrite=True), JobDir(job_dir))
    assert steps(job_dir) == []


def test_those_of_a_job_that_delivered_its_result_may_go(job_dir):
    outcome.save(job_dir / "result.json", Failure(error="DataError", message="no files"))
    with pytest.raises(OutputError):
        settle_checkpoints(CONFIG, JobDir(job_dir))
    outcome.save(job_dir / "result.json", Success(steps=10, metrics={}, output="o"))
    settle_checkpoints(CONFIG, JobDir(job_dir))
    assert steps(job_dir) == []


@pytest.mark.parametrize("resume", ["auto", "must"])
@pytest.mark.parametrize("overwrite", [False, True])
def test_a_job_that_goes_on_keeps_them(job_dir, resume, overwrite):
    settle_checkpoints(replace(CONFIG, resume=resume, overwrite=overwrite), JobDir(job_dir))
    assert steps(job_dir) == [5, 10]


def test_a_job_that_must_go_on_needs_one(tmp_path):
    with pytest.raises(ConfigError, match="Received: resume=must"):
        settle_checkpoints(replace(CONFIG, resume="must"), JobDir(tmp_path))
    settle_checkpoints(replace(CONFIG, resume="auto"), JobDir(tmp_path))


def test_how_to_go_on_is_said_where_there_is_a_checkpoint(job_dir, tmp_path_factory):
    said = resume_hint(CONFIG, JobDir(job_dir))
    assert said == (
        f"\nThe checkpoint of step 10 is in {job_dir}: the same command with resume=auto goes on"
        " from there."
    )
    assert resume_hint(CONFIG, JobDir(tmp_path_factory.mktemp("empty"))) == ""
    other = replace(CONFIG, task="evaluate", trained_model="m", model_def="")
    assert resume_hint(other, JobDir(job_dir)) == ""
