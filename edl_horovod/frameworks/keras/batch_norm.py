"""BatchNormalization over the examples of all ranks, each example counted once.

Keras implements `synchronized=True` with tf.distribute, which this ring does not use. Here each
layer sums one row of numbers over the ring in the forward pass, and one in the backward pass by
TensorFlow's automatic differentiation.
"""

import functools
from typing import Any

import keras
import tensorflow as tf

from edl_horovod.frameworks.keras.ring_sums import RingSums

__all__ = ["RingStatistics"]

_HINT = (
    "Call it once for all positions (BatchNormalization normalizes the last axis of inputs of any"
    " number of dimensions) and without @tf.function, or remove synchronized and train.batch_norm."
)


class RingStatistics:
    """Computes the moments of a model's BatchNormalization layers over a step's whole ring."""

    def __init__(self, model: keras.Model, sums: RingSums, *, sums_all: bool) -> None:
        """Replace the method by which the layers compute their moments.

        Args:
            model: The built model; its layers keep their identity and configuration.
            sums: Sums over the ring within this model's steps.
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
        for index, layer in enumerate(self._layers):
            # A functional model refers to its layers in many places, so they cannot be replaced.
            # Keras has no public hook for a layer's moments.
            name = f"batch_norm.{index}"
            layer._moments = functools.partial(self._moments, layer, name)

    def __bool__(self) -> bool:
        """Whether any layer is summed."""
        return bool(self._layers)

    def _moments(
        self, layer: keras.layers.BatchNormalization, name: str, inputs: tf.Tensor, mask: Any
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Compute mean and variance, each of shape (features,), like the layer's own method."""
        axes, num_features = layer._reduction_axes, inputs.shape[layer.axis]

        def summed(values: tf.Tensor) -> tf.Tensor:
            if mask is not None:
                values = tf.where(tf.cast(mask, tf.bool)[..., tf.newaxis], values, 0)
            return tf.reduce_sum(values, axes, keepdims=True)

        if mask is None:
            num_values = tf.cast(tf.size(inputs) // num_features, inputs.dtype)
            count = tf.fill([num_features], num_values)
        else:
            count = tf.reshape(summed(tf.ones_like(inputs)), [-1])
        total = summed(inputs)
        local_mean = tf.math.divide_no_nan(total, tf.reshape(count, tf.shape(total)))
        # Subtract the mean first: differences of large squares would be noise in float32.
        spread = summed(tf.square(inputs - local_mean))
        count, mean, spread = (
            tf.cast(tf.reshape(value, [-1]), tf.float64) for value in (count, local_mean, spread)
        )
        row = tf.concat([count, count * mean, spread + count * tf.square(mean)], 0)
        count, total, squares = tf.split(
            self._sums.add(row, name, f"The layer {layer.name}", _HINT), 3
        )
        mean = tf.math.divide_no_nan(total, count)
        variance = tf.maximum(tf.math.divide_no_nan(squares, count) - tf.square(mean), 0.0)
        return tf.cast(mean, inputs.dtype), tf.cast(variance, inputs.dtype)
