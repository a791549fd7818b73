"""A multiplied learning rate is what the optimizer would do with that rate, whatever it is."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from edl_horovod.errors import UserCodeError
from edl_horovod.frameworks.keras.learning_rate import ScaledLearningRate

RATE = 0.1
FACTORS = [1.0, 1.5, 3.0, 3.0, 2.0]
START = [[1.0, -2.0], [0.5, 3.0]]


def plain(make):
    """Make an optimizer of a rate."""
    return lambda rate: make(learning_rate=rate)


class Decaying(keras.optimizers.schedules.LearningRateSchedule):
    """A schedule of the user's, times a constant."""

    def __init__(self, rate):
        self._rate = rate

    def __call__(self, step):
        return self._rate / (1.0 + tf.cast(step, tf.float32))


OPTIMIZERS = {
    "sgd": plain(keras.optimizers.SGD),
    "momentum": lambda rate: keras.optimizers.SGD(rate, momentum=0.9),
    "adam": plain(keras.optimizers.Adam),
    "decay": lambda rate: keras.optimizers.AdamW(rate, weight_decay=0.1),
    "rmsprop": plain(keras.optimizers.RMSprop),
    "adagrad": plain(keras.optimizers.Adagrad),
    "adafactor": plain(keras.optimizers.Adafactor),
    "ftrl": plain(keras.optimizers.Ftrl),
    "lion": plain(keras.optimizers.Lion),
    "loss scale": lambda rate: keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(rate)),
    "schedule": lambda rate: keras.optimizers.Adam(Decaying(rate)),
    "function": lambda rate: keras.optimizers.SGD(lambda: tf.constant(rate)),
}


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


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=list(OPTIMIZERS))
def test_each_step_is_that_of_the_optimizer_with_that_rate(make):
    ours, theirs = keras.Variable(START), keras.Variable(START)
    optimizer, other = make(RATE), make(RATE)
    rate = ScaledLearningRate(optimizer, label="m")
    optimizer.build([ours])
    other.build([theirs])
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
        other.apply_gradients([(*gradients(number), theirs)])
        np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-5)

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

    with pytest.raises(UserCodeError, match=r"optimizer of m .*Odd.*elastic.batching=global"):
        ScaledLearningRate(Odd(), label="m")
