"""A small regression whose optimizer is given as Keras writes one down, to hold against `fit`."""

import keras
import tensorflow as tf

from edl_horovod import ElasticDLSpec

NUM_FEATURES = 6


class FittedSpec(ElasticDLSpec):
    """Two dense layers and the mean squared error."""

    def __init__(self, optimizer=None):
        self.optimizer = optimizer or {"class_name": "sgd", "config": {}}

    def create_model(self):
        features = keras.Input((NUM_FEATURES,), name="features")
        hidden = keras.layers.Dense(8, activation="tanh")(features)
        return keras.Model(features, keras.layers.Dense(1)(hidden))

    def create_dataset(self, dataset, mode):
        return dataset

    def create_loss(self, outputs=None, labels=None):
        return tf.reduce_mean(tf.square(outputs - labels))

    def create_optimizer(self, lr=0.1):
        return keras.optimizers.get(self.optimizer)
