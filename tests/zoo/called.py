"""The paced model with a callback that remembers: the rate falls with each epoch it has counted."""

import keras
from paced import PacedSpec


class Counts(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.num_epochs = 0

    def on_epoch_end(self, epoch, logs=None):
        self.num_epochs += 1
        self.model.optimizer.learning_rate = 0.05 / (1 + self.num_epochs)


class CalledSpec(PacedSpec):
    def create_callbacks(self):
        return [Counts()]
