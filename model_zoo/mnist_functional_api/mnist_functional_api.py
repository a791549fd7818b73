"""MNIST with the Keras functional API."""

import keras
from image_records import ImageClassifierSpec, record_from_image
from keras import layers

IMAGE_SHAPE = (28, 28)


def prepare_data_for_a_single_file(filename):
    return record_from_image(filename, shape=IMAGE_SHAPE)


class MnistFunctionalSpec(ImageClassifierSpec):
    image_shape = IMAGE_SHAPE

    def create_model(self, groups=0):
        """BatchNorm mixes examples; with `groups`, GroupNorm is in its place."""
        image = keras.Input(shape=IMAGE_SHAPE, name="image")
        x = layers.Reshape((*IMAGE_SHAPE, 1))(image)
        x = layers.Conv2D(32, 3, activation="relu")(x)
        x = layers.Conv2D(64, 3, activation="relu")(x)
        batch_norm = layers.BatchNormalization(momentum=0.9)
        x = (layers.GroupNormalization(groups) if groups else batch_norm)(x)
        x = layers.MaxPooling2D(2)(x)
        x = layers.Dropout(0.25)(x)
        logits = layers.Dense(10)(layers.Flatten()(x))
        return keras.Model(inputs={"image": image}, outputs=logits, name="mnist")
