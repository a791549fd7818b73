"""Phases in both frameworks: the same as a loop by hand, all or nothing, and their mistakes."""

import copy
import time
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest

from edl_horovod.config.schema import AdversarialConfig
from edl_horovod.errors import ConfigError, UserCodeError
from edl_horovod.frameworks.values import Batch
from edl_horovod.spec import Phase
from tests.jobs import training
from tests.later import LATER, later

if LATER:
    import keras
    import tensorflow as tf
    import torch

    from edl_horovod.frameworks.keras import functional
    from edl_horovod.frameworks.torch import structures
    from tests.component.frameworks.both import steps
    from tests.component.frameworks.both.steps import batch_of, run, values_of
    from tests.torch_ring import Reducer

FRAMEWORKS = pytest.mark.parametrize("framework", [later("Keras"), later("Torch")])
BATCH, STEPS = 8, 6
NAMES = ("critic", "generator")


class LostMember(Exception):
    pass


if LATER:

    class FailingReducer(Reducer):
        """A ring of one rank that breaks in some passes."""

        failing: ClassVar[set[int]] = set()
        count = 0

        def __init__(self, parameters, *_):
            super().__init__(parameters, None, 0)

        def finish(self, small, weight):
            FailingReducer.count += 1
            if FailingReducer.count in FailingReducer.failing:
                raise LostMember
            for parameter in self._parameters:
                if parameter.grad is not None:
                    parameter.grad *= self._weight / weight
            return small

    class Keras(steps.Keras):
        example = (
            {"x": tf.TensorSpec((None, 4), tf.float32), "z": tf.TensorSpec((None, 3), tf.float32)},
            tf.TensorSpec((None, 1), tf.float32),
        )
        mean, softplus = staticmethod(tf.reduce_mean), staticmethod(tf.nn.softplus)
        take_examples = staticmethod(functional.take_examples)
        tolerance = 1e-4, 1e-6

        def __init__(self, step):
            self.model = self.load("gan").spec.create_model()
            self.model.set_weights(step.model.keras.get_weights())
            self._optimizers = {name: keras.optimizers.SGD(0.05, 0.5) for name in NAMES}

        def train(self, name, features):
            variables = getattr(self.model, name).trainable_variables
            with tf.GradientTape() as tape:
                loss = loss_by_hand(Keras)(name, self.model, features)
            self._optimizers[name].apply(tape.gradient(loss, variables), variables)
            return float(loss)

        @staticmethod
        def call(net, x):
            return net(x, training=True)

        @staticmethod
        def note(function, rows):
            """Call a function with the values that are there when a step runs."""
            tf.py_function(lambda rows: function(rows.numpy()), [rows], [])

        @staticmethod
        def variables_of(net):
            return net.trainable_variables

    class Torch(steps.Torch):
        reducer = FailingReducer
        example = Batch(
            {"x": torch.ones(BATCH, 4), "z": torch.ones(BATCH, 3)}, torch.ones(BATCH, 1), BATCH
        )
        mean, softplus = staticmethod(torch.mean), staticmethod(torch.nn.functional.softplus)
        take_examples = staticmethod(structures.take_examples)
        tolerance = 1e-5, 1e-6

        def __init__(self, step):
            self.model = copy.deepcopy(step.model.runner.module).train()
            self._optimizers = {
                name: torch.optim.SGD(getattr(self.model, name).parameters(), 0.05, 0.5)
                for name in NAMES
            }

        def train(self, name, features):
            self.model.zero_grad()
            loss = loss_by_hand(Torch)(name, self.model, features)
            loss.backward()
            self._optimizers[name].step()
            return loss.item()

        @staticmethod
        def call(net, x):
            return net(x)

        @staticmethod
        def note(function, rows):
            function(rows.numpy())

        @staticmethod
        def variables_of(net):
            return list(net.parameters())


def loss_by_hand(framework):
    """The loss of `gan` whose generator reads its noise from the features."""
    mean, softplus, call = framework.mean, framework.softplus, framework.call

    def loss(phase, model, features):
        score = call(model.critic, call(model.generator, features["z"]))
        if phase == "generator":
            return mean(softplus(-score))
        return mean(softplus(score)) + mean(softplus(-call(model.critic, features["x"])))

    return loss


def make_step(framework, train=None, settings=None, **methods):
    FailingReducer.failing, FailingReducer.count = set(), 0
    job = training(BATCH, train, **(settings or {}))
    return framework.make_step(job, "gan", **methods)


def batches(framework):
    random = np.random.default_rng(5)
    for _ in range(STEPS):
        x, z = (random.normal(size=(BATCH, n)).astype(np.float32) for n in (4, 3))
        yield batch_of(framework, {"x": x, "z": z}, np.zeros((BATCH, 1), np.float32))


def phases(framework, names=NAMES, **changes):
    def create_phases(model):
        variables = {name: framework.variables_of(getattr(model, name)) for name in names}
        return [
            Phase(**{"name": name, "variables": variables[name]} | changes.get(name, {}))
            for name in names
        ]

    return create_phases


@pytest.mark.long(after=1)
@pytest.mark.parametrize(
    ("framework", "is_alone"),
    [(later("Keras"), True), (later("Torch"), True), (later("Torch"), False)],
)
def test_phases_train_as_the_same_loop_by_hand(framework, is_alone):
    step = make_step(framework, create_phase_loss=loss_by_hand(framework))
    by_hand = framework(step)
    for number, batch in enumerate(batches(framework)):
        for name in ("critic", "critic", "generator")[: 3 if number % 2 == 0 else 2]:
            loss = by_hand.train(name, batch.features)
        sums = run(step, batch, is_alone=is_alone)
        assert set(sums.metrics) == {"critic_loss", *(["generator_loss"] * (number % 2 == 0))}
        assert sums.metrics[f"{name}_loss"] == pytest.approx(loss, rel=1e-5)
    steps.assert_same_weights(framework, step, by_hand.model)
    if framework is Torch:
        assert all(parameter.requires_grad for parameter in Torch.model_of(step).parameters())


@pytest.mark.long(after=1)
@FRAMEWORKS
@pytest.mark.parametrize(
    ("num_examples", "names"), [(BATCH, NAMES), (3, NAMES), (3, NAMES[::-1]), (1, NAMES[::-1])]
)
def test_new_records_divide_the_step_among_the_repeats(framework, num_examples, names):
    seen = []

    def loss(phase, model, features):
        framework.note(lambda rows: seen.append((phase, rows)), features["x"])
        return framework.mean(features["x"]) + 0 * loss_by_hand(framework)(phase, model, features)

    create_phases = phases(framework, names, critic={"repeats": 2, "records": "new"})
    step = make_step(framework, create_phases=create_phases, create_phase_loss=loss)
    whole, *_ = batches(framework)
    run(step, whole)  # The first step also tries the losses on repeated examples.
    seen.clear()
    part = framework.take_examples(whole, np.arange(num_examples))
    sums = run(step, replace(part, places=lambda: 2 + np.arange(num_examples)))
    x = part.features["x"].numpy()
    rows = {"critic": (x[0::2], x[1::2]), "generator": (x,)}
    expected = [(phase, part) for phase in names for part in rows[phase] if len(part)]
    assert [phase for phase, _ in seen] == [phase for phase, _ in expected]
    for (_, ours), (_, part) in zip(seen, expected, strict=True):
        np.testing.assert_array_equal(ours, part)
    assert sums.num_examples == num_examples
    assert sums.metrics["critic_loss"] == pytest.approx(x.mean(), rel=1e-5)


def test_taken_examples_are_the_chosen_rows_of_sparse_ragged_and_dense_features():
    dense = np.arange(8.0).reshape(4, 2)
    features = {
        "dense": tf.constant(dense),
        "ragged": tf.ragged.constant([[1], [2, 3], [], [4]]),
        "sparse": tf.sparse.from_dense(dense),
    }
    taken = Keras.take_examples(Batch(features, None, 4, tf.range(4)), np.array([1, 3]))
    assert (taken.num_examples, taken.labels, taken.weights.numpy().tolist()) == (2, None, [1, 3])
    np.testing.assert_array_equal(taken.features["dense"], dense[[1, 3]])
    assert taken.features["ragged"].to_list() == [[2, 3], [4]]
    np.testing.assert_array_equal(tf.sparse.to_dense(taken.features["sparse"]), dense[[1, 3]])


def assert_unchanged(step, before):
    for name, value in values_of(step.variables).items():
        np.testing.assert_array_equal(value, before[name], err_msg=name)


def set_back(step, values):
    for name, variable in step.variables.items():
        variable.assign(values[name])


@pytest.mark.long
def test_a_phase_that_is_not_finite_leaves_the_step_without_effect():
    def loss(phase, model, features):
        factor = tf.where(tf.reduce_max(features["x"]) > 100.0, np.nan, 1.0)
        factor = factor if phase == "generator" else 1.0
        return loss_by_hand(Keras)(phase, model, features) * factor

    step = make_step(Keras, create_phase_loss=loss)
    good, *_ = batches(Keras)
    assert run(step, good).is_finite
    before = values_of(step.variables)
    assert run(step, good).is_finite  # The generator is not due.
    set_back(step, before)
    step.variables["phases"].assign([4, 2])
    before["phases"] = np.array([4, 2])
    bad = {"x": good.features["x"] + 200.0, "z": good.features["z"]}
    assert not run(step, replace(good, features=bad)).is_finite
    assert_unchanged(step, before)


@pytest.mark.parametrize("failing", [1, 2, 3])
def test_a_member_that_is_lost_in_any_phase_leaves_the_step_without_effect(failing):
    step, undisturbed = make_step(Torch), make_step(Torch)
    first, second, third, *_ = batches(Torch)
    for batch in (first, second):
        run(step, batch)
    before = values_of(step.variables)
    FailingReducer.failing, FailingReducer.count = {failing}, 0
    began = time.monotonic()
    with pytest.raises(LostMember):
        run(step, third, is_alone=False)
    assert 0 < step.waited_seconds() < time.monotonic() - began
    assert_unchanged(step, before)
    FailingReducer.failing = set()
    again = run(step, third)
    for batch in (first, second):
        run(undisturbed, batch)
    assert again.loss == pytest.approx(run(undisturbed, third).loss, rel=1e-6)


@pytest.mark.long(after=1)
@FRAMEWORKS
def test_the_noise_of_an_example_follows_from_its_place_and_is_new_in_each_pass(framework):
    drawn = []

    def loss(phase, model, features, noise):
        rows = noise(3)
        framework.note(drawn.append, rows)
        score = framework.call(model.critic, framework.call(model.generator, rows))
        return framework.mean(score) + framework.mean(model.critic(features["x"]))

    step = make_step(framework, create_phase_loss=loss)
    batch, *_ = batches(framework)
    start = values_of(step.variables)
    run(step, batch)  # The first step also tries the losses on repeated examples.
    half = {name: value[4:] for name, value in batch.features.items()}
    half = replace(batch, features=half, labels=batch.labels[4:], num_examples=4)
    rows_of = []
    for examples in (batch, replace(half, places=lambda: np.arange(4, 8))):
        set_back(step, start)
        drawn.clear()
        run(step, examples)
        rows_of.append(list(drawn))
    whole, parts = rows_of
    assert len({rows.tobytes() for rows in whole}) == 3
    for rows, part in zip(whole, parts, strict=True):
        np.testing.assert_array_equal(rows[4:], part)


@FRAMEWORKS
def test_noise_needs_one_example_from_each_record(framework):
    step = make_step(framework)
    batch, *_ = batches(framework)
    with pytest.raises(UserCodeError, match="3 records, 8 examples"):
        run(step, replace(batch, places=lambda: np.arange(3)))


def test_a_loss_that_is_a_sum_is_refused():
    def loss(phase, model, features):
        return tf.reduce_sum(model(features) ** 2) + tf.reduce_sum(model.generator(features["z"]))

    step = make_step(Keras, create_phase_loss=loss)
    with pytest.raises(UserCodeError, match=r"ops\.mean"):
        run(step, next(batches(Keras)))


def keras_phases(**changes):
    return {"create_phases": lambda model: phases(Keras, **changes)(model)}


@pytest.mark.long(after=1)
@pytest.mark.parametrize(
    ("methods", "message"),
    [
        ({"create_phases": lambda model: []}, r"edl_horovod\.Phase"),
        ({"create_phases": lambda model: ["critic"]}, r"edl_horovod\.Phase"),
        (keras_phases(critic={"variables": []}), "no variables"),
        (keras_phases(critic={"name": "generator"}), "two phases"),
        (keras_phases(critic={"name": "my critic"}), "identifier"),
        (keras_phases(critic={"repeats": 0}), "repeats .*critic"),
        (keras_phases(critic={"every": 1.5}), "every .*critic"),
        (keras_phases(critic={"records": "old"}), "records .*critic"),
        (keras_phases(critic={"every": 2}, generator={"every": 3}), "every step"),
        (
            {"create_phases": lambda model: [Phase("all", [*model.weights, keras.Variable(1.0)])]},
            "trainable variable",
        ),
        (
            {"create_phases": lambda model: [Phase("all", model.critic.trainable_variables * 2)]},
            "twice .*all",
        ),
        ({"create_optimizer": lambda: keras.optimizers.SGD()}, "a dict"),
        ({"create_optimizer": lambda: dict.fromkeys(NAMES, 3)}, "several phases"),
        (
            {"create_optimizer": lambda: {"critic": keras.optimizers.SGD(), "generator": "sgd"}},
            "Keras 3",
        ),
    ],
)
def test_a_mistake_in_the_phases_is_one_message(methods, message):
    with pytest.raises(UserCodeError, match=message):
        make_step(Keras, **methods)


def test_an_optimizer_of_other_variables_is_refused():
    def create_optimizer(model):
        return {name: torch.optim.SGD(model.parameters(), 0.1) for name in NAMES}

    with pytest.raises(UserCodeError, match=r"\d+ parameters; the phase"):
        make_step(Torch, create_optimizer=create_optimizer)


@pytest.mark.parametrize(
    ("key", "settings"),
    [
        ("train.class_weight", {"train": {"class_weight": [1.0, 2.0]}}),
        (
            "adversarial",
            {"settings": {"adversarial": AdversarialConfig(method="fgsm", epsilon=0.1)}},
        ),
    ],
)
def test_a_setting_that_phases_do_not_have_is_refused(key, settings):
    with pytest.raises(ConfigError, match=key):
        make_step(Keras, **settings)
