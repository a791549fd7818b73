"""Phases of a Keras model: the same as a loop by hand, all or nothing, and their mistakes."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edl_horovod.config.schema import AdversarialConfig
from edl_horovod.errors import ConfigError, UserCodeError
from edl_horovod.frameworks.values import Batch
from edl_horovod.models.zoo import load_spec
from edl_horovod.spec import Phase
from tests.jobs import training
from tests.later import LATER
from tests.specs import with_methods

if LATER:
    import keras
    import tensorflow as tf

    from edl_horovod.frameworks.keras.framework import FRAMEWORK
    from edl_horovod.frameworks.keras.functional import take_examples

ZOO = str(Path(__file__).parents[3] / "zoo")
BATCH, STEPS = 8, 6
if LATER:
    SPEC = (
        {"x": tf.TensorSpec((None, 4), tf.float32), "z": tf.TensorSpec((None, 3), tf.float32)},
        tf.TensorSpec((None, 1), tf.float32),
    )


def loss_by_hand(phase, model, features):
    """The loss of `gan` whose generator reads its noise from the features."""
    score = model.critic(model.generator(features["z"], training=True), training=True)
    if phase == "generator":
        return tf.reduce_mean(tf.nn.softplus(-score))
    real = model.critic(features["x"], training=True)
    return tf.reduce_mean(tf.nn.softplus(score)) + tf.reduce_mean(tf.nn.softplus(-real))


def load(**methods):
    FRAMEWORK.begin(slot=0, seed=4)
    loaded = load_spec(ZOO, "gan", params={}, plain_models=FRAMEWORK.plain_models)
    return with_methods(loaded, **methods)


def make_step(loaded=None, train=None, **settings):
    return FRAMEWORK.step(loaded or load(), SPEC, training(BATCH, train, **settings))


def batches():
    random = np.random.default_rng(5)
    for _ in range(STEPS):
        x, z = (random.normal(size=(BATCH, n)).astype(np.float32) for n in (4, 3))
        places = np.arange(BATCH)
        features = {"x": tf.constant(x), "z": tf.constant(z)}
        yield Batch(features, tf.zeros((BATCH, 1)), BATCH, None, lambda places=places: places)


def run(step, batch):
    return step.step(batch, wants_change=False, is_alone=True, salt=0)


def values_of(step):
    return {name: np.array(variable.numpy()) for name, variable in step.variables.items()}


def test_phases_train_as_the_same_loop_by_hand():
    step = make_step(load(create_phase_loss=loss_by_hand))
    by_hand = load().spec.create_model()
    by_hand.set_weights(step.model.keras.get_weights())
    optimizers = {name: keras.optimizers.SGD(0.05, 0.5) for name in ("critic", "generator")}
    for number, batch in enumerate(batches()):
        for name in ("critic", "critic", "generator")[: 3 if number % 2 == 0 else 2]:
            variables = getattr(by_hand, name).trainable_variables
            with tf.GradientTape() as tape:
                loss = loss_by_hand(name, by_hand, batch.features)
            optimizers[name].apply(tape.gradient(loss, variables), variables)
        sums = run(step, batch)
        assert set(sums.metrics) == {"critic_loss", *(["generator_loss"] * (number % 2 == 0))}
        assert sums.metrics[f"{name}_loss"] == pytest.approx(float(loss), rel=1e-5)
    for ours, theirs in zip(step.model.keras.get_weights(), by_hand.get_weights(), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("num_examples", [BATCH, 3, 1])
def test_new_records_divide_the_step_among_the_repeats(num_examples):
    seen = []

    def loss(phase, model, features):
        tf.py_function(lambda x: seen.append((phase, x.numpy())), [features["x"]], [])
        return tf.reduce_mean(features["x"]) + 0 * loss_by_hand(phase, model, features)

    critic = {"repeats": 2, "records": "new"}
    step = make_step(load(create_phases=phases(critic=critic), create_phase_loss=loss))
    whole, *_ = batches()
    run(step, whole)  # The first step also tries the losses on repeated examples.
    seen.clear()
    part = take_examples(whole, np.arange(num_examples))
    sums = run(step, replace(part, places=lambda: 2 + np.arange(num_examples)))
    x = part.features["x"].numpy()
    parts = [("critic", x[0::2]), ("critic", x[1::2]), ("generator", x)]
    parts = [(phase, rows) for phase, rows in parts if len(rows)]
    for (phase, found), (expected_phase, expected) in zip(seen, parts, strict=True):
        assert phase == expected_phase
        np.testing.assert_array_equal(found, expected)
    assert sums.num_examples == num_examples
    assert sums.metrics["critic_loss"] == pytest.approx(x.mean(), rel=1e-5)


def test_taken_examples_are_the_chosen_rows_of_sparse_ragged_and_dense_features():
    dense = np.arange(8.0).reshape(4, 2)
    features = {
        "dense": tf.constant(dense),
        "ragged": tf.ragged.constant([[1], [2, 3], [], [4]]),
        "sparse": tf.sparse.from_dense(dense),
    }
    taken = take_examples(Batch(features, None, 4, tf.range(4)), np.array([1, 3]))
    assert (taken.num_examples, taken.labels, taken.weights.numpy().tolist()) == (2, None, [1, 3])
    np.testing.assert_array_equal(taken.features["dense"], dense[[1, 3]])
    assert taken.features["ragged"].to_list() == [[2, 3], [4]]
    np.testing.assert_array_equal(tf.sparse.to_dense(taken.features["sparse"]), dense[[1, 3]])


@pytest.mark.long
def test_a_phase_that_is_not_finite_leaves_the_step_without_effect():
    def loss(phase, model, features):
        factor = tf.where(tf.reduce_max(features["x"]) > 100.0, np.nan, 1.0)
        return loss_by_hand(phase, model, features) * (factor if phase == "generator" else 1.0)

    step = make_step(load(create_phase_loss=loss))
    good, *_ = batches()
    assert run(step, good).is_finite
    before = values_of(step)
    good_again = run(step, good)  # The generator is not due.
    assert good_again.is_finite
    for name, variable in step.variables.items():
        variable.assign(before[name])
    step.variables["phases"].assign([4, 2])
    before["phases"] = np.array([4, 2])
    bad = {"x": good.features["x"] + 200.0, "z": good.features["z"]}
    assert not run(step, Batch(bad, good.labels, BATCH, None, good.places)).is_finite
    for name, value in values_of(step).items():
        np.testing.assert_array_equal(value, before[name], err_msg=name)


def test_the_noise_of_an_example_follows_from_its_place_and_is_new_in_each_pass():
    drawn = []

    def loss(phase, model, features, noise):
        rows = noise(3)
        tf.py_function(lambda rows: drawn.append(rows.numpy()), [rows], [])
        score = model.critic(model.generator(rows, training=True), training=True)
        return tf.reduce_mean(score + model.critic(features["x"]))

    step = make_step(load(create_phase_loss=loss))
    batch, *_ = batches()
    start = values_of(step)
    run(step, batch)  # The first step also tries the losses on repeated examples.
    half = {name: value[4:] for name, value in batch.features.items()}
    for name, variable in step.variables.items():
        variable.assign(start[name])
    drawn.clear()
    run(step, batch)
    whole = list(drawn)
    assert len({rows.tobytes() for rows in whole}) == 3
    for name, variable in step.variables.items():
        variable.assign(start[name])
    drawn.clear()
    run(step, Batch(half, batch.labels[4:], 4, None, lambda: np.arange(4, 8)))
    for rows, part in zip(whole, drawn, strict=True):
        np.testing.assert_array_equal(rows[4:], part)


def test_noise_needs_one_example_from_each_record():
    step = make_step()
    batch, *_ = batches()
    with pytest.raises(UserCodeError, match="exactly one example from each record"):
        run(step, Batch(batch.features, batch.labels, BATCH, None, lambda: np.arange(3)))


def test_a_loss_that_is_a_sum_is_refused():
    def loss(phase, model, features):
        return tf.reduce_sum(model(features) ** 2) + tf.reduce_sum(model.generator(features["z"]))

    step = make_step(load(create_phase_loss=loss))
    batch, *_ = batches()
    with pytest.raises(UserCodeError, match="mean over a batch"):
        run(step, batch)


def phases(**changes):
    def create_phases(model):
        parts = {"critic": model.critic, "generator": model.generator}
        variables = {name: part.trainable_variables for name, part in parts.items()}
        return [
            Phase(**{"name": name, "variables": variables[name]} | changes.get(name, {}))
            for name in parts
        ]

    return create_phases


@pytest.mark.parametrize(
    ("methods", "message"),
    [
        ({"create_phases": lambda model: []}, "list of edl_horovod.Phase"),
        ({"create_phases": lambda model: ["critic"]}, "list of edl_horovod.Phase"),
        ({"create_phases": phases(critic={"variables": []})}, "has no variables"),
        ({"create_phases": phases(critic={"name": "generator"})}, "two phases of one name"),
        ({"create_phases": phases(critic={"name": "my critic"})}, "identifier"),
        ({"create_phases": phases(critic={"repeats": 0})}, "repeats of the phase critic"),
        ({"create_phases": phases(critic={"every": 1.5})}, "every of the phase critic"),
        ({"create_phases": phases(critic={"records": "old"})}, "records of the phase critic"),
        (
            {"create_phases": phases(critic={"every": 2}, generator={"every": 3})},
            "one of the phases must run in every step",
        ),
        (
            {"create_phases": lambda model: [Phase("all", [*model.weights, keras.Variable(1.0)])]},
            "not a trainable variable of the model",
        ),
        (
            {"create_phases": lambda model: [Phase("all", model.critic.trainable_variables * 2)]},
            "twice in the phase all",
        ),
        ({"create_optimizer": lambda: keras.optimizers.SGD()}, "a dict with one optimizer"),
        (
            {"create_optimizer": lambda: dict.fromkeys(("critic", "generator"), 3)},
            "one optimizer for several phases",
        ),
        (
            {"create_optimizer": lambda: {"critic": keras.optimizers.SGD(), "generator": "sgd"}},
            "must return a Keras 3 optimizer",
        ),
    ],
)
def test_a_mistake_in_the_phases_is_one_message(methods, message):
    with pytest.raises(UserCodeError, match=message):
        make_step(load(**methods))


@pytest.mark.parametrize(
    ("key", "settings"),
    [
        ("train.class_weight", {"train": {"class_weight": [1.0, 2.0]}}),
        ("adversarial", {"adversarial": AdversarialConfig(method="fgsm", epsilon=0.1)}),
    ],
)
def test_a_setting_that_phases_do_not_have_is_refused(key, settings):
    with pytest.raises(ConfigError, match=key):
        make_step(**settings)
