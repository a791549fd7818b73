"""Accumulate and clip a step's gradients before the optimizer applies them."""

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from edl_horovod.frameworks.keras.functional import num_examples, some_examples
from edl_horovod.frameworks.keras.reduction import Sum, with_values
from edl_horovod.frameworks.step_options import StepOptions

__all__ = ["add_over_parts", "are_usable", "clip"]


def clip(gradients: Sequence[Sum], options: StepOptions, scale: tf.Tensor | float) -> list[Sum]:
    """Clip the mean gradients of a step. All ranks clip equal gradients, so they stay equal.

    Args:
        gradients: Gradients after the reduction; non-finite after an overflow of float16. Each row
            occurs at most once in an `IndexedSlices`; missing rows are 0.
        options: The limits.
        scale: The factor by which the loss, and so the gradients, are scaled.
    """
    clipped = list(gradients)
    if options.clip_value:
        limit = options.clip_value * scale
        clipped = [
            with_values(gradient, lambda values: _clip_finite(values, limit))
            for gradient in clipped
        ]
    if options.clip_norm:
        clipped, _ = tf.clip_by_global_norm(clipped, options.clip_norm * scale)
    return list(clipped)


def are_usable(gradients: Sequence[Sum], optimizer: keras.optimizers.Optimizer) -> tf.Tensor:
    """Whether an optimizer can apply the gradients, that is, whether all are finite.

    Always true for an optimizer that scales the loss, because it skips non-finite steps itself.
    """
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer) or not gradients:
        return tf.constant(True)
    values = [
        gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient
        for gradient in gradients
    ]
    # A sum is faster than a test of each element, and a sum of finite values rarely overflows.
    total = tf.add_n([tf.cast(tf.reduce_sum(value), tf.float32) for value in values])
    # Clipping by value turns infinite elements into finite ones.
    is_bad = tf.math.is_nan if optimizer.clipvalue else lambda x: ~tf.math.is_finite(x)
    return tf.cond(
        tf.math.is_finite(total),
        lambda: tf.constant(True),
        lambda: ~tf.reduce_any([tf.reduce_any(is_bad(value)) for value in values]),
    )


def _clip_finite(values: tf.Tensor, limit: tf.Tensor | float) -> tf.Tensor:
    # Non-finite values must stay non-finite: loss scaling looks for them.
    return tf.where(tf.math.is_finite(values), tf.clip_by_value(values, -limit, limit), values)


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
    """Split a batch into parts and add up their sums, with the memory of one part.

    Parts are not empty: a batch with few examples has fewer parts.

    Args:
        compute: Maps a part and the moving values to sums over its examples and the new moving
            values. The shapes are the same for every part.
        compute_last: The same for the last part, which runs outside of the loop over the others.
        batch: Tensors whose first dimension is the examples; at least one example.
        moving: Values of the non-trainable variables, which each part takes from the previous one.
        num_parts: The maximum number of parts.
        sum_specs: Shapes and types of the sums.

    Returns:
        The sums over all examples, and the moving values after the last part.
    """
    if num_parts == 1:
        return compute_last(batch, list(moving))
    count = num_examples(batch)
    size = (count + num_parts - 1) // num_parts

    def part_at(start: tf.Tensor) -> Any:
        return some_examples(batch, start, tf.minimum(start + size, count))

    def add(start: tf.Tensor, sums: Any, state: Any) -> Any:
        part_sums, state = compute(part_at(start), state)
        return start + size, _add_pairwise(sums, part_sums), state

    zeros = [tf.zeros(spec.shape, spec.dtype) for spec in sum_specs]
    start, sums, state = tf.while_loop(
        lambda start, *_: start + size < count,
        add,
        (tf.constant(0), zeros, list(moving)),
        parallel_iterations=1,
    )
    last_sums, state = compute_last(part_at(start), state)
    return _add_pairwise(sums, last_sums), state


def _add_pairwise(left: Sequence[tf.Tensor], right: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    return [a + b for a, b in zip(left, right, strict=True)]
