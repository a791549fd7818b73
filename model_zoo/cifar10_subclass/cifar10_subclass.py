"""CIFAR-10 with a subclass of `keras.Model` that is made of a subclassed layer."""

import keras
from image_records import ImageClassifierSpec, record_from_image
from keras import layers

IMAGE_SHAPE = (32, 32, 3)


def prepare_data_for_a_single_file(filename):
    return record_from_image(filename, shape=IMAGE_SHAPE)


class Convolutions(layers.Layer):
    """Two normalised convolutions of one width, then half the height and width."""

    def __init__(self, filters, dropout, **kwargs):
        super().__init__(**kwargs)
        self._conv1 = layers.Conv2D(filters, 3, padding="same", use_bias=False)
        self._norm1 = layers.BatchNormalization(momentum=0.9)
        self._conv2 = layers.Conv2D(filters, 3, padding="same", use_bias=False)
        self._norm2 = layers.BatchNormalization(momentum=0.9)
        self._relu = layers.ReLU()
        self._pool = layers.MaxPooling2D(2)
        self._dropout = layers.Dropout(dropout)

    def call(self, inputs, training=False):
        x = self._relu(self._norm1(self._conv1(inputs), training=training))
        x = self._relu(self._norm2(self._conv2(x), training=training))
        return self._dropout(self._pool(x), training=training)


@keras.saving.register_keras_serializable(package="edl_model_zoo")
class Cifar10Model(keras.Model):
    def __init__(self, filters=(32, 64, 128), dropout=0.3, **kwargs):
        super().__init__(**kwargs)
        self._arguments = {"filters": list(filters), "dropout": dropout}
        self._blocks = [Convolutions(width, dropout) for width in filters]
        self._flatten = layers.Flatten()
        self._dense = layers.Dense(10)

    def call(self, inputs, training=False):
        x = inputs["image"]
        for block in self._blocks:
            x = block(x, training=training)
        return self._dense(self._flatten(x))

    def get_config(self):
        return {**super().get_config(), **self._arguments}


class Cifar10SubclassSpec(ImageClassifierSpec):
    image_shape = IMAGE_SHAPE

    def create_model(self, filters=(32, 64, 128), dropout=0.3):
        return Cifar10Model(filters, dropout, name="cifar10")
