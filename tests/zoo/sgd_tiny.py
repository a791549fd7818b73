"""The tiny model with plain SGD, whose learning rate may follow a schedule."""

import keras
from tiny import TinySpec


class SgdSpec(TinySpec):
    def create_optimizer(self, lr=0.05, halve_every=0):
        if halve_every:
            lr = keras.optimizers.schedules.ExponentialDecay(lr, halve_every, 0.5, staircase=True)
        return keras.optimizers.SGD(lr)
