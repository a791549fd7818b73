"""Adversarial training of a Keras model: its examples are those of a loop by hand."""

from pathlib import Path

import numpy as np
import pytest

from edl_horovod.config.schema import AdversarialConfig
from edl_horovod.errors import ConfigError
from edl_horovod.frameworks.values import Batch
from edl_horovod.models.zoo import load_spec
from tests.jobs import training
from tests.later import LATER

if LATER:
    import keras
    import tensorflow as tf

    from edl_horovod.frameworks.keras.framework import FRAMEWORK

ZOO = str(Path(__file__).parents[3] / "zoo")
BATCH, STEPS, EPSILON = 8, 5, 0.25
if LATER:
    SPEC = ({"x": tf.TensorSpec((None, 4), tf.float32)}, tf.TensorSpec((None, 1), tf.float32))


def make_step(**settings):
    FRAMEWORK.begin(slot=0, seed=4)
    loaded = load_spec(ZOO, "curve", params={}, plain_models=FRAMEWORK.plain_models)
    job = training(BATCH, adversarial=AdversarialConfig(**settings))
    return FRAMEWORK.step(loaded, SPEC, job)


def batches(first=0, last=BATCH):
    random = np.random.default_rng(5)
    for _ in range(STEPS):
        x = random.normal(size=(BATCH, 4)).astype(np.float32)
        y = np.sin(x.sum(1, keepdims=True))
        places = np.arange(first, last)
        part = slice(first, last)
        yield Batch(
            {"x": tf.constant(x[part])},
            tf.constant(y[part]),
            last - first,
            None,
            lambda p=places: p,
        )


def run(step, batch):
    return step.step(batch, wants_change=False, is_alone=True, salt=0)


def loss_by_hand(model, x, y, *, training):
    outputs = model({"x": x}, training=training)
    return tf.reduce_mean(tf.square(outputs - y)) + tf.add_n(model.losses)


def test_fgsm_trains_as_the_same_loop_by_hand():
    step = make_step(method="fgsm", epsilon=EPSILON, ratio=0.5)
    by_hand = keras.models.clone_model(step.model.keras)
    by_hand.set_weights(step.model.keras.get_weights())
    optimizer = keras.optimizers.Adam(0.01)
    for batch in batches():
        x, y = batch.features["x"], batch.labels
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = loss_by_hand(by_hand, x, y, training=False)
        changed = x + EPSILON * tf.sign(tape.gradient(loss, x))
        x = tf.concat([changed[: BATCH // 2], x[BATCH // 2 :]], 0)
        with tf.GradientTape() as tape:
            loss = loss_by_hand(by_hand, x, y, training=True)
        variables = by_hand.trainable_variables
        optimizer.apply(tape.gradient(loss, variables), variables)
        assert run(step, batch).loss == pytest.approx(float(loss), rel=1e-4)
    for ours, theirs in zip(step.model.keras.get_weights(), by_hand.get_weights(), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-5)


@pytest.mark.long
def test_pgd_raises_the_loss_more_than_a_random_change_and_less_than_a_larger_one_could():
    losses = {}
    for name, settings in {
        "plain": {},
        "fgsm": {"method": "fgsm", "epsilon": EPSILON},
        "pgd": {"method": "pgd", "epsilon": EPSILON},
        "still": {"method": "pgd", "epsilon": EPSILON, "step_size": 1e-9},
        "bound": {"method": "pgd", "epsilon": EPSILON, "clip": [-1e-9, 1e-9]},
        "wide": {"method": "pgd", "epsilon": 2 * EPSILON},
    }.items():
        losses[name] = run(make_step(**settings), next(batches())).loss
    assert losses["plain"] < losses["fgsm"] <= losses["pgd"] * 1.001 < losses["wide"]
    assert losses["still"] < losses["pgd"]
    # With bounds around 0 a value may only move towards them.
    assert losses["bound"] < losses["pgd"]


def test_the_changed_examples_of_parts_are_those_of_the_whole():
    settings = {"method": "pgd", "epsilon": EPSILON, "steps": 3, "ratio": 0.75}
    whole, *parts = (
        run(make_step(**settings), next(batches(*bounds))).loss
        for bounds in ((0, BATCH), (0, 3), (3, BATCH))
    )
    assert (3 * parts[0] + 5 * parts[1]) / BATCH == pytest.approx(whole, rel=1e-5)


@pytest.mark.parametrize("inputs", [["y"], ["x", "z"]])
def test_inputs_that_do_not_exist_are_refused(inputs):
    with pytest.raises(ConfigError, match="must name features"):
        make_step(method="fgsm", epsilon=EPSILON, inputs=inputs)


@pytest.mark.parametrize(
    "settings",
    [
        {"method": "fgsm"},
        {"epsilon": 0.1},
        {"method": "pgd", "epsilon": 0.1, "ratio": 1.5},
        {"method": "pgd", "epsilon": 0.1, "clip": [1.0, 0.0]},
        {"method": "pgd", "epsilon": 0.1, "steps": 0},
    ],
)
def test_settings_that_make_no_sense_are_refused(settings):
    with pytest.raises(ConfigError, match="adversarial"):
        AdversarialConfig(**settings)
