"""Sums over the ring within the forward and the backward pass of a step."""

import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import tensorflow as tf

from edl_horovod.errors import UserCodeError
from edl_horovod.frameworks.buckets import NAME
from edl_horovod.frameworks.keras.collectives import sum_grouped

__all__ = ["RingSums", "once_made", "sum_row"]


class RingSums:
    """The sums of one model's steps; a rank without examples adds zeros to each."""

    def __init__(self) -> None:
        """Begin outside of a trace: a rank's own rows are all that there are."""
        self._graph: tf.Graph | None = None
        self._in_ring = False
        self._calls: Counter[str] = Counter()
        self._sums: dict[str, tf.Tensor] = {}

    @contextlib.contextmanager
    def tracing(self, *, in_ring: bool) -> Iterator[dict[str, tf.Tensor]]:
        """The trace of a step's forward and backward pass.

        Args:
            in_ring: Whether rows are summed over a ring.

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

    def add(self, row: tf.Tensor, name: str, what: str, hint: str) -> tf.Tensor:
        """The sum over the ring of a row of each rank; itself without a ring.

        Its gradient is the sum of the ranks' gradients.

        Args:
            row: Of the same shape and type on all ranks.
            name: Pairs the calls of the ranks, with their number.
            what: Names in messages what is summed.
            hint: What to do where it is traced in a graph of its own.

        Raises:
            UserCodeError: It is traced where ranks may run it differently often.
        """
        if self._graph is None:
            return row
        if tf.compat.v1.get_default_graph() is not self._graph:
            raise UserCodeError(
                f"{what} is to be synchronised over the ring, but the model calls it in a loop, a"
                " condition or a tf.function of its own, which ranks may run differently often.",
                cure=hint,
            )
        if not self._in_ring:
            return row
        self._calls[name] += 1
        return self._over_ring(row, f"{NAME}.{name}.{self._calls[name]}")

    def _over_ring(self, row: tf.Tensor, name: str) -> tf.Tensor:
        @tf.custom_gradient  # type: ignore[untyped-decorator]  # TensorFlow ships no types.
        def over_ring(row: tf.Tensor) -> Any:
            # All ranks: they trace the same, and one without examples adds zeros.
            self._sums[name] = sum_row(row, len(self._sums), name)
            return self._sums[name], lambda upstream: self._over_ring(upstream, f"{name}.gradient")

        total: tf.Tensor = over_ring(row)
        return total


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
