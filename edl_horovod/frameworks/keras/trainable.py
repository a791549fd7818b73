"""Which layers and variables of a model are trained now, as part of the ring's state.

A callback may change this on the leader between epochs (`layer.trainable = True`). As part of the
state, the change reaches all ranks, joining ranks and checkpoints.
"""

from typing import Any

import keras
import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["Trainable"]


class Trainable:
    """A variable of the ring's state with 1 for each trainable layer and variable, else 0."""

    def __init__(self, model: keras.Model) -> None:
        """Read the current value from a built model."""
        # Keras has no public API for nested layers. Setting a layer's flag sets those of its inner
        # layers, too, so outer layers come first.
        layers = {id(layer): layer for layer in model._flatten_layers()}.values()
        self._layers = sorted(layers, key=lambda layer: -len(layer._flatten_layers()))
        self._model = model
        self._value = self._read()

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of layers and variables."""
        return self._value.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the flags."""
        return self._value.dtype

    def numpy(self) -> NDArray[np.uint8]:
        """The current value; every change of the value makes a new array."""
        return self._value

    def assign(self, value: ArrayLike) -> None:
        """Set which layers and variables are trained."""
        value = np.array(value, np.uint8)
        flags = iter(value.astype(bool).tolist())
        for part in (*self._layers, *self._model.variables):
            part.trainable = next(flags)
        self._set(value)

    def refresh(self) -> bool:
        """Read the current value from the model; return whether it has changed."""
        return self._set(self._read())

    def trainable_if_unfrozen(self) -> list[keras.Variable]:
        """List the variables that are trained if a callback unfreezes all layers."""
        for layer in self._layers:
            layer.trainable = True
        variables = list(self._model.trainable_variables)
        self.assign(self._value)
        return variables

    def _set(self, value: NDArray[np.uint8]) -> bool:
        has_changed = not np.array_equal(value, self._value)
        if has_changed:
            self._value = value
        return has_changed

    def _read(self) -> NDArray[np.uint8]:
        parts = (*self._layers, *self._model.variables)
        return np.array([bool(part.trainable) for part in parts], np.uint8)
