"""The tiny model with a loss that is finite, but has no derivative, at one record."""

import tensorflow as tf
from tiny import TinySpec


class SteepSpec(TinySpec):
    def create_loss(self, outputs, labels):
        is_steep = tf.math.is_nan(labels)
        loss = super().create_loss(outputs, tf.where(is_steep, 0.0, labels))
        square = tf.square(outputs - tf.stop_gradient(outputs))
        return loss + tf.reduce_mean(tf.sqrt(tf.where(is_steep, square, 0.25)))
