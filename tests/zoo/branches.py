"""A model with an embedding, a layer that the loss leaves out, and one that few examples use."""

import keras
import tensorflow as tf

from edl_horovod import ElasticDLSpec

NUM_ROWS, WIDTH = 500, 4


class Seldom(keras.layers.Layer):
    """A dense layer for examples with an id of 400 and more; a batch without any goes around it."""

    def build(self, shape):
        self.kernel = self.add_weight(shape=(shape[-1], shape[-1]), name="kernel")

    def call(self, x, ids):
        concerned = tf.reduce_any(ids >= 400, axis=1, keepdims=True)

        def through():
            return x + tf.cast(concerned, x.dtype) * (x @ tf.convert_to_tensor(self.kernel))

        return tf.cond(tf.reduce_any(concerned), through, lambda: x)


class BranchesSpec(ElasticDLSpec):
    """Labels are the sums of the ids, modulo 3."""

    def __init__(self, optimizer="sgd"):
        self.optimizer = optimizer

    def create_model(self):
        ids = keras.Input((3,), dtype="int32", name="ids")
        x = keras.layers.Flatten()(keras.layers.Embedding(NUM_ROWS, WIDTH)(ids))
        x = Seldom()(x, ids)
        unused = keras.layers.Dense(5, name="unused")(x)
        outputs = {"used": keras.layers.Dense(3)(x), "unused": unused}
        return keras.Model(inputs={"ids": ids}, outputs=outputs)

    def create_dataset(self, dataset, mode):
        return dataset

    def create_loss(self, outputs=None, labels=None):
        return tf.reduce_mean(
            tf.nn.sparse_softmax_cross_entropy_with_logits(labels, outputs["used"])
        )

    def create_optimizer(self, lr=0.1):
        return keras.optimizers.get({"class_name": self.optimizer, "config": {"learning_rate": lr}})
