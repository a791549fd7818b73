"""A classifier without ReLU and maximum, at whose kinks a last bit sends gradients elsewhere."""

# The methods are described by `ElasticDLSpec`.
# ruff: noqa: D102

import keras
import tensorflow as tf
from keras import layers

from edl_horovod import ElasticDLSpec, Mode

IMAGE_SHAPE = (28, 28)


class SmoothSpec(ElasticDLSpec):
    """Two dense layers of 0.4 M parameters on the zoo's image records."""

    def create_model(self) -> keras.Model:
        image = keras.Input(shape=IMAGE_SHAPE, name="image")
        hidden = layers.Dense(512, activation="tanh")(layers.Flatten()(image))
        return keras.Model(inputs={"image": image}, outputs=layers.Dense(10)(hidden))

    def create_dataset(self, dataset: tf.data.Dataset, mode: Mode) -> tf.data.Dataset:
        description = {
            "image": tf.io.FixedLenFeature(IMAGE_SHAPE, tf.float32),
            "label": tf.io.FixedLenFeature([1], tf.int64),
        }
        dataset = dataset.map(lambda record: tf.io.parse_single_example(record, description))
        return dataset.map(lambda e: ({"image": e["image"] / 255.0}, e["label"])).shuffle(1024)

    def create_loss(self, outputs: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        flat = tf.reshape(labels, [-1])
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(flat, outputs))

    def create_optimizer(self, lr: float = 0.01) -> keras.optimizers.Optimizer:
        return keras.optimizers.SGD(lr)
