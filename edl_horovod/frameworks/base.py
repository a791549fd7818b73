"""What the ring, the tasks and a trained model need of a framework (DESIGN D16).

They know arrays and names. What a framework computes with, and how, stays in its own folder.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["Array", "CollectiveFailed", "Collectives", "Variable"]


class CollectiveFailed(Exception):
    """A collective did not complete: a member died, hung or left. The ring must form again."""

    def __init__(self, message: str, *, unreached: Iterable[str] = ()) -> None:
        """Describe the failure.

        Args:
            message: For people.
            unreached: IP addresses of members that this rank could not connect to.
        """
        super().__init__(message)
        self.unreached = frozenset(unreached)


class Variable(Protocol):
    """An array that changes while a job runs."""

    @property
    def shape(self) -> Iterable[int]:
        """Its sizes, which never change."""

    @property
    def dtype(self) -> Any:
        """Its type; `dtype.name` is NumPy's name of it."""

    def numpy(self) -> NDArray[Any]:
        """The present value."""

    def assign(self, value: NDArray[Any]) -> Any:
        """Replace the value by one of the same shape and type."""


class Array:
    """A variable that no framework computes with: sums, numbers and text of a task."""

    def __init__(self, value: ArrayLike) -> None:
        """Begin with a copy of this value."""
        self._value = _frozen(np.array(value))

    @property
    def shape(self) -> tuple[int, ...]:
        """The array's shape."""
        return self._value.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """The array's type."""
        return self._value.dtype

    def numpy(self) -> NDArray[Any]:
        """The present value, read-only; later changes do not show in it."""
        return self._value

    def assign(self, value: ArrayLike) -> None:
        """Replace the value by a copy of one of the same shape."""
        copy = np.array(value, self._value.dtype)
        assert copy.shape == self._value.shape, (copy.shape, self._value.shape)
        self._value = _frozen(copy)


def _frozen(array: NDArray[Any]) -> NDArray[Any]:
    array.flags.writeable = False
    return array


class Collectives(Protocol):
    """What all ranks of a ring do together: all call the same ones in the same order.

    Each raises `CollectiveFailed` where a member is lost meanwhile. The names pair the calls.
    """

    def sum(self, values: NDArray[Any], name: str) -> NDArray[Any]:
        """Add the ranks' arrays, which have the same shape and type."""

    def gather_rows(self, row: Sequence[int], name: str) -> NDArray[np.int64]:
        """Gather one row of integers of each rank; shape (size, len(row)), in rank order."""

    def broadcast(self, variables: Sequence[Variable], root: int, name: str) -> None:
        """Give every rank's variables the values of those of the rank `root`: all or none."""
