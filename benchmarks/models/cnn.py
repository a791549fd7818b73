"""Classifiers of pictures of 28 x 28: the models and the parsers of all sides with Keras."""

# The methods are described by `ElasticDLSpec`.
# ruff: noqa: D102

from typing import Any

import keras
import tensorflow as tf
from keras import layers

from edl_horovod import ElasticDLSpec, Mode

IMAGE_SHAPE = (28, 28)
SHUFFLE_RECORDS = 1024
_DESCRIPTION = {
    "image": tf.io.FixedLenFeature(IMAGE_SHAPE, tf.float32),
    "label": tf.io.FixedLenFeature([1], tf.int64),
}
_FEATURES = {"image": _DESCRIPTION["image"]}


def parse_one(record: tf.Tensor) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
    """One record to one example, as the zoo's image models do it."""
    return _scaled(tf.io.parse_single_example(record, _DESCRIPTION))


def parse_batch(records: tf.Tensor) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
    """Many records to a batch of examples in one call."""
    return _scaled(tf.io.parse_example(records, _DESCRIPTION))


def parse_features(record: tf.Tensor) -> dict[str, tf.Tensor]:
    """One record to what the model takes, as the zoo's image models do it."""
    return {"image": tf.io.parse_single_example(record, _FEATURES)["image"] / 255.0}


def _scaled(example: dict[str, tf.Tensor]) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
    return {"image": example["image"] / 255.0}, tf.cast(example["label"], tf.int32)


def mean_loss(labels: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
    """Mean cross-entropy over a batch."""
    flat = tf.reshape(labels, [-1])
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(flat, outputs))


class CnnSpec(ElasticDLSpec):
    """0.7 M parameters; parses and shuffles record by record, as the zoo's models do."""

    shape: tuple[int, ...] = IMAGE_SHAPE

    def create_model(self) -> keras.Model:
        image = keras.Input(shape=self.shape, name="image")
        hidden = self.hidden(image)
        return keras.Model(inputs={"image": image}, outputs=layers.Dense(10)(hidden))

    def hidden(self, image: tf.Tensor) -> tf.Tensor:
        """All layers but the last."""
        x = layers.Conv2D(16, 3, activation="relu")(layers.Reshape((*IMAGE_SHAPE, 1))(image))
        x = layers.Conv2D(32, 3, activation="relu")(layers.MaxPooling2D(2)(x))
        return layers.Dense(176, activation="relu")(layers.Flatten()(x))

    def create_dataset(self, dataset: tf.data.Dataset, mode: Mode) -> tf.data.Dataset:
        if mode is Mode.PREDICTION:
            return dataset.map(parse_features)
        return dataset.map(parse_one).shuffle(SHUFFLE_RECORDS)

    def create_loss(self, outputs: Any = None, labels: Any = None) -> tf.Tensor:
        return mean_loss(labels, outputs)

    def create_optimizer(self, lr: float = 0.01) -> keras.optimizers.Optimizer:
        return keras.optimizers.SGD(lr)


class MlpSpec(CnnSpec):
    """Three small dense layers: the step is short."""

    def hidden(self, image: tf.Tensor) -> tf.Tensor:
        x = layers.Dense(128, activation="relu")(layers.Flatten()(image))
        return layers.Dense(128, activation="relu")(x)


class MiddleSpec(CnnSpec):
    """Three convolutions and two dense layers: the step is long."""

    def hidden(self, image: tf.Tensor) -> tf.Tensor:
        x = layers.Reshape((*IMAGE_SHAPE, 1))(image)
        for filters, is_pooled in ((32, False), (32, True), (64, True)):
            x = layers.Conv2D(filters, 3, padding="same", activation="relu")(x)
            x = layers.MaxPooling2D(2)(x) if is_pooled else x
        return layers.Dense(128, activation="relu")(layers.Flatten()(x))


class CnnBatchSpec(CnnSpec):
    """The same, parsing a step's records in one call; the framework's shuffle is the only one."""

    parses_batches = True

    def create_dataset(self, dataset: tf.data.Dataset, mode: Mode) -> tf.data.Dataset:
        if mode is not Mode.PREDICTION:
            return dataset.map(parse_batch)
        return dataset.map(
            lambda records: {"image": tf.io.parse_example(records, _FEATURES)["image"] / 255.0}
        )
