"""Pad batches of `edl_horovod.padded` further, to one of a few lengths."""

from typing import Any

import tensorflow as tf

from edl_horovod.spec import Padding

__all__ = ["pad_to_lengths"]


def pad_to_lengths(dataset: tf.data.Dataset, padding: Padding) -> tf.data.Dataset:
    """Pad each axis of varying size to the smallest of `padding.lengths` that fits."""
    if not padding.lengths:
        return dataset
    spec = dataset.element_spec
    values = _padding_values(spec, padding.values)

    def pad(*parts: Any) -> Any:
        batch = parts if isinstance(spec, tuple) else parts[0]
        tensors = [
            _pad_tensor(tensor, value, padding.lengths)
            for tensor, value in zip(tf.nest.flatten(batch), values, strict=True)
        ]
        return tf.nest.pack_sequence_as(spec, tensors)

    return dataset.map(tf.autograph.experimental.do_not_convert(pad))


def _padding_values(spec: Any, configured: Any) -> list[Any]:
    """List the padding value of each tensor.

    Args:
        spec: Specs of a batch.
        configured: One value for all tensors, or a structure like `spec`. None means the default,
            an empty string or 0.
    """
    specs = tf.nest.flatten(spec)
    is_for_all = configured is None or not isinstance(configured, dict | tuple | list)
    values = [configured] * len(specs) if is_for_all else tf.nest.flatten(configured)
    defaults = ("" if tensor_spec.dtype == tf.string else 0 for tensor_spec in specs)
    return [
        default if value is None else value for value, default in zip(values, defaults, strict=True)
    ]


def _pad_tensor(tensor: tf.Tensor, value: Any, lengths: tuple[int, ...]) -> tf.Tensor:
    rank = len(tensor.shape)
    varying = [axis for axis in range(1, rank) if tensor.shape[axis] is None]
    if not varying:
        return tensor
    shape, bounds = tf.shape(tensor), tf.constant(lengths)
    longest = tf.reduce_max(tf.gather(shape, varying))
    message = (
        f"An example is longer than the last of lengths={list(lengths)} of edl_horovod.padded."
    )
    with tf.control_dependencies([tf.debugging.assert_less_equal(longest, lengths[-1], message)]):
        targets = tf.gather(bounds, tf.searchsorted(bounds, tf.gather(shape, varying)))
    axes = tf.constant(varying)[:, tf.newaxis]
    num_missing = tf.scatter_nd(axes, targets - tf.gather(shape, varying), [rank])
    paddings = tf.stack([tf.zeros_like(num_missing), num_missing], axis=1)
    return tf.pad(tensor, paddings, constant_values=tf.convert_to_tensor(value, tensor.dtype))
