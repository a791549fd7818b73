"""Data that comes slowly, so that a job lasts until a test has done all it wants to it."""

import itertools
import time
from pathlib import Path

import tensorflow as tf

SLOW_SECONDS = 0.3
SLOWER_SECONDS = 1.5
"""Who still waits after many steps waits for long; a job of few steps is to outlast that."""
LOOK_SECONDS = 0.05


def pause_each_step(dataset, until, *, slower_after=60):
    """The same dataset, a moment later each time, and more so after many, until a file is there."""
    count = itertools.count()

    def wait(value):
        seconds = SLOW_SECONDS if next(count) < slower_after else SLOWER_SECONDS
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not Path(until).exists():
            time.sleep(LOOK_SECONDS)
        return value

    pause = tf.data.Dataset.from_tensors(0).map(
        lambda zero: tf.numpy_function(wait, [zero], tf.int32, stateful=True)
    )
    return pause.flat_map(lambda _: dataset)
