"""BatchNormalization over the examples of all ranks, each example counted once.

Keras' own `synchronized=True` sums by tf.distribute, which has no part in this ring. Here each
layer adds up one row of numbers in the forward pass and one in the backward pass; all the rest is
what TensorFlow makes of the formula.
"""

import functools
from typing import Any

import keras
import tensorflow as tf

from edl_horovod.frameworks.keras.ring_sums import RingSums

__all__ = ["RingStatistics"]

_HINT = (
    "Call it once for all positions (a BatchNormalization normalises the last axis of any number of"
    " dimensions), without @tf.function, or leave out synchronized and train.batch_norm."
)


class RingStatistics:
    """The moments of a model's layers, which a step of a ring takes over all of its examples."""

    def __init__(self, model: keras.Model, sums: RingSums, *, sums_all: bool) -> None:
        """Replace the method by which the layers compute their moments.

        Args:
            model: Built; its layers and their configuration stay.
            sums: Of the steps of this model.
            sums_all: Whether all BatchNormalization layers are summed, or only those with
                `synchronized=True`.
        """
        self._sums = sums
        self._layers = [
            layer
            for layer in {id(layer): layer for layer in model._flatten_layers()}.values()
            if isinstance(layer, keras.layers.BatchNormalization)
            and (sums_all or layer.synchronized)
        ]
        for number, layer in enumerate(self._layers):
            # A functional model holds its layers in many places, so they stay what they are. Keras
            # has no public way to a layer's moments.
            name = f"batch_norm.{number}"
            layer._moments = functools.partial(self._moments, layer, name)

    def __bool__(self) -> bool:
        """Whether any layer is summed."""
        return bool(self._layers)

    def _moments(
        self, layer: keras.layers.BatchNormalization, name: str, inputs: tf.Tensor, mask: Any
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Mean and variance of a batch, shape (features,), as the layer's own method gives them."""
        axes, num_features = layer._reduction_axes, inputs.shape[layer.axis]

        def summed(values: tf.Tensor) -> tf.Tensor:
            if mask is not None:
                values = tf.where(tf.cast(mask, tf.bool)[..., tf.newaxis], values, 0)
            return tf.reduce_sum(values, axes, keepdims=True)

        if mask is None:
            numbers = tf.cast(tf.size(inputs) // num_features, inputs.dtype)
            count = tf.fill([num_features], numbers)
        else:
            count = tf.reshape(summed(tf.ones_like(inputs)), [-1])
        total = summed(inputs)
        own_mean = tf.math.divide_no_nan(total, tf.reshape(count, tf.shape(total)))
        # What is left of large squares after a subtraction would be noise in float32.
        spread = summed(tf.square(inputs - own_mean))
        count, mean, spread = (
            tf.cast(tf.reshape(value, [-1]), tf.float64) for value in (count, own_mean, spread)
        )
        row = tf.concat([count, count * mean, spread + count * tf.square(mean)], 0)
        count, total, squares = tf.split(
            self._sums.add(row, name, f"The layer {layer.name}", _HINT), 3
        )
        mean = tf.math.divide_no_nan(total, count)
        variance = tf.maximum(tf.math.divide_no_nan(squares, count) - tf.square(mean), 0.0)
        return tf.cast(mean, inputs.dtype), tf.cast(variance, inputs.dtype)
