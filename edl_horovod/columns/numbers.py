"""Columns as the numeric input of a layer: scaled, split, or one number for each category."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edl_horovod.columns.categories import Codes
from edl_horovod.columns.typed import Array, date_parts, keys_of
from edl_horovod.errors import DataError

__all__ = ["Indicator", "Numbers", "Scaled", "ScaledYear", "Vector"]

_Floats = NDArray[np.float32]


class Numbers(ABC):
    """A method to convert cells to numbers."""

    width: int
    """Number of numbers in a row."""

    @abstractmethod
    def encode(self, cells: Mapping[str, Array]) -> _Floats:
        """Return the numbers of some rows, shape (rows, width)."""


@dataclass(frozen=True)
class Scaled(Numbers):
    """A number minus the mean, divided by the deviation; an empty cell counts as the mean."""

    name: str
    mean: float
    deviation: float
    width = 1

    def encode(self, cells: Mapping[str, Array]) -> _Floats:
        """Scale each number."""
        scaled = (cells[self.name].astype(np.float64) - self.mean) / self.deviation
        return np.nan_to_num(scaled, nan=0.0).astype(np.float32)[:, np.newaxis]


@dataclass(frozen=True)
class ScaledYear(Numbers):
    """The year of a date minus the mean, divided by the deviation."""

    name: str
    mean: float
    deviation: float
    width = 1

    def encode(self, cells: Mapping[str, Array]) -> _Floats:
        """Scale each year."""
        years = date_parts(cells[self.name])["year"]
        return ((years - self.mean) / self.deviation).astype(np.float32)[:, np.newaxis]


@dataclass(frozen=True)
class Vector(Numbers):
    """A text that contains several numbers."""

    name: str
    width: int
    separator: str

    def encode(self, cells: Mapping[str, Array]) -> _Floats:
        """Split each text.

        Raises:
            DataError: A text does not contain `width` numbers.
        """
        keys = keys_of(cells[self.name])
        numbers = np.empty((len(keys), self.width), np.float32)
        for index, key in enumerate(keys):
            try:
                numbers[index] = [float(number) for number in key.split(self.separator)]
            except ValueError as error:
                raise DataError(
                    f"The column {self.name!r} must have {self.width} numbers in each row,"
                    f" separated by {self.separator!r}.",
                    received=repr(key[:60]),
                    hint="Correct the shape in COLUMN, or remove the row.",
                ) from error
        return numbers


@dataclass(frozen=True)
class Indicator(Numbers):
    """A number for each category: how often it occurs in the row."""

    codes: Codes

    @property
    def width(self) -> int:  # type: ignore[override]
        """One number for each code."""
        return self.codes.num_codes

    def encode(self, cells: Mapping[str, Array]) -> _Floats:
        """Count the codes of each row."""
        codes = self.codes.encode(cells)
        counts = np.zeros((len(codes), self.width), np.float32)
        np.add.at(counts, (np.arange(len(codes))[:, np.newaxis], codes), 1)
        if self.codes.is_sequence:
            counts[:, 0] = 0  # Code 0 is the end of a sequence, not a category.
        return counts
