"""Adversarial training in both frameworks: its examples are those of a loop by hand."""

import copy

import numpy as np
import pytest

from edl_horovod.config.schema import AdversarialConfig
from edl_horovod.errors import ConfigError
from tests.jobs import training
from tests.later import LATER, later

if LATER:
    import keras
    import tensorflow as tf
    import torch
    from torch.nn.functional import mse_loss

    from tests.component.frameworks.both import steps
    from tests.component.frameworks.both.steps import batch_of, run

FRAMEWORKS = pytest.mark.parametrize("framework", [later("Keras"), later("Torch")])
BATCH, STEPS, EPSILON = 8, 5, 0.25
if LATER:

    class Keras(steps.Keras):
        batch_norm = False
        tolerance = 1e-3, 1e-5

        def __init__(self, step):
            self.model = keras.models.clone_model(step.model.keras)
            self.model.set_weights(step.model.keras.get_weights())
            self._optimizer = keras.optimizers.Adam(0.01)

        def _loss(self, x, y, *, training):
            errors = tf.square(self.model({"x": x}, training=training) - y)
            return tf.reduce_mean(errors) + tf.add_n(self.model.losses)

        def step(self, x, y):
            with tf.GradientTape() as tape:
                tape.watch(x)
                loss = self._loss(x, y, training=False)
            changed = x + EPSILON * tf.sign(tape.gradient(loss, x))
            x = tf.concat([changed[: BATCH // 2], x[BATCH // 2 :]], 0)
            with tf.GradientTape() as tape:
                loss = self._loss(x, y, training=True)
            variables = self.model.trainable_variables
            self._optimizer.apply(tape.gradient(loss, variables), variables)
            return float(loss)

    class Torch(steps.Torch):
        batch_norm = True
        tolerance = 1e-4, 1e-6

        def __init__(self, step):
            self.model = copy.deepcopy(step.model.runner.module)
            self._optimizer = torch.optim.Adam(self.model.parameters(), 0.01, weight_decay=1e-4)

        def step(self, x, y):
            x = x.clone().requires_grad_()
            loss = mse_loss(self.model.eval()({"x": x}), y)
            (gradient,) = torch.autograd.grad(loss, x)
            changed = x.detach() + EPSILON * gradient.sign()
            x = torch.cat([changed[: BATCH // 2], x.detach()[BATCH // 2 :]])
            loss = mse_loss(self.model.train()({"x": x}), y)
            self._optimizer.zero_grad()
            loss.backward()
            self._optimizer.step()
            return loss.item()


def make_step(framework, *, batch_norm=False, **settings):
    job = training(BATCH, adversarial=AdversarialConfig(**settings))
    return framework.make_step(job, params={"batch_norm": batch_norm})


def batches(framework, first=0, last=BATCH):
    random = np.random.default_rng(5)
    for _ in range(STEPS):
        x = random.normal(size=(BATCH, 4)).astype(np.float32)
        y = np.sin(x.sum(1, keepdims=True))
        yield batch_of(framework, {"x": x[first:last]}, y[first:last], first)


def first_loss(framework, *bounds, **settings):
    return run(make_step(framework, **settings), next(batches(framework, *bounds))).loss


@pytest.mark.long(after=1)
@FRAMEWORKS
def test_fgsm_trains_as_the_same_loop_by_hand(framework):
    settings = {"method": "fgsm", "epsilon": EPSILON, "ratio": 0.5}
    step = make_step(framework, batch_norm=framework.batch_norm, **settings)
    by_hand = framework(step)
    for batch in batches(framework):
        loss = by_hand.step(batch.features["x"], batch.labels)
        assert run(step, batch).loss == pytest.approx(
            loss, rel=1e-4 if framework is Keras else 1e-5
        )
    steps.assert_same_weights(framework, step, by_hand.model)


@pytest.mark.parametrize(
    "framework", [pytest.param(later("Keras"), marks=pytest.mark.long), later("Torch")]
)
def test_pgd_raises_the_loss_more_than_a_random_change_and_less_than_a_larger_one_could(framework):
    pgd = {"method": "pgd", "epsilon": EPSILON}
    losses = {
        name: first_loss(framework, **settings)
        for name, settings in {
            "plain": {},
            "fgsm": {"method": "fgsm", "epsilon": EPSILON},
            "pgd": pgd,
            "still": {**pgd, "step_size": 1e-9},
            "bound": {**pgd, "clip": [-1e-9, 1e-9]},
            "wide": {"method": "pgd", "epsilon": 2 * EPSILON},
        }.items()
    }
    assert losses["plain"] < losses["fgsm"] <= losses["pgd"] * 1.001 < losses["wide"]
    assert losses["still"] < losses["pgd"]
    # With bounds around 0 a value may only move towards them.
    assert losses["bound"] < losses["pgd"]


@pytest.mark.long
@FRAMEWORKS
def test_the_changed_examples_of_parts_are_those_of_the_whole(framework):
    settings = {"method": "pgd", "epsilon": EPSILON, "steps": 3, "ratio": 0.75}
    whole, *parts = (
        first_loss(framework, *bounds, **settings) for bounds in ((0, BATCH), (0, 3), (3, BATCH))
    )
    assert (3 * parts[0] + 5 * parts[1]) / BATCH == pytest.approx(whole, rel=1e-5)


@FRAMEWORKS
@pytest.mark.parametrize("inputs", [["y"], ["x", "z"]])
def test_inputs_that_do_not_exist_are_refused(framework, inputs):
    with pytest.raises(ConfigError, match=r"adversarial\.inputs") as caught:
        make_step(framework, method="fgsm", epsilon=EPSILON, inputs=inputs)
    assert caught.value.received == {"adversarial.inputs": inputs[-1]}


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
