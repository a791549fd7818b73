"""A model whose records are rows of a CSV file: note, x0, x1, y; the note is free text."""

import keras
import tensorflow as tf

from edl_horovod import ElasticDLSpec, Mode


class TableSpec(ElasticDLSpec):
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

    def create_loss(self, outputs, labels):
        return tf.reduce_mean(tf.square(outputs - labels))

    def create_optimizer(self, lr=0.1):
        return keras.optimizers.Adam(lr)

    def create_metrics(self, outputs, labels):
        return {"absolute_error": tf.reduce_mean(tf.abs(outputs - labels))}
