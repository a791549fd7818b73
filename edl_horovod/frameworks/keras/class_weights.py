"""Compute example weights from class weights, like `class_weight` of Keras' `fit`."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from edl_horovod.errors import UserCodeError

__all__ = ["weights_of_classes"]


def weights_of_classes(labels: Any, weights: Sequence[float], *, label: str) -> tf.Tensor:
    """Compute the weight of each example, shape (examples,), float32.

    Args:
        labels: Class numbers of shape (examples,) or (examples, 1), or one-hot vectors.
        weights: The weight of each class, by class number; further classes have weight 1.
        label: Name of the model in messages.

    Raises:
        UserCodeError: The labels are not one class for each example.
    """
    rank = None if tf.nest.is_nested(labels) else labels.shape.rank
    if rank not in (1, 2):
        raise UserCodeError(
            f"train.class_weight needs one class for each example of {label}.",
            received=f"labels {labels}",
            hint="Remove it, and return (features, labels, sample_weight) from create_dataset.",
        )
    if rank == 2:
        has_one_column = labels.shape[1] == 1
        labels = labels[:, 0] if has_one_column else tf.argmax(labels, 1)
    classes = tf.cast(labels, tf.int32)
    is_weighted = (classes >= 0) & (classes < len(weights))
    class_weights = tf.gather(tf.constant(weights, tf.float32), tf.where(is_weighted, classes, 0))
    return tf.where(is_weighted, class_weights, 1.0)
