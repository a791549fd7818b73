"""Sums over the ring within the forward and the backward pass of a step.

BatchNormalization uses them to count each example of all ranks once. Keras implements
`synchronized=True` with tf.distribute, which this ring does not use. Here each layer sums one row
of numbers in the forward pass, and one in the backward pass by TensorFlow's automatic
differentiation.
"""

import contextlib
import functools
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import keras
import tensorflow as tf

from edl_horovod.errors import UserCodeError
from edl_horovod.frameworks.keras.collectives import sum_grouped
from edl_horovod.frameworks.packing import NAME

_BATCH_NORM_HINT = (
    "Call it once for all positions (BatchNormalization normalizes the last axis of inputs of any"
    " number of dimensions) and without @tf.function, or remove synchronized and train.batch_norm."
)


class RingSums:
    """The sums within one model's steps; a rank without examples adds zeros to each."""

    def __init__(self, model: keras.Model, *, sums_all: bool) -> None:
        """Replace the method by which BatchNormalization layers compute their moments.

        Outside of a trace, `add` returns its row.

        Args:
            model: The built model; its layers keep their identity and configuration.
            sums_all: Whether all BatchNormalization layers are summed, or only those with
                `synchronized=True`.
        """
        self._graph: tf.Graph | None = None
        self._in_ring = False
        self._calls: Counter[str] = Counter()
        self._sums: dict[str, tf.Tensor] = {}
        layers = [
            layer
            for layer in {id(layer): layer for layer in model._flatten_layers()}.values()
            if isinstance(layer, keras.layers.BatchNormalization)
            and (sums_all or layer.synchronized)
        ]
        for index, layer in enumerate(layers):
            # A functional model refers to its layers in many places, so they cannot be replaced.
            # Keras has no public hook for a layer's moments.
            layer._moments = functools.partial(self._moments, layer, f"batch_norm.{index}")
        self.has_layers = bool(layers)
        """Whether the moments of any layer are summed."""

    @contextlib.contextmanager
    def tracing(self, *, in_ring: bool) -> Iterator[dict[str, tf.Tensor]]:
        """Record the sums of a step's forward and backward pass while it is traced.

        Args:
            in_ring: Whether rows are summed over a ring.

        Yields:
            The sums by the name of their collective, filled while the passes are traced.
        """
        self._graph, self._in_ring = tf.compat.v1.get_default_graph(), in_ring
        self._calls.clear()
        self._sums = {}
        try:
            yield self._sums
        finally:
            self._graph, self._in_ring = None, False

    def add(self, row: tf.Tensor, name: str, subject: str, hint: str) -> tf.Tensor:
        """Sum a row over the ring; without a ring, return the row.

        The gradient is the sum of the ranks' gradients.

        Args:
            row: A row with the same shape and type on all ranks.
            name: Matches the calls of the ranks, together with the number of the call.
            subject: Describes what is summed, in messages.
            hint: What the user can do if the call is traced in a nested graph.

        Raises:
            UserCodeError: The call is in a nested graph, which ranks may run a different number
                of times.
        """
        if self._graph is None:
            return row
        if tf.compat.v1.get_default_graph() is not self._graph:
            raise UserCodeError(
                f"{subject} is synchronized over the ring, but the model calls it inside a loop, a"
                " condition or a tf.function, which ranks may run a different number of times.",
                hint=hint,
            )
        if not self._in_ring:
            return row
        self._calls[name] += 1
        return self._over_ring(row, f"{NAME}.{name}.{self._calls[name]}")

    def _over_ring(self, row: tf.Tensor, name: str) -> tf.Tensor:
        @tf.custom_gradient  # type: ignore[untyped-decorator]  # TensorFlow ships no types.
        def over_ring(row: tf.Tensor) -> Any:
            # All ranks reach this: they trace the same sums, and ranks without examples add zeros.
            self._sums[name] = sum_row(row, len(self._sums), name)
            return self._sums[name], lambda upstream: self._over_ring(upstream, f"{name}.gradient")

        total: tf.Tensor = over_ring(row)
        return total

    def _moments(
        self, layer: keras.layers.BatchNormalization, name: str, inputs: tf.Tensor, mask: Any
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Compute mean and variance over the ring, each of shape (features,), for a layer."""
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
            self.add(row, name, f"The layer {layer.name}", _BATCH_NORM_HINT), 3
        )
        mean = tf.math.divide_no_nan(total, count)
        variance = tf.maximum(tf.math.divide_no_nan(squares, count) - tf.square(mean), 0.0)
        return tf.cast(mean, inputs.dtype), tf.cast(variance, inputs.dtype)


def sum_row(row: tf.Tensor, number: int, name: str) -> tf.Tensor:
    """Sum one row of numbers over the ring.

    Args:
        row: A row with the same shape and type on all ranks.
        number: A number that is unique among the rows of the step, because TensorFlow merges ops
            with equal inputs.
        name: Matches the calls of the ranks.
    """
    tag = tf.fill([1], tf.constant(number, row.dtype))
    (total,) = sum_grouped([tf.concat([tag, row], 0)], name)
    return total[1:]


def after_sums(totals: Iterable[tf.Tensor], value: tf.Tensor, zero: tf.Tensor) -> tf.Tensor:
    """Return `value`, available only after these sums are computed.

    A control dependency is not enough, because TensorFlow removes ops without consumers.

    Args:
        totals: The rows of the sums.
        value: A tensor of any shape.
        zero: 0, but unknown to TensorFlow as a constant.
    """
    firsts = [tf.cast(total[0], value.dtype) for total in totals]
    return tf.where(zero > 0, tf.add_n(firsts), value) if firsts else value
