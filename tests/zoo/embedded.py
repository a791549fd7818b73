"""A model that is nearly all one table of embeddings."""

import keras
import tensorflow as tf

from edl_horovod import ElasticDLSpec


class EmbeddedSpec(ElasticDLSpec):
    def create_model(self):
        rows = keras.Input((1,), dtype="int32", name="rows")
        embeddings = keras.layers.Embedding(1000, 4, name="table")(rows)
        return keras.Model(rows, keras.layers.Dense(1)(keras.layers.Flatten()(embeddings)))

    def create_dataset(self, dataset, mode):
        return dataset

    def create_loss(self, outputs=None, labels=None):
        return tf.reduce_mean(tf.square(outputs - labels))

    def create_optimizer(self, lr=0.1):
        return keras.optimizers.SGD(lr)
