"""Which layers and variables of a model are trained now, as a part of the ring's state.

A callback may change it between epochs (`layer.trainable = True`), on the leader. As a value that
travels with the state it reaches all ranks, newcomers and checkpoints.
"""

from typing import Any

import keras
import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["Trainable"]


class Trainable:
    """See `base.Variable`: 1 for each layer and each variable that is to be trained, else 0."""

    def __init__(self, model: keras.Model) -> None:
        """Take what the model, which is built, has now."""
        # Keras has no public way to the layers inside of layers. Setting one sets those inside, so
        # the outer ones, which hold more, come first.
        layers = {id(layer): layer for layer in model._flatten_layers()}.values()
        self._layers = sorted(layers, key=lambda layer: -len(layer._flatten_layers()))
        self._model = model
        self._value = self._read()

    @property
    def shape(self) -> tuple[int, ...]:
        """How many layers and variables there are."""
        return self._value.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the numbers."""
        return self._value.dtype

    def numpy(self) -> NDArray[np.uint8]:
        """The present value; another object as soon as it is another value."""
        return self._value

    def assign(self, value: ArrayLike) -> None:
        """Have these layers and variables trained."""
        value = np.array(value, np.uint8)
        flags = iter(value.astype(bool).tolist())
        for part in (*self._layers, *self._model.variables):
            part.trainable = next(flags)
        self._keep(value)

    def note(self) -> bool:
        """Take what the model has now; returns whether that is new."""
        return self._keep(self._read())

    def ever(self) -> list[keras.Variable]:
        """The variables that a callback can have trained, whatever is trained now."""
        for layer in self._layers:
            layer.trainable = True
        found = list(self._model.trainable_variables)
        self.assign(self._value)
        return found

    def _keep(self, value: NDArray[np.uint8]) -> bool:
        is_new = not np.array_equal(value, self._value)
        if is_new:
            self._value = value
        return is_new

    def _read(self) -> NDArray[np.uint8]:
        parts = (*self._layers, *self._model.variables)
        return np.array([bool(part.trainable) for part in parts], np.uint8)
