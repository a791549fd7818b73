"""A classifier without ReLU and maximum, at whose kinks a last bit sends gradients elsewhere."""

# The methods are described by `ElasticDLSpec`.
# ruff: noqa: D102

import tensorflow as tf
from cnn import CnnSpec  # Beside this file, as in any model zoo: other checkouts load it, too.
from keras import layers


class SmoothSpec(CnnSpec):
    """Two dense layers of 0.4 M parameters on the zoo's image records."""

    def hidden(self, image: tf.Tensor) -> tf.Tensor:
        return layers.Dense(512, activation="tanh")(layers.Flatten()(image))
