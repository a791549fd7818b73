"""The tiny model, whose worker is killed at the step that holds one record."""

import os
import signal

import numpy as np
import tensorflow as tf
from tiny import TinySpec


class DyingSpec(TinySpec):
    def create_loss(self, outputs, labels):
        def die_of(labels):
            if not np.isfinite(labels).all():
                os.kill(os.getpid(), signal.SIGKILL)
            return labels

        labels = tf.ensure_shape(tf.numpy_function(die_of, [labels], tf.float32), labels.shape)
        return super().create_loss(outputs, labels)
