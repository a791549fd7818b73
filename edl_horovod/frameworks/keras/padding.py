"""Batches that `edl_horovod.padded` made, padded further to one of a few lengths."""

from typing import Any

import tensorflow as tf

from edl_horovod.spec import Padding

__all__ = ["pad_to_lengths"]


def pad_to_lengths(dataset: tf.data.Dataset, padding: Padding) -> tf.data.Dataset:
    """Pad each axis in which batches may differ, to the first length that is enough."""
    if not padding.lengths:
        return dataset
    spec = dataset.element_spec
    values = _values(spec, padding.values)

    def pad(*parts: Any) -> Any:
        batch = parts if isinstance(spec, tuple) else parts[0]
        tensors = [
            _padded(tensor, value, padding.lengths)
            for tensor, value in zip(tf.nest.flatten(batch), values, strict=True)
        ]
        return tf.nest.pack_sequence_as(spec, tensors)

    return dataset.map(tf.autograph.experimental.do_not_convert(pad))


def _values(spec: Any, given: Any) -> list[Any]:
    """The value for each tensor: the one that was given for all, or for it; None is the default."""
    specs = tf.nest.flatten(spec)
    is_for_all = given is None or not isinstance(given, dict | tuple | list)
    values = [given] * len(specs) if is_for_all else tf.nest.flatten(given)
    defaults = ("" if each.dtype == tf.string else 0 for each in specs)
    return [
        default if value is None else value for value, default in zip(values, defaults, strict=True)
    ]


def _padded(tensor: tf.Tensor, value: Any, lengths: tuple[int, ...]) -> tf.Tensor:
    rank = len(tensor.shape)
    varying = [axis for axis in range(1, rank) if tensor.shape[axis] is None]
    if not varying:
        return tensor
    shape, bounds = tf.shape(tensor), tf.constant(lengths)
    longest = tf.reduce_max(tf.gather(shape, varying))
    said = f"An example is longer than the last of lengths={list(lengths)} of edl_horovod.padded."
    with tf.control_dependencies([tf.debugging.assert_less_equal(longest, lengths[-1], said)]):
        enough = tf.gather(bounds, tf.searchsorted(bounds, tf.gather(shape, varying)))
    axes = tf.constant(varying)[:, tf.newaxis]
    missing = tf.scatter_nd(axes, enough - tf.gather(shape, varying), [rank])
    paddings = tf.stack([tf.zeros_like(missing), missing], axis=1)
    return tf.pad(tensor, paddings, constant_values=tf.convert_to_tensor(value, tensor.dtype))
