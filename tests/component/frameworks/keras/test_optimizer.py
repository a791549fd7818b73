"""Keras' optimizers: names and groups of variables, and the scaled learning rate."""

from types import SimpleNamespace

import numpy as np
import pytest

from edl_horovod.errors import UserCodeError
from tests.later import LATER, later

if LATER:
    import keras
    import tensorflow as tf

    from edl_horovod.frameworks.keras.model import by_name
    from edl_horovod.frameworks.keras.optimizer import ScaledLearningRate, groups_of, slots_of

RATE = 0.1
FACTORS = [1.0, 1.5, 3.0, 3.0, 2.0]
START = [[1.0, -2.0], [0.5, 3.0]]


if LATER:

    class Own(keras.optimizers.Adam):
        """Changes variables in a way that nobody else knows."""


def groups(optimizer, **dense):
    x = keras.Input((4,))
    hidden = keras.layers.BatchNormalization()(keras.layers.Dense(3, **dense)(x))
    model = keras.Model(x, keras.layers.Dense(300)(hidden))
    optimizer.build(model.trainable_variables)
    variables = by_name([*model.variables, *optimizer.variables])
    return groups_of(variables, model, optimizer, model.trainable_variables), variables


def test_variables_of_one_path_get_numbers_and_each_is_there_once():
    variables = [SimpleNamespace(path=path, value=object()) for path in ("a", "b", "a", "a")]
    assert list(by_name([*variables, variables[0]])) == ["a", "b", "a:1", "a:2"]


@pytest.mark.parametrize(
    ("optimizer", "num_slots"),
    [
        (later("keras.optimizers.SGD()"), 0),
        (later("keras.optimizers.SGD(momentum=0.9)"), 1),
        (later("keras.optimizers.Adam(amsgrad=True, use_ema=True)"), 4),
        (later("keras.optimizers.RMSprop(centered=True, momentum=0.1)"), 3),
        (later("keras.optimizers.LossScaleOptimizer(keras.optimizers.AdamW())"), 2),
        (later("keras.optimizers.Nadam()"), 2),
        (later("keras.optimizers.Ftrl()"), 2),
    ],
)
def test_a_variable_goes_row_by_row_with_its_slots(optimizer, num_slots):
    by_rows, variables = groups(optimizer)
    kernel = next(group for group in by_rows if "kernel" in group.names[0])
    assert kernel.is_by_rows
    assert len(kernel.names) == 1 + num_slots
    assert {tuple(variables[name].shape) for name in kernel.names} == {(4, 3)}
    grouped = [name for group in by_rows for name in group.names]
    assert len(grouped) == len(set(grouped))
    ungrouped = set(variables) - set(grouped)
    assert all(variables[name].shape.rank == 0 for name in ungrouped)
    assert any("learning_rate" in name for name in ungrouped)


@pytest.mark.parametrize(
    "optimizer",
    [later("keras.optimizers.SGD()"), later("keras.optimizers.SGD(Decaying(0.1))")],
    ids=["rate", "schedule"],
)
@pytest.mark.parametrize("use_bias", [False, True])
def test_an_optimizer_without_slots_has_none_whatever_the_size_of_the_model(optimizer, use_bias):
    x = keras.Input((4,))
    model = keras.Model(x, keras.layers.Dense(3, use_bias=use_bias)(x))
    optimizer.build(model.trainable_variables)
    assert not any(slots_of(optimizer, model.trainable_variables))


@pytest.mark.parametrize(
    "optimizer",
    [later(f"keras.optimizers.{name}()") for name in ("Lamb", "Muon", "Adafactor")],
)
def test_with_norms_over_a_variable_it_goes_whole(optimizer):
    all_groups, _ = groups(optimizer)
    trained = [group for group in all_groups if "kernel" in group.names[0]]
    assert len(trained) == 2
    assert not any(group.is_by_rows for group in trained)
    assert all(len(group.names) > 1 for group in trained)


def test_a_variable_with_a_constraint_goes_whole():
    all_groups, _ = groups(keras.optimizers.Adam(), kernel_constraint=keras.constraints.MaxNorm(1))
    by_rows = {group.names[0]: group.is_by_rows for group in all_groups}
    assert [is_by_rows for name, is_by_rows in by_rows.items() if "kernel" in name] == [False, True]


@pytest.mark.parametrize(
    "optimizer",
    [
        later("Own()"),
        # Gradients that are added up over steps may be bounded together.
        later("keras.optimizers.Adam(gradient_accumulation_steps=2)"),
    ],
)
def test_what_else_an_optimizer_looks_at_nobody_knows(optimizer):
    assert groups(optimizer)[0] == []


def plain(name):
    """Make an optimizer of a rate."""
    return lambda rate: getattr(keras.optimizers, name)(learning_rate=rate)


if LATER:

    class Decaying(keras.optimizers.schedules.LearningRateSchedule):
        """A schedule of the user's, times a constant."""

        def __init__(self, rate):
            self._rate = rate

        def __call__(self, step):
            return self._rate / (1.0 + tf.cast(step, tf.float32))


def gradients(step):
    return [tf.constant(np.random.default_rng(step).normal(size=(2, 2)), tf.float32)]


def set_rate(optimizer, rate):
    """What a user does between two steps to train with another rate."""
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    schedule = vars(inner)["_learning_rate"]
    if isinstance(schedule, Decaying):
        inner.learning_rate = Decaying(rate)
    elif callable(schedule) and not isinstance(schedule, keras.Variable):
        inner.learning_rate = lambda: tf.constant(rate)
    else:
        inner.learning_rate = rate


OPTIMIZERS = {
    "sgd": plain("SGD"),
    "momentum": lambda rate: keras.optimizers.SGD(rate, momentum=0.9),
    "adam": plain("Adam"),
    "decay": lambda rate: keras.optimizers.AdamW(rate, weight_decay=0.1),
    "rmsprop": plain("RMSprop"),
    "adagrad": plain("Adagrad"),
    "adafactor": plain("Adafactor"),
    "ftrl": plain("Ftrl"),
    "lion": plain("Lion"),
    "loss scale": lambda rate: keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(rate)),
    "schedule": lambda rate: keras.optimizers.Adam(Decaying(rate)),
    "function": lambda rate: keras.optimizers.SGD(lambda: tf.constant(rate)),
}


@pytest.mark.long(after=1)
@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=list(OPTIMIZERS))
def test_each_step_is_that_of_the_optimizer_with_that_rate(make):
    ours, expected = keras.Variable(START), keras.Variable(START)
    optimizer, other = make(RATE), make(RATE)
    rate = ScaledLearningRate(optimizer, label="m")
    optimizer.build([ours])
    other.build([expected])
    names = [variable.path for variable in optimizer.variables]

    @tf.function
    def step(gradient):
        def change():
            with rate.applied():
                optimizer.apply_gradients([(gradient, ours)])
            return tf.constant(True)

        return tf.cond(
            tf.reduce_all(tf.math.is_finite(gradient)), change, lambda: tf.constant(False)
        )

    for number, factor in enumerate(FACTORS):
        rate.scale(factor)
        step(*gradients(number))
        set_rate(other, RATE * factor)
        other.apply_gradients([(*gradients(number), expected)])
        np.testing.assert_allclose(ours.numpy(), expected.numpy(), rtol=1e-5)

    assert [variable.path for variable in optimizer.variables] == names
    if make is OPTIMIZERS["adam"]:
        assert float(optimizer.learning_rate) == np.float32(RATE)


def test_a_callback_that_sets_the_rate_finds_and_changes_its_own_value():
    variable = keras.Variable([0.0])
    optimizer = keras.optimizers.SGD(RATE)
    rate = ScaledLearningRate(optimizer, label="m")
    optimizer.build([variable])

    @tf.function
    def step():
        with rate.applied():
            optimizer.apply_gradients([(tf.constant([-1.0]), variable)])

    rate.scale(4.0)
    step()
    assert float(optimizer.learning_rate) == np.float32(RATE)
    optimizer.learning_rate = RATE / 2
    step()
    assert float(optimizer.learning_rate) == np.float32(RATE / 2)
    np.testing.assert_allclose(variable.numpy(), [4 * RATE + 4 * RATE / 2], rtol=1e-6)


def test_an_optimizer_that_keeps_its_rate_elsewhere_is_refused_by_name():
    class Odd(keras.optimizers.SGD):
        def __init__(self):
            super().__init__(RATE)
            self._learning_rate = None

    with pytest.raises(UserCodeError, match=r" m .*Odd"):
        ScaledLearningRate(Odd(), label="m")
