"""A mistake: a layer whose width depends on which worker makes it."""

import keras
from tiny import TinySpec


class UnevenSpec(TinySpec):
    def __init__(self, context=None):
        super().__init__(context)
        self._width = 8 + int(context["worker_id"])

    def create_model(self):
        x = keras.Input(shape=(4,), name="x")
        hidden = keras.layers.Dense(self._width, activation="tanh", name="hidden")(x)
        return keras.Model({"x": x}, keras.layers.Dense(1)(hidden))
