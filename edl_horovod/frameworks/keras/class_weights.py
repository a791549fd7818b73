"""Weights of examples by their class, as `class_weight` of Keras' `fit`."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from edl_horovod.errors import UserCodeError

__all__ = ["weights_of_classes"]


def weights_of_classes(labels: Any, weights: Sequence[float], *, label: str) -> tf.Tensor:
    """The weight of each example, shape (examples,), float32.

    Args:
        labels: Classes as numbers, shape (examples,) or (examples, 1), or one-hot.
        weights: Of the classes, from 0 on; the other ones weigh 1.
        label: Names the model in messages.

    Raises:
        UserCodeError: The labels are no classes of examples.
    """
    rank = None if tf.nest.is_nested(labels) else labels.shape.rank
    if rank not in (1, 2):
        raise UserCodeError(
            f"train.class_weight needs one class for each example of {label}.",
            received=f"labels {labels}",
            cure="Leave it out, and have create_dataset give (features, labels, sample_weight).",
        )
    if rank == 2:
        is_number = labels.shape[1] == 1
        labels = labels[:, 0] if is_number else tf.argmax(labels, 1)
    classes = tf.cast(labels, tf.int32)
    is_weighted = (classes >= 0) & (classes < len(weights))
    found = tf.gather(tf.constant(weights, tf.float32), tf.where(is_weighted, classes, 0))
    return tf.where(is_weighted, found, 1.0)
