"""Checkpoints of an earlier job are kept, removed or a reason to stop; never lost by accident."""

import json
from dataclasses import replace

import numpy as np
import pytest

from edl_horovod.config.schema import JobConfig
from edl_horovod.config.tasks import check_start
from edl_horovod.errors import ConfigError, OutputError
from edl_horovod.job import checkpoint_files, outcome
from edl_horovod.job.directory import JobDir
from edl_horovod.job.earlier import resume_hint, settle_checkpoints, with_checkpoint_lanes
from edl_horovod.job.outcome import Failure, Success
from edl_horovod.launch.local import LocalTarget
from edl_horovod.ring.checkpoint import write_tensors
from tests.jobs import config_of

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
    with pytest.raises(OutputError, match="step 10") as caught:
        settle_checkpoints(CONFIG, JobDir(job_dir))
    assert all(key in caught.value.hint for key in ("resume=auto", "overwrite=true"))
    assert steps(job_dir) == [5, 10]


@pytest.mark.parametrize("are_behind_a_link", [False, True])
def test_a_fresh_job_that_may_overwrite_removes_them(job_dir, are_behind_a_link):
    if are_behind_a_link:
        (job_dir / "checkpoints").rename(job_dir / "elsewhere")
        (job_dir / "checkpoints").symlink_to("elsewhere")
    settle_checkpoints(replace(CONFIG, overwrite=True), JobDir(job_dir))
    assert steps(job_dir) == []


def test_no_job_forgets_for_which_round_it_sent_a_secure_sum(job_dir):
    """Whoever repeats it over fewer parties would show the difference, however it begins."""
    note = JobDir(job_dir).secure_round
    note.touch()
    settle_checkpoints(replace(CONFIG, resume="auto"), JobDir(job_dir))
    settle_checkpoints(replace(CONFIG, overwrite=True), JobDir(job_dir))
    JobDir(job_dir).clear("at_start")
    settle_checkpoints(CONFIG, JobDir(job_dir))
    assert note.exists()


def test_what_the_user_put_beside_them_stays(job_dir):
    mine = job_dir / "checkpoints" / "best" / "step-000000005.safetensors"
    mine.parent.mkdir()
    mine.touch()
    (job_dir / "checkpoints" / ".step-000000011.host.7.partial").touch()
    settle_checkpoints(replace(CONFIG, overwrite=True), JobDir(job_dir))
    assert [path for path in job_dir.rglob("*") if path.is_file()] == [mine]


def test_those_of_a_job_that_delivered_its_result_may_go(job_dir):
    outcome.save(job_dir / "result.json", Failure(error="DataError", message="no files"))
    with pytest.raises(OutputError):
        settle_checkpoints(CONFIG, JobDir(job_dir))
    outcome.save(job_dir / "result.json", Success(steps=10, metrics={}, output="o"))
    settle_checkpoints(CONFIG, JobDir(job_dir))
    assert steps(job_dir) == []


@pytest.mark.parametrize(("resume", "overwrite"), [("auto", False), ("auto", True), ("must", True)])
def test_a_job_that_goes_on_keeps_them(job_dir, resume, overwrite):
    settle_checkpoints(replace(CONFIG, resume=resume, overwrite=overwrite), JobDir(job_dir))
    assert steps(job_dir) == [5, 10]


def test_a_job_that_must_go_on_needs_one(tmp_path):
    with pytest.raises(ConfigError, match="resume=must"):
        settle_checkpoints(replace(CONFIG, resume="must"), JobDir(tmp_path))
    settle_checkpoints(replace(CONFIG, resume="auto"), JobDir(tmp_path))


def test_how_to_go_on_is_said_where_there_is_a_checkpoint(job_dir, tmp_path_factory):
    said = resume_hint(CONFIG, JobDir(job_dir))
    assert all(words in said for words in ("step 10", str(job_dir), "resume=auto"))
    assert resume_hint(CONFIG, JobDir(tmp_path_factory.mktemp("empty"))) == ""
    other = replace(CONFIG, task="evaluate", trained_model="m", model_def="")
    assert resume_hint(other, JobDir(job_dir)) == ""


@pytest.fixture
def job(tmp_path):
    """The settings of a job whose checkpoints of steps 10 and 20 have 32 lanes, with more."""
    facts = json.dumps({"train.batch_size": 128, "data_plan.lanes": 32})
    (tmp_path / "checkpoints").mkdir()
    for step in (10, 20):
        path = checkpoint_files.path_of(tmp_path / "checkpoints", step)
        write_tensors(path, {"w": np.zeros(3)}, {"step": str(step), "facts": facts})

    def settings(*overrides):
        usual = ["data=d", "model_def=m", "output=/o", f"job_dir={tmp_path}", "resume=auto"]
        return config_of("train", [*usual, *overrides])

    return settings


def lanes(config):
    return with_checkpoint_lanes(config).data_plan.lanes


@pytest.mark.parametrize("larger", ["launch.np=20", "elastic.max_np=128"])
def test_the_lanes_of_the_checkpoint_are_kept(job, larger):
    assert lanes(job(larger)) == 32


@pytest.mark.parametrize(
    "settings", [("resume=never",), ("data_plan.lanes=16",), ("train.batch_size=256",), ()], ids=str
)
def test_settings_stay_as_they_are_where_nothing_is_to_be_kept(job, settings):
    config = job(*settings)
    assert with_checkpoint_lanes(config) == config


def test_a_damaged_checkpoint_is_passed_over(job, tmp_path):
    path = checkpoint_files.path_of(tmp_path / "checkpoints", 20)
    path.write_bytes(path.read_bytes()[:20])
    assert lanes(job("launch.np=20")) == 32
    path.write_bytes(b"\xff" * 100)
    assert lanes(job("launch.np=20")) == 32


def test_a_ring_that_does_not_fit_the_kept_lanes_is_refused_and_told_why(job):
    with pytest.raises(ConfigError, match="np=64, lanes=32"):
        LocalTarget().plan(job("launch.np=64"))


def test_a_largest_ring_beyond_the_lanes_is_told(job, caplog):
    assert LocalTarget().plan(job("elastic.max_np=64")).config.data_plan.lanes == 32
    assert "max_np=64" in caplog.text
    assert "32 ranks" in caplog.text


def test_a_ring_of_64_needs_no_further_setting(caplog):
    settings = ["data=d", "model_def=m", "output=/o", "launch.np=64", "train.batch_size=4096"]
    check_start(config_of("train", settings))
    assert caplog.text == ""
