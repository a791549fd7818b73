"""Adversarial examples of a Keras model; see `frameworks.adversarial`."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from edl_horovod.frameworks.adversarial import BaseAttack
from edl_horovod.frameworks.keras.noise import Noise


class Attack(BaseAttack):
    """Changes examples of a Keras model."""

    def __call__(self, features: Any, key: tf.Tensor, loss_of: Callable[[Any], tf.Tensor]) -> Any:
        """Return the changed features.

        Args:
            features: The features of a batch.
            key: The key of its noise, shape (batch, 3).
            loss_of: Computes the loss of features, without effects on the model.
        """
        original = self._selected(features)

        def bounded(values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
            near = [
                tf.clip_by_value(value, start - self._epsilon, start + self._epsilon)
                for value, start in zip(values, original, strict=True)
            ]
            # A value that is out of bounds itself may stay as it is, but not move further.
            return [
                tf.clip_by_value(
                    value, tf.minimum(start, self._lowest), tf.maximum(start, self._highest)
                )
                for value, start in zip(near, original, strict=True)
            ]

        def next_values(number: tf.Tensor, *values: tf.Tensor) -> tuple[tf.Tensor, ...]:
            with tf.GradientTape() as tape:
                tape.watch(values)
                loss = loss_of(self._merged(features, values))
            gradients = tape.gradient(loss, values, unconnected_gradients="zero")
            moved = [
                value + self._step_size * tf.sign(gradient)
                for value, gradient in zip(values, gradients, strict=True)
            ]
            return (number + 1, *bounded(moved))

        values = original
        if self._starts_at_random:
            noise = Noise(key, self._num_places)
            values = [value + tf.cast(self._start(noise, value), value.dtype) for value in original]
        _, *values = tf.while_loop(
            lambda number, *_: number < self._num_steps,
            next_values,
            (tf.constant(0), *bounded(values)),
            parallel_iterations=1,
        )
        is_changed = key[:, 2] < self._num_changed
        changed = [
            tf.where(_as_rows(is_changed, value), tf.stop_gradient(value), start)
            for value, start in zip(values, original, strict=True)
        ]
        return self._merged(features, changed)

    @staticmethod
    def _is_number(feature: Any) -> bool:
        return isinstance(feature, tf.TensorSpec) and feature.dtype.is_floating

    def _start(self, noise: Noise, value: tf.Tensor) -> tf.Tensor:
        """Changes between -epsilon and epsilon, in the shape of a feature."""
        size = tf.reduce_prod(tf.shape(value, tf.int64)[1:])
        uniform = tf.reshape(noise.uniform(size), tf.shape(value))
        return self._epsilon * (2.0 * uniform - 1.0)


def _as_rows(mask: tf.Tensor, value: tf.Tensor) -> tf.Tensor:
    """Give a mask of the examples as many axes as a feature has."""
    return tf.reshape(mask, [-1, *[1] * (value.shape.rank - 1)])
