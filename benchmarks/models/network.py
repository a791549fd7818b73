"""Models that are large enough for a network to matter, on pictures of 64 x 64 x 3 bytes."""

# The methods are described by `ElasticDLSpec`.
# ruff: noqa: D102

import keras
import tensorflow as tf
from keras import layers

from benchmarks.models.cnn import CnnSpec
from edl_horovod import Mode

PICTURE_SHAPE = (64, 64, 3)
_DESCRIPTION = {
    "image": tf.io.FixedLenFeature([], tf.string),
    "label": tf.io.FixedLenFeature([1], tf.int64),
}


def parse_picture(record: tf.Tensor) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
    """One record to a picture from 0 to 1 and its label."""
    example = tf.io.parse_single_example(record, _DESCRIPTION)
    pixels = tf.reshape(tf.io.decode_raw(example["image"], tf.uint8), PICTURE_SHAPE)
    return {"image": tf.cast(pixels, tf.float32) / 255.0}, tf.cast(example["label"], tf.int32)


class ConvSpec(CnnSpec):
    """8 convolutions and 2 dense layers, 11.7 M parameters; parses picture by picture."""

    shape = PICTURE_SHAPE

    def hidden(self, image: tf.Tensor) -> tf.Tensor:
        x = image
        for number, filters in enumerate((64, 64, 128, 128, 256, 256, 512, 512)):
            strides = 2 if number % 2 else 1
            x = layers.Conv2D(filters, 3, strides=strides, padding="same", activation="relu")(x)
        return layers.Dense(850, activation="relu")(layers.Flatten()(x))

    def create_dataset(self, dataset: tf.data.Dataset, mode: Mode) -> tf.data.Dataset:
        return dataset.map(parse_picture)

    def create_optimizer(self, lr: float = 0.001) -> keras.optimizers.Optimizer:
        return keras.optimizers.SGD(lr)


class ResNetSpec(ConvSpec):
    """ResNet-50 as Keras has it, with 10 classes: 23.6 M parameters."""

    def create_model(self) -> keras.Model:
        image = keras.Input(PICTURE_SHAPE, name="image")
        base = keras.applications.ResNet50(
            weights=None, classes=10, input_tensor=image, classifier_activation=None
        )
        return keras.Model(inputs={"image": image}, outputs=base.output)


class DenseSpec(ConvSpec):
    """5 dense layers of 3264 on a picture of 16 x 16, 45.2 M parameters, and twice that of Adam."""

    def hidden(self, image: tf.Tensor) -> tf.Tensor:
        x = layers.Flatten()(layers.AveragePooling2D(4)(image))
        for _ in range(5):
            x = layers.Dense(3264, activation="relu")(x)
        return x

    def create_optimizer(self, lr: float = 0.001) -> keras.optimizers.Optimizer:
        return keras.optimizers.Adam(lr)
