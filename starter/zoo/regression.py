"""Predicts the number in the last column of a CSV file from the numbers before it."""

import keras
import tensorflow as tf
from keras import layers

from edl_horovod import ElasticDLSpec, Mode


class Regression(ElasticDLSpec):
    """A dense network; files to predict have all columns but the last."""

    parses_batches = True

    def __init__(self, context=None, columns=3):
        super().__init__(context)
        self._columns = columns

    def create_model(self, hidden_units=(16,)):
        inputs = x = keras.Input((self._columns,))
        for units in hidden_units:
            x = layers.Dense(units, activation="relu")(x)
        return keras.Model(inputs, layers.Dense(1)(x))

    def create_dataset(self, dataset, mode):
        has_label = mode != Mode.PREDICTION

        def parse(rows):
            defaults = [0.0] * (self._columns + has_label)
            columns = tf.stack(tf.io.decode_csv(rows, record_defaults=defaults), axis=1)
            features = columns[:, : self._columns]
            return (features, columns[:, self._columns :]) if has_label else features

        return dataset.map(parse)

    def create_loss(self, outputs, labels):
        return tf.reduce_mean(tf.square(outputs - labels))

    def create_optimizer(self, lr=0.01):
        return keras.optimizers.Adam(lr)

    def create_metrics(self, outputs, labels):
        return {"absolute_error": tf.reduce_mean(tf.abs(outputs - labels))}
