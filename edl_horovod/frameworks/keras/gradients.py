"""What happens to a step's gradients before the optimizer sees them: parts added, lengths cut."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

__all__ = ["GradientOptions", "add_over_parts", "clip"]


@dataclass(frozen=True, kw_only=True)
class GradientOptions:
    """How gradients are made and bounded."""

    clip_norm: float = 0.0
    """Longest gradient over all variables; 0 means no limit."""
    clip_value: float = 0.0
    """Largest absolute value in it; 0 means no limit."""
    num_parts: int = 1
    """Parts into which a rank cuts its examples of a step."""
    scales_loss: bool = False
    """Whether the loss is scaled up so that float16 can hold its gradients."""


def clip(
    gradients: Sequence[tf.Tensor], options: GradientOptions, scale: tf.Tensor | float
) -> list[tf.Tensor]:
    """Bound the mean gradients of a step; every rank has the same ones and bounds them alike.

    Args:
        gradients: Reduced over the ring; not finite where float16 could not hold them.
        options: The bounds.
        scale: Of the loss, and so of the gradients.
    """
    bounded = list(gradients)
    if options.clip_value:
        most = options.clip_value * scale
        bounded = [
            # What is not finite must stay so: the loss scaling looks for it.
            tf.where(tf.math.is_finite(value), tf.clip_by_value(value, -most, most), value)
            for value in bounded
        ]
    if options.clip_norm:
        bounded, _ = tf.clip_by_global_norm(bounded, options.clip_norm * scale)
    return list(bounded)


def add_over_parts(
    compute: Callable[[Any, list[tf.Tensor]], tuple[list[tf.Tensor], list[tf.Tensor]]],
    batch: Any,
    moving: Sequence[tf.Tensor],
    num_parts: int,
) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
    """Cut a batch into parts and add what each gives, with the memory of one part.

    No part is empty: of few examples there are fewer parts.

    Args:
        compute: From a part and the moving values to sums over its examples, and the moving values
            after it. Of the same shapes for every part.
        batch: Tensors whose first dimension is the examples; at least one.
        moving: Values that each part takes from the one before.
        num_parts: Most parts.

    Returns:
        The sums over all examples, and the moving values after the last part.
    """
    if num_parts == 1:
        return compute(batch, list(moving))
    count = tf.shape(tf.nest.flatten(batch)[0])[0]
    size = (count + num_parts - 1) // num_parts

    def part(start: tf.Tensor) -> Any:
        return tf.nest.map_structure(lambda value: value[start : start + size], batch)

    sums, moved = compute(part(tf.constant(0)), list(moving))

    def add(start: tf.Tensor, sums: Any, moved: Any) -> Any:
        more, moved = compute(part(start), moved)
        added = [one + other for one, other in zip(sums, more, strict=True)]
        return start + size, added, moved

    _, sums, moved = tf.while_loop(
        lambda start, *_: start < count, add, (size, sums, moved), parallel_iterations=1
    )
    return sums, moved
