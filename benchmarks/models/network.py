"""Models that are large enough for a network to matter, with one parser for all sides.

The records are pictures of 64 x 64 x 3 bytes and a label, as `benchmarks.network.records` writes
them.
"""

# The methods are described by `ElasticDLSpec`.
# ruff: noqa: D102

from typing import Any

import keras
import tensorflow as tf
from keras import layers

from benchmarks.models.cnn import mean_loss
from edl_horovod import ElasticDLSpec, Mode

PICTURE_SHAPE = (64, 64, 3)
NUM_CLASSES = 10
LEARNING_RATE = 0.001

_DESCRIPTION = {
    "image": tf.io.FixedLenFeature([], tf.string),
    "label": tf.io.FixedLenFeature([1], tf.int64),
}


def parse_picture(record: tf.Tensor) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
    """One record to a picture from 0 to 1 and its label."""
    example = tf.io.parse_single_example(record, _DESCRIPTION)
    pixels = tf.reshape(tf.io.decode_raw(example["image"], tf.uint8), PICTURE_SHAPE)
    return {"image": tf.cast(pixels, tf.float32) / 255.0}, tf.cast(example["label"], tf.int32)


def make_conv() -> keras.Model:
    """8 convolutions and 2 dense layers, 11.7 M parameters."""
    x = image = keras.Input(PICTURE_SHAPE, name="image")
    for number, filters in enumerate((64, 64, 128, 128, 256, 256, 512, 512)):
        strides = 2 if number % 2 else 1
        x = layers.Conv2D(filters, 3, strides=strides, padding="same", activation="relu")(x)
    x = layers.Dense(850, activation="relu")(layers.Flatten()(x))
    return keras.Model(inputs={"image": image}, outputs=layers.Dense(NUM_CLASSES)(x), name="conv")


def make_resnet() -> keras.Model:
    """ResNet-50 as Keras has it, with 10 classes: 23.6 M parameters."""
    image = keras.Input(PICTURE_SHAPE, name="image")
    base = keras.applications.ResNet50(
        weights=None, classes=NUM_CLASSES, input_tensor=image, classifier_activation=None
    )
    return keras.Model(inputs={"image": image}, outputs=base.output, name="resnet50")


def make_dense() -> keras.Model:
    """5 dense layers of 3264 on a picture of 16 x 16, 45.2 M parameters."""
    image = keras.Input(PICTURE_SHAPE, name="image")
    x = layers.Flatten()(layers.AveragePooling2D(4)(image))
    for _ in range(5):
        x = layers.Dense(3264, activation="relu")(x)
    return keras.Model(inputs={"image": image}, outputs=layers.Dense(NUM_CLASSES)(x), name="dense")


class _PictureSpec(ElasticDLSpec):
    """Parses picture by picture; trained with SGD."""

    def create_dataset(self, dataset: tf.data.Dataset, mode: Mode) -> tf.data.Dataset:
        return dataset.map(parse_picture)

    def create_loss(self, outputs: Any = None, labels: Any = None) -> tf.Tensor:
        return mean_loss(labels, outputs)

    def create_optimizer(self, lr: float = LEARNING_RATE) -> keras.optimizers.Optimizer:
        return keras.optimizers.SGD(lr)


class ConvSpec(_PictureSpec):
    """8 convolutions, 2 dense layers."""

    def create_model(self) -> keras.Model:
        return make_conv()


class ResNetSpec(_PictureSpec):
    """ResNet-50."""

    def create_model(self) -> keras.Model:
        return make_resnet()


class DenseSpec(_PictureSpec):
    """Dense layers alone, with Adam: the state is three times the parameters."""

    def create_model(self) -> keras.Model:
        return make_dense()

    def create_optimizer(self, lr: float = LEARNING_RATE) -> keras.optimizers.Optimizer:
        return keras.optimizers.Adam(lr)
