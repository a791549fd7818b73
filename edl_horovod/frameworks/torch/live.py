"""Variables of the ring's state whose values are stored elsewhere, in another form."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["LiveVariable"]


class LiveVariable:
    """Implements `values.Variable` by functions that read and write an array of numbers."""

    def __init__(
        self,
        read: Callable[[], ArrayLike],
        write: Callable[[NDArray[Any]], None],
        dtype: Any = np.float64,
    ) -> None:
        """Create the variable.

        Args:
            read: Returns the current value, always with the same shape.
            write: Stores a new value.
            dtype: NumPy's type of the value.
        """
        self._read, self._write = read, write
        self._dtype: np.dtype[Any] = np.dtype(dtype)
        self._shape = self.numpy().shape

    @property
    def shape(self) -> tuple[int, ...]:
        """The value's shape."""
        return self._shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """The value's type."""
        return self._dtype

    def numpy(self) -> NDArray[Any]:
        """A copy of the current value."""
        return np.array(self._read(), self._dtype)

    def assign(self, value: ArrayLike) -> None:
        """Write a value of the same shape."""
        array = np.array(value, self._dtype)
        assert array.shape == self._shape, (array.shape, self._shape)
        self._write(array)
