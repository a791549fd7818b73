"""A small dense model without dropout: the same weights from any ring, to float tolerance."""

import keras
import tensorflow as tf

from edl_horovod import ElasticDLSpec, Mode

FEATURES = {
    "x": tf.io.FixedLenFeature([4], tf.float32),
    "y": tf.io.FixedLenFeature([1], tf.float32),
}


class TinySpec(ElasticDLSpec):
    def __init__(self, context=None, keep_every=1, bad_id=-1, norm=None):
        super().__init__(context)
        self._keep_every, self._bad_id, self._norm = keep_every, bad_id, norm

    def create_model(self):
        # What differs in float64 is not rounding, of which norms of few examples make much.
        dtype = None if self._norm is None else "float64"
        x = keras.Input(shape=(4,), name="x")
        hidden = keras.layers.Dense(8, activation="tanh", kernel_regularizer="l2", dtype=dtype)(x)
        if self._norm is not None:
            hidden = keras.layers.BatchNormalization(**self._norm, dtype=dtype)(hidden)
            hidden = keras.layers.Dense(8, activation="tanh", dtype=dtype)(hidden)
            hidden = keras.layers.BatchNormalization(**self._norm, dtype=dtype)(hidden)
        return keras.Model({"x": x}, keras.layers.Dense(1, dtype=dtype)(hidden))

    def create_dataset(self, dataset, mode):
        description = {**FEATURES, "id": tf.io.FixedLenFeature([1], tf.int64)}
        dataset = dataset.map(lambda record: tf.io.parse_single_example(record, description))
        if mode == Mode.PREDICTION:
            return dataset.map(lambda e: {"x": e["x"]})
        dataset = dataset.filter(lambda e: e["id"][0] % self._keep_every == 0)
        nan = tf.constant([float("nan")])
        return dataset.map(
            lambda e: ({"x": e["x"]}, tf.where(e["id"] == self._bad_id, nan, e["y"]))
        )

    def create_loss(self, outputs, labels):
        return tf.reduce_mean(tf.square(outputs - tf.cast(labels, outputs.dtype)))

    def create_optimizer(self, lr=0.05):
        # Adam would magnify the rounding errors of a bias before a norm, which has no use.
        kind = keras.optimizers.Adam if self._norm is None else keras.optimizers.SGD
        return kind(lr)

    def create_metrics(self, outputs, labels):
        return {"absolute_error": tf.reduce_mean(tf.abs(outputs - tf.cast(labels, outputs.dtype)))}
