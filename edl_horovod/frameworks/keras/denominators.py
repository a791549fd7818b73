"""The divisor of a scalar loss, found while the loss is traced.

A mean over a batch is a sum divided by the number of examples, by the number of steps that a mask
leaves, or by a sum of weights. Over a ring, sums and divisors are added up one by one: the mean of
the ranks' means is another number where their divisors differ.

Keras' losses tell their divisor when they reduce their values; a division or a mean that the user
writes is found in the graph.
"""

import contextlib
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
from keras.src.losses import loss as keras_loss

__all__ = ["OverRing", "Reductions", "RingMean", "depends_on"]

_PASSING = {"Identity", "Cast", "Reshape", "Squeeze", "EnsureShape"}
"""Ops that pass a number on."""
_OF_TERMS = {"AddV2", "Add", "AddN", "Sub", "Neg", "Mul", "Pack", "Sum"}
"""Ops that make a number of others; `Pack` and `Sum` are how Keras adds losses."""
_DIVISIONS = {"RealDiv", "DivNoNan"}
_OF_SHAPES = {"Const", "Mul", "Pack", "Prod", "Shape", "Size", "StridedSlice", *_PASSING}
"""Ops that compute a number of elements."""
_MAX_DEPTH = 24
"""The number of ops between a loss and its means beyond which a graph is not searched."""


OverRing = Callable[[tf.Tensor], tf.Tensor]


@dataclass(frozen=True)
class RingMean:
    """A loss as what a ring adds up: a sum, and what it is divided by."""

    total: tf.Tensor
    weight: tf.Tensor
    """A scalar of the type of the total."""
    has_gradient: tf.Tensor | None = None
    """Whether the gradient is to be taken; false where it is that of 0 / 0. None for always."""


@dataclass(frozen=True)
class _Term:
    """A mean in a loss."""

    divisor: tf.Tensor
    source: Hashable
    """Identifies what the divisor is computed from; None for the number of examples."""
    may_be_nan: bool = False
    """Whether it is no number where nothing counts; Keras' own are 0."""


class Reductions:
    """The reductions of Keras' losses while a loss is traced."""

    def __init__(self, count: tf.Tensor, over_ring: OverRing | None = None) -> None:
        """Begin without any.

        Args:
            count: Number of examples.
            over_ring: Adds a row of numbers over the ring. Then each mean is divided by the ring's
                divisor, so that what a ring weighs by examples is right for all of them.
        """
        self._count, self._over_ring = tf.cast(count, tf.float32), over_ring
        self._terms: dict[Any, _Term] = {}

    @property
    def num_divisors(self) -> int:
        """How many different divisors there are; the number of examples is one."""
        return len({term.source for term in self._terms.values()})

    @contextlib.contextmanager
    def recorded(self) -> Iterator[None]:
        """Record them within this context.

        Keras has no public place where a loss and its mask meet.
        """
        original = keras_loss.reduce_weighted_values

        def reduce(
            values: Any,
            sample_weight: Any = None,
            mask: Any = None,
            reduction: str = "sum_over_batch_size",
            dtype: Any = None,
        ) -> Any:
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
        """A scalar loss as what a ring adds up.

        Args:
            loss: Traced while reductions were recorded.
            outputs: Of the model. What is divided by something that depends on them is no mean.
        """
        count = tf.cast(self._count, loss.dtype)
        by_examples = RingMean(loss * count, count)
        if self._over_ring is not None or not isinstance(getattr(loss, "graph", None), tf.Graph):
            return by_examples
        terms = self._terms_in(loss, outputs)
        if len({term.source for term in terms}) != 1 or terms[0].source is None:
            return by_examples
        weight = tf.cast(terms[0].divisor, loss.dtype)
        if not any(term.may_be_nan for term in terms):
            return RingMean(loss * weight, weight)
        total = tf.math.multiply_no_nan(loss, weight)
        return RingMean(total, weight, has_gradient=weight != 0)

    def _share(self, divisor: tf.Tensor, over_ring: OverRing) -> tf.Tensor:
        """What makes a sum divided by the ring's divisor, weighed by examples, of a mean."""
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
            above = self._terms_in(dividend, outputs, depth + 1)
            if above or divisor.shape.rank != 0 or depends_on(divisor, outputs):
                return above
            divisor = _unclamped(divisor)
            return [_Term(divisor, None if _is_size(divisor) else divisor.ref(), may_be_nan=True)]
        if op.type == "Mean" and tensor.shape.rank == 0 and op.inputs[0].shape.rank:
            values = op.inputs[0]
            return [_Term(tf.size(values), tensor.ref(), may_be_nan=_are_chosen(values))]
        if op.type in _OF_TERMS | _PASSING:
            inputs = op.inputs[:1] if op.type in ("Sum", "Reshape") else op.inputs
            return [term for each in inputs for term in self._terms_in(each, outputs, depth + 1)]
        return []


def _term_of(values: Any, sample_weight: Any, mask: Any, reduction: str) -> _Term:
    """The divisor of a reduction of Keras."""
    if reduction == "mean_with_sample_weight" and not (sample_weight is None and mask is None):
        weights = keras_loss.apply_mask(sample_weight, mask, values.dtype, reduction)
        return _Term(tf.reduce_sum(weights), object())
    size = tf.cast(tf.size(values), tf.float32)
    if mask is None:
        return _Term(size, None)
    share = tf.reduce_mean(tf.cast(mask, tf.float32))
    return _Term(size * share, (mask.ref(), tuple(values.shape)))


def _passed(tensor: tf.Tensor) -> tf.Tensor:
    """The number that ops have passed on."""
    while tensor.op.type in _PASSING:
        tensor = tensor.op.inputs[0]
    return tensor


def _unclamped(divisor: tf.Tensor) -> tf.Tensor:
    """A divisor without the bound that keeps it from 0: nothing counts where it is reached."""
    divisor = _passed(divisor)
    if divisor.op.type == "Maximum":
        free = [tensor for tensor in divisor.op.inputs if _passed(tensor).op.type != "Const"]
        return free[0] if len(free) == 1 else divisor
    return divisor


def _are_chosen(values: tf.Tensor) -> bool:
    """Whether values are those of some places only, of which there may be none."""
    waiting, seen = [values], set()
    while waiting:
        tensor = waiting.pop()
        if tensor.op.type in ("Where", "DynamicPartition"):
            return True
        if tensor.ref() not in seen:
            seen.add(tensor.ref())
            waiting += tensor.op.inputs
    return False


def _is_size(divisor: tf.Tensor) -> bool:
    """Whether a divisor is computed from shapes alone."""
    waiting, seen = [divisor], set()
    while waiting:
        tensor = waiting.pop()
        if tensor.ref() in seen or tensor.op.type in ("Shape", "Size"):
            continue
        seen.add(tensor.ref())
        if tensor.op.type not in _OF_SHAPES:
            return False
        waiting += tensor.op.inputs
    return True


def depends_on(divisor: tf.Tensor, outputs: Any) -> bool:
    """Whether a divisor is computed from a model's outputs, or from its variables."""
    flat = tf.nest.flatten(outputs, expand_composites=True)
    refs = {tensor.ref() for tensor in flat if tf.is_tensor(tensor)}
    waiting, seen = [divisor], set()
    while waiting:
        tensor = waiting.pop()
        if tensor.ref() in refs or tensor.op.type == "ReadVariableOp":
            return True
        if tensor.ref() in seen or tensor.op.type in ("Shape", "Size"):
            continue
        seen.add(tensor.ref())
        waiting += tensor.op.inputs
    return False
