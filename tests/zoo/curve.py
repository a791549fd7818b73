"""A small model whose loss of every step is the same on any ring, at a pace that allows changes."""

import time
from pathlib import Path

import keras
import tensorflow as tf

from edl_horovod import ElasticDLSpec

PAUSE_SECONDS = 0.6
"""A step's; several steps are made ready side by side."""


class CurveSpec(ElasticDLSpec):
    def __init__(self, context=None, slow_until="", width=16, window=64):
        super().__init__(context)
        self._slow_until, self._width, self._window = slow_until, width, window

    def create_model(self, batch_norm=False):
        x = keras.Input(shape=(4,), name="x")
        dense = keras.layers.Dense(self._width, kernel_regularizer="l2", use_bias=not batch_norm)
        hidden = dense(x)
        if batch_norm:
            hidden = keras.layers.BatchNormalization()(hidden)
        hidden = keras.layers.Activation("tanh")(hidden)
        return keras.Model({"x": x}, keras.layers.Dense(1)(hidden))

    def create_dataset(self, dataset, mode):
        description = {
            "x": tf.io.FixedLenFeature([4], tf.float32),
            "y": tf.io.FixedLenFeature([1], tf.float32),
        }

        def wait(zero):
            if self._slow_until and not Path(self._slow_until).exists():
                time.sleep(PAUSE_SECONDS)
            return zero

        dataset = dataset.map(lambda record: tf.io.parse_single_example(record, description))
        pause = tf.data.Dataset.from_tensors(0).map(
            lambda zero: tf.numpy_function(wait, [zero], tf.int32, stateful=True)
        )
        examples = dataset.map(lambda e: ({"x": e["x"]}, e["y"])).shuffle(self._window)
        return pause.flat_map(lambda _: examples)

    def create_loss(self, outputs, labels):
        return tf.reduce_mean(tf.square(outputs - labels))

    def create_optimizer(self, lr=0.01):
        return keras.optimizers.Adam(lr)

    def create_metrics(self, outputs, labels):
        return {"absolute_error": tf.reduce_mean(tf.abs(outputs - labels))}
