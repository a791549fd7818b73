"""Digits of 8 x 8 pixels, by a network with attention; example(x=[64 numbers], y=[digit])."""

import keras
import tensorflow as tf

from edl_horovod import ElasticDLSpec


class DigitsSpec(ElasticDLSpec):
    def create_model(self):
        x = keras.Input(shape=(64,), name="x")
        rows = keras.layers.Reshape((8, 8))(x)
        rows = rows + keras.layers.MultiHeadAttention(1, 4)(rows, rows)
        hidden = keras.layers.Dense(32, activation="tanh")(keras.layers.Flatten()(rows))
        return keras.Model({"x": x}, keras.layers.Dense(10)(hidden))

    def create_dataset(self, dataset, mode):
        description = {
            "x": tf.io.FixedLenFeature([64], tf.float32),
            "y": tf.io.FixedLenFeature([], tf.int64),
        }
        parsed = dataset.map(lambda record: tf.io.parse_single_example(record, description))
        return parsed.map(lambda example: ({"x": example["x"]}, example["y"]))

    def create_loss(self, outputs, labels):
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, outputs)
        return tf.reduce_mean(losses)

    def create_optimizer(self, lr=0.5):
        return keras.optimizers.SGD(lr, momentum=0.9)

    def create_metrics(self, outputs, labels):
        return {"accuracy": tf.cast(tf.equal(tf.argmax(outputs, 1), labels), tf.float32)}
