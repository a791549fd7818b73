"""Data of TensorFlow that comes slowly."""

import tensorflow as tf


def delayed(dataset, call):
    """The same dataset, which calls a function each time before it begins."""

    def call_first(zero):
        call()
        return zero

    pause = tf.data.Dataset.from_tensors(0).map(
        lambda zero: tf.numpy_function(call_first, [zero], tf.int32, stateful=True)
    )
    return pause.flat_map(lambda _: dataset)
