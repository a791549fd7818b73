"""Adversarial examples of a Keras model; see `frameworks.adversarial`."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from edl_horovod.config.schema import AdversarialConfig
from edl_horovod.frameworks.adversarial import Plan, names_to_change
from edl_horovod.frameworks.keras.noise import Noise


class Attack:
    """Changes examples so that their loss rises."""

    def __init__(
        self, config: AdversarialConfig, features: Any, *, num_places: int, label: str
    ) -> None:
        """Choose the features to change.

        Args:
            config: The settings.
            features: `tf.TypeSpec`s of a batch's features.
            num_places: Records of a full step.
            label: Names the model in messages.

        Raises:
            ConfigError: adversarial.inputs does not fit the features.
            UserCodeError: No feature can be changed.
        """
        self._plan, self._num_places = Plan.of(config, num_places), num_places
        self._names = names_to_change(features, config, _is_number, label)

    def __call__(self, features: Any, key: tf.Tensor, loss_of: Callable[[Any], tf.Tensor]) -> Any:
        """Return the changed features.

        Args:
            features: The features of a batch.
            key: The key of its noise, shape (batch, 3).
            loss_of: Computes the loss of features, without effects on the model.
        """
        plan, names = self._plan, self._names
        original = [features] if names is None else [features[name] for name in names]
        noise = Noise(key, self._num_places)

        def merged(values: list[tf.Tensor]) -> Any:
            return (
                values[0]
                if names is None
                else {**features, **dict(zip(names, values, strict=True))}
            )

        def bounded(values: list[tf.Tensor]) -> list[tf.Tensor]:
            lowest, highest = plan.bounds
            near = [
                tf.clip_by_value(value, start - plan.epsilon, start + plan.epsilon)
                for value, start in zip(values, original, strict=True)
            ]
            # A value that is out of bounds itself may stay as it is, but not move further.
            return [
                tf.clip_by_value(value, tf.minimum(start, lowest), tf.maximum(start, highest))
                for value, start in zip(near, original, strict=True)
            ]

        def next_values(number: tf.Tensor, *values: tf.Tensor) -> tuple[tf.Tensor, ...]:
            with tf.GradientTape() as tape:
                tape.watch(values)
                loss = loss_of(merged(list(values)))
            gradients = tape.gradient(loss, values, unconnected_gradients="zero")
            moved = [
                value + plan.step_size * tf.sign(gradient)
                for value, gradient in zip(values, gradients, strict=True)
            ]
            return (number + 1, *bounded(moved))

        values = list(original)
        if plan.starts_at_random:
            values = [value + tf.cast(self._start(noise, value), value.dtype) for value in original]
        _, *values = tf.while_loop(
            lambda number, *_: number < plan.num_steps,
            next_values,
            (tf.constant(0), *bounded(values)),
            parallel_iterations=1,
        )
        is_changed = key[:, 2] < plan.num_changed
        return merged(
            [
                tf.where(_as_rows(is_changed, value), tf.stop_gradient(value), start)
                for value, start in zip(values, original, strict=True)
            ]
        )

    def _start(self, noise: Noise, value: tf.Tensor) -> tf.Tensor:
        """Changes between -epsilon and epsilon, in the shape of a feature."""
        size = tf.reduce_prod(tf.shape(value, tf.int64)[1:])
        uniform = tf.reshape(noise.uniform(size), tf.shape(value))
        return self._plan.epsilon * (2.0 * uniform - 1.0)


def _as_rows(mask: tf.Tensor, value: tf.Tensor) -> tf.Tensor:
    """Give a mask of the examples as many axes as a feature has."""
    return tf.reshape(mask, [-1, *[1] * (value.shape.rank - 1)])


def _is_number(spec: Any) -> bool:
    return isinstance(spec, tf.TensorSpec) and spec.dtype.is_floating
