"""A DCGAN for pictures of digits of 28 x 28 pixels, which needs no labels.

After A. Radford, L. Metz and S. Chintala, "Unsupervised Representation Learning with Deep
Convolutional Generative Adversarial Networks", ICLR 2016, section 3.
"""

import keras
import tensorflow as tf
from image_records import record_from_image
from keras import layers, ops

from edl_horovod import ElasticDLSpec, Phase

IMAGE_SHAPE = (28, 28)
NOISE_SIZE = 32


def prepare_data_for_a_single_file(filename):
    return record_from_image(filename, shape=IMAGE_SHAPE)


@keras.saving.register_keras_serializable("digits_gan")
class Gan(keras.Model):
    """A generator of pictures, and a discriminator that tells them from real ones."""

    def __init__(self, width=16, **kwargs):
        super().__init__(**kwargs)
        self.width = width
        self.generator = keras.Sequential(
            [
                keras.Input((NOISE_SIZE,)),
                layers.Dense(7 * 7 * 2 * width, use_bias=False),
                layers.BatchNormalization(momentum=0.9),
                layers.ReLU(),
                layers.Reshape((7, 7, 2 * width)),
                layers.Conv2DTranspose(width, 4, 2, "same", use_bias=False),
                layers.BatchNormalization(momentum=0.9),
                layers.ReLU(),
                layers.Conv2DTranspose(1, 4, 2, "same", activation="sigmoid"),
                layers.Reshape(IMAGE_SHAPE),
            ]
        )
        self.discriminator = keras.Sequential(
            [
                keras.Input(IMAGE_SHAPE),
                layers.Reshape((*IMAGE_SHAPE, 1)),
                layers.Conv2D(width, 4, 2, "same"),
                layers.LeakyReLU(0.2),
                layers.Conv2D(2 * width, 4, 2, "same", use_bias=False),
                layers.BatchNormalization(momentum=0.9),
                layers.LeakyReLU(0.2),
                layers.Flatten(),
                layers.Dense(1),
            ]
        )

    def call(self, features, training=False):
        """The logit that a picture is real."""
        return self.discriminator(features["image"], training=training)

    def get_config(self):
        return {**super().get_config(), "width": self.width}


class DigitsGanSpec(ElasticDLSpec):
    def create_model(self, width=16):
        return Gan(width)

    def create_dataset(self, dataset, mode):
        description = {"image": tf.io.FixedLenFeature(IMAGE_SHAPE, tf.float32)}

        def parse(record):
            image = tf.io.parse_single_example(record, description)["image"] / 255.0
            return {"image": image}, 0

        return dataset.map(parse)

    def create_phases(self, model):
        return [
            Phase("discriminator", model.discriminator.trainable_variables),
            Phase("generator", model.generator.trainable_variables),
        ]

    def create_optimizer(self, lr=0.0002):
        return {
            "discriminator": keras.optimizers.Adam(lr, beta_1=0.5),
            "generator": keras.optimizers.Adam(lr, beta_1=0.5),
        }

    def create_phase_loss(self, phase, model, features, noise):
        generated = model.generator(noise(NOISE_SIZE), training=True)
        score = model.discriminator(generated, training=True)
        if phase == "generator":
            return _loss(score, 1.0)
        return _loss(model.discriminator(features["image"], training=True), 1.0) + _loss(score, 0.0)


def _loss(logits, label):
    """The mean cross entropy of logits whose labels are all the same."""
    losses = ops.binary_crossentropy(ops.full_like(logits, label), logits, from_logits=True)
    return ops.mean(losses)
