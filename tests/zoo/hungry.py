"""The paced tiny model, which takes far more memory once in slot 1, as soon as a file is there."""

from pathlib import Path

import numpy as np
import tensorflow as tf
from paced import PacedSpec

PIECE_BYTES, NUM_PIECES = 16 << 20, 64
_held = []


class HungrySpec(PacedSpec):
    def __init__(self, context=None, meal=""):
        super().__init__(context)
        self._is_hungry = (context or {}).get("worker_id") == "1"
        self._meal = Path(meal)

    def create_loss(self, outputs, labels):
        def eat(zero):
            if self._is_hungry and self._meal.exists():
                self._meal.unlink()
                # Written to, because memory that is only reserved is not there yet.
                _held.extend(np.ones(PIECE_BYTES, np.uint8) for _ in range(NUM_PIECES))
            return zero

        with tf.control_dependencies([tf.numpy_function(eat, [0], tf.int32)]):
            return tf.identity(super().create_loss(outputs, labels))
