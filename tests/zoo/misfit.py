"""A loss whose shapes fit by what is known when it is traced, and do not when it runs."""

import tensorflow as tf
from tiny import TinySpec

from edl_horovod import Mode


class MisfitSpec(TinySpec):
    def create_loss(self, outputs, labels):
        return tf.reduce_mean(tf.square(tf.repeat(outputs, 2) - tf.reshape(labels, [-1])))


class MisfitInMetrics(TinySpec):
    def create_metrics(self, mode, outputs, labels):
        wrong = tf.repeat(outputs, 2) if mode == Mode.EVALUATION else tf.reshape(outputs, [-1])
        return {"error": tf.reduce_mean(wrong - tf.reshape(labels, [-1]))}
