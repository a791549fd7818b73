"""Lines of model files for TensorFlow 1, Keras 2 and NumPy: what is said of each."""

import re
from pathlib import Path

import numpy as np
import pytest

from edl_horovod.errors import UserCodeError
from edl_horovod.models.calling import user_code
from tests.later import LATER

if LATER:
    import keras
    import tensorflow as tf

    from edl_horovod.frameworks.keras import keras_2

    keras_2.install()
X = np.float32([[1, 2]])


def in_a_layer(line):
    class Layer(keras.layers.Layer):
        def call(self, x):
            return eval(line, {"tf": tf, "keras": keras, "x": x})

    return Layer()(keras.Input((2,)))


def in_a_step(line):
    def step(x, labels):
        return eval(line, {"tf": tf, "keras": keras, "x": x, "labels": labels})

    return tf.function(step)(tf.constant(X), tf.constant([1, 0], tf.int32))


def two_inputs():
    inputs = [keras.Input((2,)), keras.Input((2,))]
    return keras.Model(inputs, keras.layers.Add()(inputs))


def at_once(line):
    return eval(line, {"tf": tf, "keras": keras, "x": X, "two_inputs": two_inputs})


@pytest.mark.parametrize(
    ("run", "line", "hint"),
    [
        (at_once, "tf.train.GradientDescentOptimizer(0.1)", "keras.optimizers.SGD"),
        (at_once, "tf.train.AdamOptimizer()", "use one of Keras 3"),
        (at_once, "tf.placeholder(tf.float32)", "Write keras.Input"),
        (at_once, "tf.layers.dense(x, 3)", "Write keras.layers"),
        (at_once, "tf.log(x)", "Write tf.math.log"),
        (at_once, "tf.Session()", "Leave it out: the job runs the steps"),
        (at_once, "keras.optimizers.SGD(lr=0.1)", "Write learning_rate instead of lr"),
        (at_once, "keras.optimizers.Adam(decay=0.1)", "Write a schedule as learning_rate"),
        (at_once, "keras.layers.Dense(2, batch_input_shape=(4, 2))", "keras.Input(batch_shape"),
        (at_once, "keras.Sequential()._set_inputs(x)", "Leave it out: the job runs the model"),
        (in_a_step, "labels.flatten()", "write tf.reshape(x, [-1])"),
        (in_a_step, "x.astype(float)", "write tf.cast(x, dtype)"),
        (in_a_step, "x.mean()", "write tf.reduce_mean(x)"),
        (in_a_step, "x.numpy()", "leave out .numpy()"),
        (in_a_step, "tf.equal(tf.argmax(x, 1), labels)", "one type: tf.cast(labels, tf.int64)"),
        (in_a_layer, "x.flatten()", "write tf.reshape(x, [-1])"),
        (at_once, "keras.layers.Dense(2)({'image': tf.constant(x)})", "take them by name"),
        (at_once, "keras.layers.Dense(2)({'image': keras.Input((2,))})", "take them by name"),
        (at_once, "two_inputs()({'a': x, 'b': x})", "keras.Input(..., name='image')"),
        (at_once, "keras.Sequential([keras.layers.Dense(2)])({'a': x})", "take them by name"),
    ],
)
def test_an_error_says_what_to_write_instead(run, line, hint):
    with (
        pytest.raises(UserCodeError, match=re.escape(hint)),
        user_code("It", root=Path("/nowhere")),
    ):
        run(line)
