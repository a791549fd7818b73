"""Sums over the ring amid a step: for BatchNormalization over all examples, each counted once.

Keras' own `synchronized=True` sums by tf.distribute, which has no part in this ring. Here each
layer adds up one row of numbers in the forward pass and one in the backward pass; all the rest is
what TensorFlow makes of the formula.
"""

import contextlib
import functools
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import keras
import tensorflow as tf

from edl_horovod.errors import UserCodeError
from edl_horovod.frameworks.buckets import NAME
from edl_horovod.frameworks.keras.collectives import sum_grouped

__all__ = ["RingStatistics", "once_made", "sum_row"]


class RingStatistics:
    """The moments of a model's layers, which a step of a ring takes over all of its examples.

    Also what a loss divides by, where it is more than one sum.
    """

    def __init__(self, model: keras.Model, *, sums_all: bool) -> None:
        """Have the layers ask for their moments here; those of one rank are its own.

        Args:
            model: Built; its layers and their configuration stay.
            sums_all: Whether all BatchNormalization layers are summed, or only those with
                `synchronized=True`.
        """
        self._layers = [
            layer
            for layer in {id(each): each for each in model._flatten_layers()}.values()
            if isinstance(layer, keras.layers.BatchNormalization)
            and (sums_all or layer.synchronized)
        ]
        for number, layer in enumerate(self._layers):
            # A functional model holds its layers in many places, so they stay what they are. Keras
            # has no public way to a layer's moments.
            name = f"{NAME}.batch_norm.{number}"
            layer._moments = functools.partial(self._moments, layer, name)
        self._graph: tf.Graph | None = None
        self._in_ring = False
        self._calls: Counter[str] = Counter()
        self._sums: dict[str, tf.Tensor] = {}

    def __bool__(self) -> bool:
        """Whether any layer is summed."""
        return bool(self._layers)

    @contextlib.contextmanager
    def tracing(self, *, in_ring: bool) -> Iterator[dict[str, tf.Tensor]]:
        """The trace of a step's forward and backward pass.

        Args:
            in_ring: Whether moments are summed over a ring.

        Yields:
            The sums over the ring by the names that pair them with those of other ranks.
        """
        self._graph, self._in_ring = tf.compat.v1.get_default_graph(), in_ring
        self._calls.clear()
        self._sums = {}
        try:
            yield self._sums
        finally:
            self._graph, self._in_ring = None, False

    def sum_divisors(self, row: tf.Tensor) -> tf.Tensor:
        """The sum over the ring of numbers that no gradient depends on."""
        name = f"{NAME}.loss"
        self._calls[name] += 1
        name = f"{name}.{self._calls[name]}"
        # All ranks: they have the same loss, and one without examples adds zeros.
        self._sums[name] = sum_row(row, len(self._sums), name)
        return self._sums[name]

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
            tf.cast(tf.reshape(each, [-1]), tf.float64) for each in (count, own_mean, spread)
        )
        row = tf.concat([count, count * mean, spread + count * tf.square(mean)], 0)
        count, total, squares = tf.split(self._total(row, layer, name), 3)
        mean = tf.math.divide_no_nan(total, count)
        variance = tf.maximum(tf.math.divide_no_nan(squares, count) - tf.square(mean), 0.0)
        return tf.cast(mean, inputs.dtype), tf.cast(variance, inputs.dtype)

    def _total(self, row: tf.Tensor, layer: keras.layers.Layer, name: str) -> tf.Tensor:
        """The sum over the ring of a row of each rank; itself without a ring."""
        if self._graph is None:
            return row
        if tf.compat.v1.get_default_graph() is not self._graph:
            raise UserCodeError(
                f"The layer {layer.name} is to be synchronised over the ring, but the model calls"
                " it in a loop, a condition or a tf.function of its own, which ranks may run"
                " differently often.",
                cure="Call it once for all positions (a BatchNormalization normalises the last axis"
                " of any number of dimensions), without @tf.function, or leave out synchronized"
                " and train.batch_norm.",
            )
        if not self._in_ring:
            return row
        self._calls[name] += 1
        return self._over_ring(row, f"{name}.{self._calls[name]}")

    def _over_ring(self, row: tf.Tensor, name: str) -> tf.Tensor:
        """A sum over the ring, the gradient of which is the sum of the ranks' gradients."""

        @tf.custom_gradient  # type: ignore[untyped-decorator]  # TensorFlow ships no types.
        def over_ring(row: tf.Tensor) -> Any:
            # All ranks: they have the same layers, and one without examples adds zeros.
            self._sums[name] = sum_row(row, len(self._sums), name)
            return self._sums[name], lambda upstream: self._over_ring(upstream, f"{name}.gradient")

        found: tf.Tensor = over_ring(row)
        return found


def sum_row(row: tf.Tensor, number: int, name: str) -> tf.Tensor:
    """Sum one row of numbers over the ring.

    Args:
        row: Of the same shape and type on all ranks.
        number: Sets it apart from the other rows of the step, as TensorFlow takes ops with the same
            inputs for one.
        name: Pairs the calls of the ranks.
    """
    tag = tf.fill([1], tf.constant(number, row.dtype))
    (total,) = sum_grouped([tf.concat([tag, row], 0)], name)
    return total[1:]


def once_made(totals: Iterable[tf.Tensor], value: tf.Tensor, zero: tf.Tensor) -> tf.Tensor:
    """A value that is there as soon as these sums are made.

    TensorFlow leaves out an op whose values nothing takes, also where something waits for it.

    Args:
        totals: Rows.
        value: Of any shape.
        zero: 0, of which TensorFlow does not know that.
    """
    firsts = [tf.cast(total[0], value.dtype) for total in totals]
    return tf.where(zero > 0, tf.add_n(firsts), value) if firsts else value
