"""A small model whose loss of every step is the same on any ring, at a pace that allows changes."""

from math import inf

import keras
import tensorflow as tf
from pauses import Pauses
from slow import delayed
from tiny import FEATURES, TinySpec


class CurveSpec(TinySpec):
    def __init__(self, context=None, slow_until="", slower_after=inf, width=16, window=64):
        super().__init__(context)
        self._pauses = Pauses(slow_until, slower_after=slower_after, side_by_side=2)
        self._width, self._window = width, window

    def create_model(self, batch_norm=False):
        x = keras.Input(shape=(4,), name="x")
        dense = keras.layers.Dense(self._width, kernel_regularizer="l2", use_bias=not batch_norm)
        hidden = dense(x)
        if batch_norm:
            hidden = keras.layers.BatchNormalization()(hidden)
        hidden = keras.layers.Activation("tanh")(hidden)
        return keras.Model({"x": x}, keras.layers.Dense(1)(hidden))

    def create_dataset(self, dataset, mode):
        dataset = dataset.map(lambda record: tf.io.parse_single_example(record, FEATURES))
        examples = dataset.map(lambda e: ({"x": e["x"]}, e["y"])).shuffle(self._window)
        return delayed(examples, self._pauses.wait)

    def create_optimizer(self, lr=0.01):
        return keras.optimizers.Adam(lr)
