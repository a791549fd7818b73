"""MNIST with a subclass of `keras.Model`."""

import keras
from image_records import ImageClassifierSpec, record_from_image
from keras import layers

IMAGE_SHAPE = (28, 28)


def prepare_data_for_a_single_file(filename):
    return record_from_image(filename, shape=IMAGE_SHAPE)


@keras.saving.register_keras_serializable(package="edl_model_zoo")
class MnistModel(keras.Model):
    def __init__(self, dropout=0.25, **kwargs):
        super().__init__(**kwargs)
        self._dropout_rate = dropout
        self._reshape = layers.Reshape((*IMAGE_SHAPE, 1))
        self._conv1 = layers.Conv2D(32, 3, activation="relu")
        self._conv2 = layers.Conv2D(64, 3, activation="relu")
        self._norm = layers.BatchNormalization(momentum=0.9)
        self._pool = layers.MaxPooling2D(2)
        self._dropout = layers.Dropout(dropout)
        self._flatten = layers.Flatten()
        self._dense = layers.Dense(10)

    def call(self, inputs, training=False):
        x = self._reshape(inputs["image"])
        x = self._conv2(self._conv1(x))
        x = self._pool(self._norm(x, training=training))
        x = self._dropout(x, training=training)
        return self._dense(self._flatten(x))

    def get_config(self):
        return {**super().get_config(), "dropout": self._dropout_rate}


class MnistSubclassSpec(ImageClassifierSpec):
    image_shape = IMAGE_SHAPE

    def create_model(self, dropout=0.25):
        return MnistModel(dropout, name="mnist")
