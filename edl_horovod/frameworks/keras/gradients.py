"""What happens to a step's gradients before the optimizer sees them: parts added, lengths cut."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import keras
import tensorflow as tf

from edl_horovod.frameworks.buckets import Reduction
from edl_horovod.frameworks.keras.functional import num_examples, some_examples
from edl_horovod.frameworks.keras.reduction import Sum, with_values

__all__ = ["GradientOptions", "add_over_parts", "are_usable", "clip"]


@dataclass(frozen=True, kw_only=True)
class GradientOptions:
    """How gradients are made and bounded."""

    clip_norm: float = 0.0
    """Longest gradient over all variables; 0 means no limit."""
    clip_value: float = 0.0
    """Largest absolute value in it; 0 means no limit."""
    num_parts: int = 1
    """Parts into which a rank cuts its examples of a step."""
    sums_batch_norm: bool = False
    """Whether BatchNormalization takes the examples of all ranks together."""
    scales_loss: bool = False
    """Whether the loss is scaled up so that float16 can hold its gradients."""
    reduction: Reduction = field(default_factory=Reduction)
    """How they are added over a ring."""


def clip(gradients: Sequence[Sum], options: GradientOptions, scale: tf.Tensor | float) -> list[Sum]:
    """Bound the mean gradients of a step; every rank has the same ones and bounds them alike.

    Args:
        gradients: Reduced over the ring; not finite where float16 could not hold them. No row is in
            an `IndexedSlices` twice, so the rows that are not there are 0.
        options: The bounds.
        scale: Of the loss, and so of the gradients.
    """
    bounded = list(gradients)
    if options.clip_value:
        most = options.clip_value * scale
        bounded = [with_values(each, lambda values: _cut(values, most)) for each in bounded]
    if options.clip_norm:
        bounded, _ = tf.clip_by_global_norm(bounded, options.clip_norm * scale)
    return list(bounded)


def are_usable(gradients: Sequence[Sum], optimizer: keras.optimizers.Optimizer) -> tf.Tensor:
    """Whether an optimizer can make a step by gradients: all are finite numbers.

    One that scales the loss leaves a step out by itself where they are not.
    """
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer) or not gradients:
        return tf.constant(True)
    values = [each.values if isinstance(each, tf.IndexedSlices) else each for each in gradients]
    # A sum takes less time than to look at each number, and only large ones overflow in it.
    total = tf.add_n([tf.cast(tf.reduce_sum(each), tf.float32) for each in values])
    # A bound of each value makes a large number of an infinite one.
    is_bad = tf.math.is_nan if optimizer.clipvalue else lambda x: ~tf.math.is_finite(x)
    return tf.cond(
        tf.math.is_finite(total),
        lambda: tf.constant(True),
        lambda: ~tf.reduce_any([tf.reduce_any(is_bad(each)) for each in values]),
    )


def _cut(values: tf.Tensor, most: tf.Tensor | float) -> tf.Tensor:
    # What is not finite must stay so: the loss scaling looks for it.
    return tf.where(tf.math.is_finite(values), tf.clip_by_value(values, -most, most), values)


Compute = Callable[[Any, list[tf.Tensor]], tuple[list[tf.Tensor], list[tf.Tensor]]]


def add_over_parts(
    compute: Compute,
    compute_last: Compute,
    batch: Any,
    moving: Sequence[tf.Tensor],
    *,
    num_parts: int,
    sum_specs: Sequence[Any],
) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
    """Cut a batch into parts and add what each gives, with the memory of one part.

    No part is empty: of few examples there are fewer parts.

    Args:
        compute: From a part and the moving values to sums over its examples, and the moving values
            after it. Of the same shapes for every part.
        compute_last: The same for the last part, which is outside of the loop over the others.
        batch: Tensors whose first dimension is the examples; at least one.
        moving: Values that each part takes from the one before.
        num_parts: Most parts.
        sum_specs: Shapes and types of the sums.

    Returns:
        The sums over all examples, and the moving values after the last part.
    """
    if num_parts == 1:
        return compute_last(batch, list(moving))
    count = num_examples(batch)
    size = (count + num_parts - 1) // num_parts

    def part(start: tf.Tensor) -> Any:
        return some_examples(batch, start, tf.minimum(start + size, count))

    def add(start: tf.Tensor, sums: Any, moved: Any) -> Any:
        more, moved = compute(part(start), moved)
        return start + size, _added(sums, more), moved

    zeros = [tf.zeros(spec.shape, spec.dtype) for spec in sum_specs]
    start, sums, moved = tf.while_loop(
        lambda start, *_: start + size < count,
        add,
        (tf.constant(0), zeros, list(moving)),
        parallel_iterations=1,
    )
    last, moved = compute_last(part(start), moved)
    return _added(sums, last), moved


def _added(some: Sequence[tf.Tensor], others: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    return [one + other for one, other in zip(some, others, strict=True)]
