"""The counting model, with places at which one worker can be made to hang."""

import tensorflow as tf
from both_hanging import Hangs
from counting import CountingSpec
from slow import delayed


class HangingSpec(Hangs, CountingSpec):
    def create_dataset(self, dataset, mode):
        return delayed(super().create_dataset(dataset, mode), lambda: self._wait("input"))

    def create_loss(self, outputs, labels):
        zero = tf.cast(self._pause("forward"), tf.float32)
        return super().create_loss(outputs + zero, labels)

    @tf.custom_gradient
    def _between(self, counts):
        def backward(gradient):
            with tf.control_dependencies([self._pause("backward")]):
                return tf.identity(gradient)

        return tf.identity(counts), backward

    def _pause(self, place):
        """Zero, as a part of the graph that waits."""

        def wait(zero):
            self._wait(place)
            return zero

        zero = tf.numpy_function(wait, [tf.constant(0)], tf.int32, stateful=True)
        zero.set_shape(())
        return zero
