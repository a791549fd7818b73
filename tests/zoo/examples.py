"""The model of `tiny` without a parser: its records are examples already."""

import keras
import tensorflow as tf

from edl_horovod import ElasticDLSpec


class ExamplesSpec(ElasticDLSpec):
    def create_model(self):
        x = keras.Input(shape=(4,), name="x")
        hidden = keras.layers.Dense(8, activation="tanh", kernel_regularizer="l2")(x)
        return keras.Model({"x": x}, keras.layers.Dense(1)(hidden))

    def create_loss(self, outputs, labels):
        return tf.reduce_mean(tf.square(outputs - labels))

    def create_optimizer(self, lr=0.05):
        return keras.optimizers.Adam(lr)
