"""Training ends where it no longer gets better, and remembers where it was best."""

import numpy as np
import pytest

from edl_horovod.config.schema import EarlyStoppingConfig
from edl_horovod.errors import ConfigError
from edl_horovod.frameworks.values import Array
from edl_horovod.tasks.evaluate import EarlyStopping


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


def resumed(variables, weight, **config):
    """What watches a training that goes on from a checkpoint with these variables."""
    config = EarlyStoppingConfig(**config)
    stopping = EarlyStopping(config, {"w": weight}, names=["loss", "auc"], num_sums=4)
    for name, value in variables.items():
        if name in stopping.variables:
            stopping.variables[name].assign(value.numpy())
    return stopping


def test_weights_that_a_former_run_did_not_keep_are_not_restored():
    _, before, weight = feed([3, 1, 2], patience=3)
    stopping = resumed(before.variables, weight, metric="auc", patience=3, restore_best=True)
    weight.assign(7.0)
    stopping.restore_best()
    assert weight.numpy() == 7.0
    assert stopping.best_sums is None
    stopping.after_evaluation(8, {"auc": 5.0}, np.full(4, 8))
    assert stopping.best == (8, 5.0)


@pytest.mark.parametrize("other", [{"metric": "loss"}, {"metric": "auc", "mode": "max"}])
def test_another_metric_of_a_resumed_training_begins_anew(other):
    _, before, weight = feed([3, 1, 2], patience=2)
    stopping = resumed(before.variables, weight, patience=2, **other)
    stopping.after_evaluation(4, {"loss": 9.0, "auc": 0.5}, np.full(4, 4))
    assert stopping.best[0] == 4
    same = resumed(before.variables, weight, metric="auc", patience=2)
    assert same.best == (2, 1.0)
    same.after_evaluation(4, {"auc": 2.0}, np.full(4, 4))
    assert same.is_over


def test_a_metric_that_is_not_there_is_found_before_training():
    config = EarlyStoppingConfig(metric="acu")
    with pytest.raises(ConfigError, match=r"loss, auc.*=acu.*'auc'"):
        EarlyStopping(config, {}, names=["loss", "auc"], num_sums=4)
