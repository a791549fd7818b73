"""A small regression whose optimizer is given as Keras writes one down, to hold against `fit`."""

import keras
import tensorflow as tf

from edl_horovod import ElasticDLSpec

NUM_FEATURES = 6


class Partly(keras.layers.Layer):
    """A dense layer with a variable that no output depends on."""

    def build(self, shape):
        self.inner = keras.layers.Dense(1)
        self.inner.build(shape)
        self.unused = self.add_weight(shape=(3,), initializer="ones", name="unused")

    def call(self, x):
        return self.inner(x)


class FittedSpec(ElasticDLSpec):
    """Two dense layers and the mean squared error."""

    def __init__(self, optimizer=None):
        self.optimizer = optimizer or {"class_name": "sgd", "config": {}}

    def create_model(self):
        features = keras.Input((NUM_FEATURES,), name="features")
        hidden = keras.layers.Dense(8, activation="tanh")(features)
        return keras.Model(features, Partly()(hidden))

    def create_dataset(self, dataset, mode):
        return dataset

    def create_loss(self, outputs=None, labels=None):
        return tf.reduce_mean(tf.square(outputs - labels))

    def create_optimizer(self, lr=0.1):
        config = dict(self.optimizer["config"])
        excluded = config.pop("exclude", None)
        optimizer = keras.optimizers.get({**self.optimizer, "config": config})
        if excluded:
            optimizer.exclude_from_weight_decay(var_names=excluded)
        return optimizer
