"""Data that comes slowly, so that a job lasts until a test has done all it wants to it."""

import time
from pathlib import Path

import tensorflow as tf

SLOW_SECONDS = 0.3


def pause_each_step(dataset, until):
    """The same dataset, a moment later each time, until a file is there."""

    def wait(value):
        if not Path(until).exists():
            time.sleep(SLOW_SECONDS)
        return value

    pause = tf.data.Dataset.from_tensors(0).map(
        lambda zero: tf.numpy_function(wait, [zero], tf.int32, stateful=True)
    )
    return pause.flat_map(lambda _: dataset)
