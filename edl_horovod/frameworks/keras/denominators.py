"""Determine the divisor of a scalar loss while the loss is traced.

A mean over a batch is a sum divided by the number of examples, by the number of unmasked steps, or
by a sum of weights. On a ring, sums and divisors are added up separately, because the mean of the
ranks' means is wrong if their divisors differ.

The divisors of Keras' losses are recorded when Keras reduces the values. Divisions and means that
the user writes are found in the graph.
"""

import contextlib
from collections.abc import Callable, Collection, Hashable, Iterator
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
from keras.src.losses import loss as keras_loss

_PASS_THROUGH = {"Identity", "Cast", "Reshape", "Squeeze", "EnsureShape"}
"""Ops that return their input's value, possibly in another type or shape."""
_COMBINING = {"AddV2", "Add", "AddN", "Sub", "Neg", "Mul", "Pack", "Sum"}
"""Ops that combine terms of a loss; Keras adds losses with `Pack` and `Sum`."""
_DIVISIONS = {"RealDiv", "DivNoNan"}
_SIZES = {"Shape", "Size"}
"""Ops whose result does not depend on the values of their input."""
_SHAPE_OPS = {"Const", "Mul", "Pack", "Prod", "StridedSlice", *_SIZES, *_PASS_THROUGH}
"""Ops that occur in the computation of a number of elements."""
_MAX_DEPTH = 24
"""The maximum number of ops between a loss and its means in the search of the graph."""


OverRing = Callable[[tf.Tensor], tf.Tensor]
"""Sums a row of numbers over the ring."""


@dataclass(frozen=True)
class RingMean:
    """A loss as a sum and its divisor, which a ring adds up separately."""

    total: tf.Tensor
    weight: tf.Tensor
    """The divisor, a scalar of the type of `total`."""
    has_gradient: tf.Tensor | None = None
    """Whether the gradient is valid; false if it is that of 0 / 0. None means always valid."""


@dataclass(frozen=True)
class _Term:
    """A mean in a loss."""

    divisor: tf.Tensor
    source: Hashable
    """Identifies the source of the divisor; None for the number of examples."""
    may_be_nan: bool = False
    """Whether the mean is NaN if its divisor is 0; the means of Keras' losses are then 0."""


class Reductions:
    """Records the reductions of Keras' losses while a loss is traced."""

    def __init__(self, count: tf.Tensor, over_ring: OverRing | None = None) -> None:
        """Start with an empty record.

        Args:
            count: Number of examples.
            over_ring: Sums a row of numbers over the ring. If set, each mean is divided by the
                ring's divisor and rescaled, so that the loss may be weighted by examples.
        """
        self._count, self._over_ring = tf.cast(count, tf.float32), over_ring
        self._terms: dict[Any, _Term] = {}
        self._is_mixed = False

    @property
    def num_divisors(self) -> int:
        """The number of different divisors, including the number of examples.

        It is known when the loss was given to `ring_mean`.
        """
        return max(len({term.source for term in self._terms.values()}), 1 + self._is_mixed)

    @contextlib.contextmanager
    def recorded(self) -> Iterator[None]:
        """Record reductions within this context.

        This replaces a private function of Keras, which has no public hook for a loss's mask.
        """
        original = keras_loss.reduce_weighted_values

        def reduce(
            values: Any,
            sample_weight: Any = None,
            mask: Any = None,
            reduction: str = "sum_over_batch_size",
            dtype: Any = None,
        ) -> Any:
            """Reduce as Keras does, and note the divisor of the mean."""
            mean = original(values, sample_weight, mask, reduction, dtype)
            if reduction not in (None, "none", "sum") and values.shape.rank:
                term = _term_of(values, sample_weight, mask, reduction)
                if self._over_ring is not None and term.source is not None:
                    mean *= tf.cast(self._share(term.divisor, self._over_ring), mean.dtype)
                self._terms[mean.ref()] = term
            return mean

        keras_loss.reduce_weighted_values = reduce
        try:
            yield
        finally:
            keras_loss.reduce_weighted_values = original

    def ring_mean(self, loss: tf.Tensor, outputs: Any) -> RingMean:
        """Split a scalar loss into a sum and its divisor.

        Args:
            loss: The loss, traced while reductions were recorded.
            outputs: The model's outputs. A quotient whose divisor depends on them is not a mean.
        """
        count = tf.cast(self._count, loss.dtype)
        by_examples = RingMean(loss * count, count)
        if self._over_ring is not None or not isinstance(getattr(loss, "graph", None), tf.Graph):
            return by_examples
        terms = self._terms_in(loss, outputs)
        sources = {term.source for term in terms}
        # Means of Keras' losses by a mask or weights, beside means by the examples.
        recorded = {term.source for term in self._terms.values()} - {None}
        self._is_mixed = len(sources) > 1 and bool(sources & recorded)
        if len(sources) != 1 or terms[0].source is None:
            return by_examples
        weight = tf.cast(terms[0].divisor, loss.dtype)
        if not any(term.may_be_nan for term in terms):
            return RingMean(loss * weight, weight)
        total = tf.math.multiply_no_nan(loss, weight)
        return RingMean(total, weight, has_gradient=weight != 0)

    def _share(self, divisor: tf.Tensor, over_ring: OverRing) -> tf.Tensor:
        """Compute the factor that makes the ring's mean of local means weighted by examples.

        A ring averages losses with the weight `count / all_examples`. A sum that is divided by
        `total`, the ring's divisor, needs the weight 1: so the local mean, which is divided by
        `divisor`, is multiplied by divisor / total * all_examples / count.
        """
        row = tf.stack([tf.cast(divisor, tf.float32), self._count])
        total, all_examples = tf.unstack(over_ring(tf.stop_gradient(row)))
        return tf.math.divide_no_nan(divisor * all_examples, total * self._count)

    def _terms_in(self, tensor: tf.Tensor, outputs: Any, depth: int = 0) -> list[_Term]:
        if depth > _MAX_DEPTH or tensor.shape.rank not in (0, 1):
            return []
        if term := self._terms.get(tensor.ref()):
            return [term]
        op = tensor.op
        if op.type in _DIVISIONS and tensor.shape.rank == 0:
            dividend, divisor = op.inputs
            terms = self._terms_in(dividend, outputs, depth + 1)
            if terms or divisor.shape.rank != 0 or depends_on(divisor, outputs):
                return terms
            divisor = _unclamped(divisor)
            return [_Term(divisor, None if _is_size(divisor) else divisor.ref(), may_be_nan=True)]
        if op.type == "Mean" and tensor.shape.rank == 0 and op.inputs[0].shape.rank:
            values = op.inputs[0]
            return [_Term(tf.size(values), tensor.ref(), may_be_nan=_are_selected(values))]
        if op.type in _COMBINING | _PASS_THROUGH:
            inputs = op.inputs[:1] if op.type in ("Sum", "Reshape") else op.inputs
            return [term for value in inputs for term in self._terms_in(value, outputs, depth + 1)]
        return []


def _term_of(values: Any, sample_weight: Any, mask: Any, reduction: str) -> _Term:
    """Determine the divisor of a reduction by Keras."""
    if reduction == "mean_with_sample_weight" and not (sample_weight is None and mask is None):
        weights = keras_loss.apply_mask(sample_weight, mask, values.dtype, reduction)
        return _Term(tf.reduce_sum(weights), object())
    size = tf.cast(tf.size(values), tf.float32)
    if mask is None:
        return _Term(size, None)
    unmasked_share = tf.reduce_mean(tf.cast(mask, tf.float32))
    return _Term(size * unmasked_share, (mask.ref(), tuple(values.shape)))


def _skip_pass_through(tensor: tf.Tensor) -> tf.Tensor:
    """Follow ops that only pass their input on, back to the tensor that they pass on."""
    while tensor.op.type in _PASS_THROUGH:
        tensor = tensor.op.inputs[0]
    return tensor


def _unclamped(divisor: tf.Tensor) -> tf.Tensor:
    """Remove the lower bound that keeps a divisor from 0; at the bound, the true divisor is 0."""
    divisor = _skip_pass_through(divisor)
    if divisor.op.type == "Maximum":
        unbounded = [
            tensor for tensor in divisor.op.inputs if _skip_pass_through(tensor).op.type != "Const"
        ]
        return unbounded[0] if len(unbounded) == 1 else divisor
    return divisor


def _are_selected(values: tf.Tensor) -> bool:
    """Whether values were selected by a mask, which may select none."""
    return any(tensor.op.type in ("Where", "DynamicPartition") for tensor in _sources(values))


def _is_size(divisor: tf.Tensor) -> bool:
    """Whether a divisor is computed from shapes alone."""
    return all(tensor.op.type in _SHAPE_OPS for tensor in _sources(divisor, ends=_SIZES))


def depends_on(divisor: tf.Tensor, outputs: Any) -> bool:
    """Whether a divisor is computed from a model's outputs, or from its variables."""
    flat = tf.nest.flatten(outputs, expand_composites=True)
    refs = {tensor.ref() for tensor in flat if tf.is_tensor(tensor)}
    return any(
        tensor.ref() in refs or tensor.op.type == "ReadVariableOp"
        for tensor in _sources(divisor, ends=_SIZES)
    )


def _sources(tensor: tf.Tensor, *, ends: Collection[str] = ()) -> Iterator[tf.Tensor]:
    """Yield a tensor and all tensors that it is computed from, but none beyond ops in `ends`."""
    pending, seen = [tensor], set()
    while pending:
        tensor = pending.pop()
        if tensor.ref() not in seen:
            seen.add(tensor.ref())
            yield tensor
            if tensor.op.type not in ends:
                pending += tensor.op.inputs
