"""The counting model, with places at which one worker can be made to hang.

A file `input-1` in the folder `hang_in` makes the pipeline of slot 1 wait until the file is gone,
`forward-1` its forward pass, `build-1` its start, and `backward-1` its backward pass after the
clocks' gradients and before the counts'; a file `backward-1.reached` says that it waits. `lock-1`
makes foreign code hold the lock of the interpreter for a minute.
"""

import ctypes
import time
from pathlib import Path

import tensorflow as tf
from counting import CountingSpec

POLL_SECONDS = 0.05
LOCK_SECONDS = 60


class HangingSpec(CountingSpec):
    def __init__(self, context=None, hang_in="", **kwargs):
        super().__init__(context, **kwargs)
        self._folder = Path(hang_in)
        self._slot = (context or {}).get("worker_id", "0")

    def create_model(self):
        self._wait("build")
        model = super().create_model()
        model.between = self._between
        return model

    def create_dataset(self, dataset, mode):
        pause = tf.data.Dataset.from_tensors(0).map(lambda zero: self._pause(zero, "input"))
        examples = super().create_dataset(dataset, mode)
        return pause.flat_map(lambda _: examples)

    def create_loss(self, outputs, labels):
        zero = tf.cast(self._pause(tf.constant(0), "forward"), tf.float32)
        return super().create_loss(outputs + zero, labels)

    @tf.custom_gradient
    def _between(self, counts):
        def backward(gradient):
            with tf.control_dependencies([self._pause(tf.constant(0), "backward")]):
                return tf.identity(gradient)

        return tf.identity(counts), backward

    def _pause(self, zero, where):
        def wait(value):
            self._wait(where)
            if (self._folder / f"lock-{self._slot}").exists():
                ctypes.PyDLL(None).sleep(LOCK_SECONDS)
            return value

        value = tf.numpy_function(wait, [zero], tf.int32, stateful=True)
        value.set_shape(())
        return value

    def _wait(self, where):
        file = self._folder / f"{where}-{self._slot}"
        if file.exists():
            file.with_suffix(".reached").touch()
        while file.exists():
            time.sleep(POLL_SECONDS)
