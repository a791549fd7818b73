"""The tiny model, with steps so slow that each one shows in the events."""

import time

import tensorflow as tf
from tiny import TinySpec

STEP_SECONDS = 0.25
RECORD_SECONDS = 0.02


class PacedSpec(TinySpec):
    def create_loss(self, outputs, labels):
        def wait(zero):
            time.sleep(STEP_SECONDS)
            return zero

        with tf.control_dependencies([tf.numpy_function(wait, [0], tf.int32)]):
            return tf.identity(super().create_loss(outputs, labels))


class PerRecordSpec(TinySpec):
    """Steps that take as long as a rank has records: twice the ranks, half the time."""

    def create_loss(self, outputs, labels):
        def wait(num_records):
            time.sleep(RECORD_SECONDS * int(num_records))
            return num_records

        with tf.control_dependencies([tf.numpy_function(wait, [tf.shape(labels)[0]], tf.int32)]):
            return tf.identity(super().create_loss(outputs, labels))
