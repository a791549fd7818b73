"""CIFAR-10 with the Keras functional API."""

import keras
from image_records import ImageClassifierSpec, record_from_image
from keras import layers

IMAGE_SHAPE = (32, 32, 3)


def prepare_data_for_a_single_file(filename):
    return record_from_image(filename, shape=IMAGE_SHAPE)


def convolutions(x, *, filters, dropout):
    """Two normalised convolutions of one width, then half the height and width."""
    for _ in range(2):
        x = layers.Conv2D(filters, 3, padding="same", use_bias=False)(x)
        x = layers.ReLU()(layers.BatchNormalization(momentum=0.9)(x))
    return layers.Dropout(dropout)(layers.MaxPooling2D(2)(x))


class Cifar10FunctionalSpec(ImageClassifierSpec):
    image_shape = IMAGE_SHAPE

    def create_model(self, filters=(32, 64, 128), dropout=0.3):
        image = keras.Input(shape=IMAGE_SHAPE, name="image")
        x = image
        for width in filters:
            x = convolutions(x, filters=width, dropout=dropout)
        logits = layers.Dense(10)(layers.Flatten()(x))
        return keras.Model(inputs={"image": image}, outputs=logits, name="cifar10")
