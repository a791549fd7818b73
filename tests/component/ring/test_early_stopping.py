"""Training ends where it no longer gets better, and remembers where it was best."""

import numpy as np
import pytest

from edl_horovod import trained_model
from edl_horovod.config.schema import EarlyStoppingConfig
from edl_horovod.errors import ConfigError
from edl_horovod.frameworks.values import Array
from edl_horovod.job import events
from edl_horovod.ring.early_stopping import EarlyStopping
from edl_horovod.trained_model.params import read_params


def feed(values, **config):
    """The step at which training is over, and what watched it; the weight is the step."""
    weight = Array(0.0)
    config = EarlyStoppingConfig(metric="auc", **config)
    stopping = EarlyStopping(config, {"w": weight}, names=["loss", "auc"], num_sums=4)
    for step, value in enumerate(values, 1):
        weight.assign(step)
        stopping.after_evaluation(step, {"loss": 0.0, "auc": value}, np.full(4, step))
        if stopping.is_over:
            return step, stopping, weight
    return None, stopping, weight


@pytest.mark.parametrize(
    ("values", "config", "over_at"),
    [
        ([3, 2, 1, 1, 1], {"patience": 2}, 5),
        ([3, 2, 1, 1, 0.5, 1], {"patience": 2}, None),
        ([1, 2, 3, 2, 3], {"patience": 2, "mode": "max"}, 5),
        ([3, 2.95, 2.9, 2.5], {"patience": 2, "min_delta": 0.2}, 3),
        ([1, float("nan")], {"patience": 1}, 2),
    ],
)
def test_it_is_over_when_patience_is(values, config, over_at):
    assert feed(values, **config)[0] == over_at


def test_the_best_weights_come_back_with_their_evaluation():
    _, stopping, weight = feed([3, 1, 2, 2], patience=2, restore_best=True)
    assert stopping.best == (2, 1.0)
    stopping.restore_best()
    assert weight.numpy() == 2.0
    assert stopping.best_sums.tolist() == [2.0] * 4


def test_without_restore_best_no_second_copy_is_kept():
    _, stopping, weight = feed([3, 1, 2], patience=5)
    stopping.restore_best()
    assert weight.numpy() == 3.0
    assert stopping.best_sums is None
    assert set(stopping.variables) == {"early_stopping", "best_evaluation"}


def test_a_metric_that_is_not_there_is_found_before_training():
    config = EarlyStoppingConfig(metric="acu")
    with pytest.raises(ConfigError, match=r"loss, auc. Received: .*metric=acu.*Did you mean 'auc'"):
        EarlyStopping(config, {}, names=["loss", "auc"], num_sums=4)


SETTINGS = (
    "train.epochs=20",
    "train.evaluate_steps=2",
    "train.early_stopping.metric=loss",
    "train.early_stopping.min_delta=0.3",
    "train.early_stopping.patience=2",
    "train.early_stopping.restore_best=true",
)


def test_a_training_stops_and_goes_on_as_if_it_had_not_been_interrupted(train, tmp_path):
    held_out = f"validation_data={tmp_path}/data/part-0.recordio"
    whole = train(*SETTINGS, held_out, job="whole")
    assert max(whole.losses) < 100
    found = events.read(tmp_path / "whole" / "events.jsonl")
    evaluations = [e for e in found if e["kind"] == "evaluation"]
    best = evaluations[-3]
    assert whole.result["metrics"] == best["metrics"]
    assert f"at step {best['step']}" in next(e["message"] for e in found if e["kind"] == "log")
    assert trained_model.read(tmp_path / "whole-out").metrics == best["metrics"]

    # Ended between the best evaluation and the stop.
    train(*SETTINGS, held_out, until=best["step"] + 1)
    second = train(*SETTINGS, held_out, "resume=must")
    assert max(second.losses) == max(whole.losses)
    assert second.result["metrics"] == pytest.approx(whole.result["metrics"], rel=1e-5)
    ours, theirs = (
        dict(read_params(trained_model.read(tmp_path / name).params_files))
        for name in ("job-out", "whole-out")
    )
    for name, value in ours.items():
        np.testing.assert_allclose(value, theirs[name], rtol=1e-4, atol=1e-6)
