"""Examples that a model cannot train on end the job with what does not fit."""

import pytest

from edl_horovod.errors import TrainingError, UserCodeError

TOLD = r"^The {} of {} of .*misfit\.py for .*shape=\(24, 4\).*: Incompatible shapes: \[48\]"


def test_a_loss_that_fails_in_a_step_is_an_error_of_the_model_file(train):
    with pytest.raises(UserCodeError, match=TOLD.format("training step", "MisfitSpec")):
        train("model_def=misfit.MisfitSpec")


def test_a_metric_that_fails_in_an_evaluation_is_one_too(train, tmp_path):
    with pytest.raises(UserCodeError, match=TOLD.format("evaluation", "MisfitInMetrics")):
        train("model_def=misfit.MisfitInMetrics", f"validation_data={tmp_path}/data")


def test_a_loss_that_is_not_finite_is_told_with_its_step_counted_from_1(train):
    with pytest.raises(TrainingError, match=r"^The loss of step 1 is not finite"):
        train("params.bad_id=0", "data_plan.shuffle=false")
