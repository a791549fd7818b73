"""Tells which digit a picture of 8x8 points shows."""

import keras
import tensorflow as tf
from keras import layers

from edl_horovod import ElasticDLSpec, Mode


class Digits(ElasticDLSpec):
    """A dense network on the points; the data are arrays `image` and `label`."""

    parses_batches = True

    def create_model(self, hidden_units=(64,)):
        image = keras.Input((8, 8), name="image")
        x = layers.Flatten()(image)
        for units in hidden_units:
            x = layers.Dense(units, activation="relu")(x)
        return keras.Model(image, layers.Dense(10)(x))

    def create_dataset(self, dataset, mode):
        if mode == Mode.PREDICTION:
            return dataset.map(lambda rows: rows["image"])
        return dataset.map(lambda rows: (rows["image"], rows["label"]))

    def create_loss(self, outputs, labels):
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, outputs))

    def create_optimizer(self, lr=0.003):
        return keras.optimizers.Adam(lr)

    def create_metrics(self, outputs, labels):
        return {"accuracy": tf.cast(tf.equal(tf.argmax(outputs, axis=1), labels), tf.float32)}
