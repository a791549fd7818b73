"""Variables of the ring's state whose value is kept somewhere else, in a form of its own."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["LiveVariable"]


class LiveVariable:
    """See `base.Variable`: one row of numbers that is read and written where it is kept."""

    def __init__(
        self,
        read: Callable[[], ArrayLike],
        write: Callable[[NDArray[Any]], None],
        dtype: Any = np.float64,
    ) -> None:
        """Take how to reach the value.

        Args:
            read: Gives the present value, always of the same shape.
            write: Takes another one.
            dtype: NumPy's type of it.
        """
        self._read, self._write = read, write
        self._dtype: np.dtype[Any] = np.dtype(dtype)
        self._shape = self.numpy().shape

    @property
    def shape(self) -> tuple[int, ...]:
        """The value's sizes."""
        return self._shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """The value's type."""
        return self._dtype

    def numpy(self) -> NDArray[Any]:
        """A copy of the present value."""
        return np.array(self._read(), self._dtype)

    def assign(self, value: ArrayLike) -> None:
        """Write another value of the same shape."""
        array = np.array(value, self._dtype)
        assert array.shape == self._shape, (array.shape, self._shape)
        self._write(array)
