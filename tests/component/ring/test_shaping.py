"""What `train.*` makes of a training, by one process."""

import numpy as np
import pytest

from tests.arrays import assert_close
from tests.later import LATER

if LATER:
    import keras
    import tensorflow as tf

EPOCHS = "train.epochs=2"


def weights(training):
    return [np.asarray(value) for value in training.step.model.keras.get_weights()]


def changes(training, start):
    return [after - before for after, before in zip(weights(training), weights(start), strict=True)]


@pytest.mark.long
def test_parts_of_a_step_give_the_same_training(train):
    whole = train(EPOCHS, job="whole")
    parts = train(EPOCHS, "train.accumulate_steps=5", job="parts")
    assert_close(parts.losses.values(), whole.losses.values(), rtol=1e-5)
    assert_close(weights(parts), weights(whole), rtol=1e-4, atol=1e-6)


@pytest.mark.long
def test_a_bounded_gradient_moves_sgd_by_no_more_than_its_bound(train):
    settings = ["model_def=sgd_tiny", "train.max_steps=1", "train.learning_rate=1.0"]
    start = train(*settings, "train.clip_norm=1e-12", job="start")
    moved = train(*settings, "train.clip_norm=0.01", job="moved")
    steps = changes(moved, start)
    np.testing.assert_allclose(np.sqrt(sum((step**2).sum() for step in steps)), 0.01, rtol=1e-4)
    cut = train(*settings, "train.clip_value=0.001", job="cut")
    steps = changes(cut, start)
    np.testing.assert_allclose(max(np.abs(step).max() for step in steps), 0.001, rtol=1e-4)


@pytest.mark.long
@pytest.mark.parametrize("precision", ["mixed_bfloat16", "mixed_float16"])
def test_mixed_precision_learns_and_keeps_its_variables_in_float32(train, precision):
    single = train(EPOCHS, job="single")
    mixed = train(EPOCHS, f"train.precision={precision}", job="mixed")
    model = mixed.step.model.keras
    assert model.layers[1].compute_dtype == precision.removeprefix("mixed_")
    assert {variable.dtype for variable in model.trainable_variables} == {"float32"}
    assert mixed.losses != single.losses
    assert_close(mixed.losses.values(), single.losses.values(), rtol=0.05)
    is_scaled = isinstance(mixed.step.optimizer, keras.optimizers.LossScaleOptimizer)
    assert is_scaled == (precision == "mixed_float16")


def test_a_learning_rate_schedule_follows_the_steps(train):
    training = train("model_def=sgd_tiny", "params.halve_every=3", EPOCHS)
    optimizer = training.step.optimizer
    assert int(optimizer.iterations.numpy()) == 10
    np.testing.assert_allclose(float(optimizer.learning_rate), 0.05 * 0.5 ** (10 // 3), rtol=1e-6)


@pytest.mark.long
def test_a_saved_model_gives_what_the_model_gives(train, tmp_path):
    training = train("train.max_steps=1", "train.saved_model=true")
    x = np.ones((3, 4), np.float32)
    loaded = tf.saved_model.load(str(tmp_path / "job-out" / "saved_model"))
    served = loaded.serve({"x": x})
    np.testing.assert_allclose(served, training.step.model.keras({"x": x}), rtol=1e-5)
