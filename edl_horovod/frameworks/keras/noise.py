"""Random numbers of a step's examples that are the same on any ring."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from edl_horovod.frameworks.values import Batch

_CALLS = 64
"""The maximum number of calls of `Noise` in one pass."""


def with_noise_spec(element_spec: tuple[Any, ...]) -> tuple[Any, ...]:
    """The spec of what `with_noise` returns, from the spec of the batch."""
    features, *others = element_spec
    return ((features, tf.TensorSpec((None, 3), tf.int64)), *others)


def with_noise(batch: Batch) -> tuple[Any, ...]:
    """The examples of a batch, with the key of their noise beside the features.

    The key has a row for each example, so that it is split with them: the seed, the number of the
    pass, and the place of the example.
    """
    assert batch.noise is not None
    places = tf.constant(batch.noise.places, tf.int64)
    numbers = (batch.noise.seed, batch.noise.number)
    columns = [tf.fill(places.shape, tf.constant(number, tf.int64)) for number in numbers]
    features, *others = batch.examples
    return ((features, tf.stack([*columns, places], axis=1)), *others)


class Noise:
    """Draws the noise of a batch's examples: a row of numbers for each place in the step."""

    def __init__(self, key: tf.Tensor, num_places: int) -> None:
        self._key, self._num_places, self._calls = key, num_places, 0

    def __call__(self, *shape: int) -> tf.Tensor:
        """Return standard normal numbers of shape (batch, *shape)."""
        return self._rows(tf.random.stateless_normal, shape)

    def uniform(self, *shape: int) -> tf.Tensor:
        """Return numbers between 0 and 1 of shape (batch, *shape)."""
        return self._rows(tf.random.stateless_uniform, shape)

    def _rows(self, draw: Callable[..., tf.Tensor], shape: Sequence[int]) -> tf.Tensor:
        assert self._calls < _CALLS, self._calls
        # All rows of a key have the same seed and number.
        seed = tf.reduce_max(self._key[:, 0])
        number = tf.reduce_max(self._key[:, 1]) * _CALLS + self._calls
        self._calls += 1
        places = self._key[:, 2]
        num_rows = tf.maximum(tf.reduce_max(places) + 1, self._num_places)
        return tf.gather(draw([num_rows, *shape], tf.stack([seed, number])), places)
