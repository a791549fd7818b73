"""A training that goes on keeps the lanes of its checkpoint, whatever ring is asked for now."""

import json
from pathlib import Path

import numpy as np
import pytest

from edl_horovod.config.compose import compose
from edl_horovod.coordinator.ring_size import check_start
from edl_horovod.errors import ConfigError
from edl_horovod.job import checkpoint_files
from edl_horovod.job.kept_lanes import with_checkpoint_lanes
from edl_horovod.launch.local import LocalTarget
from edl_horovod.ring.tensor_file import write_tensors


@pytest.fixture
def job(tmp_path: Path):
    """The settings of a job whose checkpoints of steps 10 and 20 have 32 lanes, with more."""
    facts = json.dumps({"train.batch_size": 128, "data_plan.lanes": 32})
    (tmp_path / "checkpoints").mkdir()
    for step in (10, 20):
        path = checkpoint_files.path_of(tmp_path / "checkpoints", step)
        write_tensors(path, {"w": np.zeros(3)}, {"step": str(step), "facts": facts})

    def settings(*more):
        given = ["data=d", "model_def=m", "output=/o", f"job_dir={tmp_path}", "resume=auto"]
        return compose("train", [*given, *more])

    return settings


def lanes(config):
    return with_checkpoint_lanes(config).data_plan.lanes


@pytest.mark.parametrize("larger", ["launch.np=20", "elastic.max_np=128"])
def test_the_lanes_of_the_checkpoint_are_kept(job, larger):
    assert lanes(job(larger)) == 32


@pytest.mark.parametrize(
    "settings",
    [("resume=never",), ("data_plan.lanes=16",), ("train.batch_size=256",), ()],
    ids=str,
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
    with pytest.raises(ConfigError, match=r"launch.np=64, lanes=32.*keeps those of its checkpoint"):
        LocalTarget().plan(job("launch.np=64"))


def test_a_largest_ring_beyond_the_lanes_is_told(job, caplog):
    plan = LocalTarget().plan(job("elastic.max_np=64"))
    assert plan.config.data_plan.lanes == 32
    assert "elastic.max_np=64, but the ring can have at most 32 ranks" in caplog.text


def test_a_ring_of_64_needs_no_further_setting(caplog):
    check_start(
        compose(
            "train",
            ["data=d", "model_def=m", "output=/o", "launch.np=64", "train.batch_size=4096"],
        )
    )
    assert caplog.text == ""
