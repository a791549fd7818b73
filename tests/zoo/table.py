"""A model whose records are rows of a CSV file: note, x0, x1, y; the note is free text."""

import keras
import tensorflow as tf
from tiny import TinySpec

from edl_horovod import Mode


class TableSpec(TinySpec):
    parses_batches = True

    def create_model(self):
        x = keras.Input(shape=(2,), name="x")
        return keras.Model({"x": x}, keras.layers.Dense(1)(x))

    def create_dataset(self, dataset, mode):
        def parse(rows):
            _, x0, x1, y = tf.io.decode_csv(rows, record_defaults=["", 0.0, 0.0, 0.0])
            features = {"x": tf.stack([x0, x1], axis=1)}
            return features if mode == Mode.PREDICTION else (features, y[:, None])

        return dataset.map(parse)

    def create_optimizer(self, lr=0.1):
        return keras.optimizers.Adam(lr)
