"""Examples that a model cannot train on end the job with what does not fit."""

import shutil
from pathlib import Path

import pytest

from edl_horovod.errors import ConfigError, TrainingError, UserCodeError
from edl_horovod.job import events

ZOO = Path(__file__).parents[2] / "zoo"

TOLD = r"^The {} of {} of .*misfit\.py for .*shape=\(24, 4\).*: Incompatible shapes: \[48\]"


@pytest.mark.long
def test_a_loss_that_fails_in_a_step_is_an_error_of_the_model_file(train):
    with pytest.raises(UserCodeError, match=TOLD.format("training step", "MisfitSpec")):
        train("model_def=misfit.MisfitSpec")


@pytest.mark.long
def test_a_metric_that_fails_in_an_evaluation_is_one_too(train, tmp_path):
    with pytest.raises(UserCodeError, match=TOLD.format("evaluation", "MisfitInMetrics")):
        train("model_def=misfit.MisfitInMetrics", f"validation_data={tmp_path}/data")


@pytest.mark.long
@pytest.mark.parametrize(("settings", "part"), [([], "loss"), (["model_def=steep"], "gradients")])
def test_what_is_not_finite_is_told_with_its_step_counted_from_1(train, settings, part):
    with pytest.raises(TrainingError, match=rf"{part} of step 1 "):
        train(*settings, "params.bad_id=0", "data_plan.shuffle=false")


@pytest.mark.long
def test_a_link_out_of_the_zoo_is_told_before_the_training(train, tmp_path):
    shutil.copytree(ZOO, tmp_path / "zoo")
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "zoo" / "notes.txt").symlink_to(tmp_path / "secret")
    with pytest.raises(ConfigError, match=r"'notes\.txt'"):
        train(f"model_zoo={tmp_path / 'zoo'}")
    assert events.read(tmp_path / "job" / "events.jsonl") == []
