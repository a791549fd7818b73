"""Encoders of columns: as numbers for a layer, or as codes for tables of embeddings."""

import zlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from edl_horovod.columns.infer import Column, DataType
from edl_horovod.columns.typed import Array, date_parts, keys_of, naming_column
from edl_horovod.errors import DataError

UNKNOWN = 0
"""The code of a value that did not occur in the training."""
_PADDING = 0
FIRST_OF_SEQUENCE = 2
"""The code of the number 0 in a sequence."""
_MIX = np.uint64(0x9E3779B97F4A7C15)
_Integers = NDArray[np.int64]
_Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Codes(ABC):
    """A method to convert cells to codes."""

    name: str
    """Name of the column; the names of all columns joined by * for a cross."""
    num_codes: int
    """One more than the largest code."""
    is_sequence: ClassVar[bool] = False
    """Whether a row has several codes, which end before the first 0."""
    unknown: ClassVar[int | None] = None
    """The code of values that did not occur in the training; None if every value is known."""

    @abstractmethod
    def encode(self, cells: Mapping[str, Array]) -> _Integers:
        """Return the codes of some rows, shape (rows, codes of a row)."""


@dataclass(frozen=True)
class Vocabulary(Codes):
    """Codes of the values of the training, the most frequent first; 0 for any other value."""

    values: tuple[str, ...]
    data_type: DataType
    """The column's type in the training."""
    unknown = UNKNOWN

    @classmethod
    def of(cls, column: Column) -> Self:
        """The codes of a column that has a vocabulary."""
        values = column.vocabulary
        return cls(column.name, len(values) + 1, values, column.data_type)

    @cached_property
    def _codes(self) -> dict[str, int]:
        return {value: code for code, value in enumerate(self.values, 1)}

    def encode(self, cells: Mapping[str, Array]) -> _Integers:
        """Look up each value."""
        codes = self._codes
        keys = _category_keys(cells, self.name, self.data_type)
        row_codes = np.fromiter((codes.get(key, UNKNOWN) for key in keys), np.int64, len(keys))
        return row_codes[:, np.newaxis]


@dataclass(frozen=True)
class Hashed(Codes):
    """A hash of the value that is the same on every machine."""

    data_type: DataType
    """The column's type in the training."""

    def encode(self, cells: Mapping[str, Array]) -> _Integers:
        """Hash each value."""
        keys = _category_keys(cells, self.name, self.data_type)
        hashes = (zlib.crc32(key.encode()) % self.num_codes for key in keys)
        return np.fromiter(hashes, np.int64, len(keys))[:, np.newaxis]


@dataclass(frozen=True)
class Ids(Codes):
    """Integers from 0, each with one more as its code; any other number is unknown."""

    unknown = UNKNOWN

    def encode(self, cells: Mapping[str, Array]) -> _Integers:
        """Use each number as its own code, plus one."""
        numbers = cells[self.name].astype(np.float64)
        is_known = (numbers >= 0) & (numbers < self.num_codes - 1) & (numbers == np.floor(numbers))
        codes = np.where(is_known, np.where(is_known, numbers, 0).astype(np.int64) + 1, UNKNOWN)
        return codes[:, np.newaxis]


@dataclass(frozen=True)
class Sequences(Codes):
    """Texts that contain sequences of integers of any length.

    Code 0 ends a sequence, and code 1 stands for unknown values.
    """

    separator: str
    is_sequence = True
    unknown = FIRST_OF_SEQUENCE - 1

    def encode(self, cells: Mapping[str, Array]) -> _Integers:
        """Split each text; shorter rows are padded with 0."""
        rows = [self._codes(key) for key in keys_of(cells[self.name])]
        codes = np.full((len(rows), max(map(len, rows), default=0) or 1), _PADDING, np.int64)
        for index, row in enumerate(rows):
            codes[index, : len(row)] = row
        return codes

    def _codes(self, key: str) -> list[int]:
        numbers = (number.strip() for number in key.split(self.separator) if number.strip())
        num_known = self.num_codes - FIRST_OF_SEQUENCE
        return [
            int(number) + FIRST_OF_SEQUENCE
            if number.isdecimal() and int(number) < num_known
            else self.unknown
            for number in numbers
        ]


@dataclass(frozen=True)
class Buckets(Codes):
    """The interval between borders that contains a number; an empty cell counts as the mean."""

    borders: tuple[float, ...]
    mean: float

    def encode(self, cells: Mapping[str, Array]) -> _Integers:
        """Find the bucket of each number."""
        numbers = cells[self.name].astype(np.float64)
        numbers = np.where(np.isnan(numbers), self.mean, numbers)
        return np.searchsorted(self.borders, numbers, side="right")[:, np.newaxis]


@dataclass(frozen=True)
class DatePart(Codes):
    """The month, the day of the week or the hour of a date."""

    part: str

    def encode(self, cells: Mapping[str, Array]) -> _Integers:
        """Return the part of each date."""
        return date_parts(cells[self.name])[self.part][:, np.newaxis]


@dataclass(frozen=True)
class Crossed(Codes):
    """A hash of the combination of values of several columns."""

    of: tuple[Codes, ...]

    def encode(self, cells: Mapping[str, Array]) -> _Integers:
        """Hash the codes of each row."""
        mixed: NDArray[np.uint64] = np.zeros(1, np.uint64)
        for part in self.of:
            mixed = (mixed ^ part.encode(cells)[:, 0].astype(np.uint64)) * _MIX
            mixed = mixed ^ (mixed >> np.uint64(29))
        return (mixed % np.uint64(self.num_codes)).astype(np.int64)[:, np.newaxis]


@dataclass(frozen=True)
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
    is_year: bool = False
    """Whether the number is the year of a date."""

    def encode(self, cells: Mapping[str, Array]) -> _Floats:
        """Scale each number."""
        values = cells[self.name]
        numbers = date_parts(values)["year"] if self.is_year else values.astype(np.float64)
        scaled = (numbers - self.mean) / self.deviation
        return np.nan_to_num(scaled, nan=0.0).astype(np.float32)[:, np.newaxis]


@dataclass(frozen=True)
class Vector(Numbers):
    """A text that contains several numbers."""

    name: str
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
    """A number for each code: how often it occurs in the row."""

    codes: Codes

    def encode(self, cells: Mapping[str, Array]) -> _Floats:
        """Count the codes of each row."""
        codes = self.codes.encode(cells)
        counts = np.zeros((len(codes), self.width), np.float32)
        np.add.at(counts, (np.arange(len(codes))[:, np.newaxis], codes), 1)
        if self.codes.is_sequence:
            counts[:, 0] = 0  # Code 0 is the end of a sequence, not a category.
        return counts


def _category_keys(cells: Mapping[str, Array], name: str, data_type: DataType) -> list[str]:
    """The keys of a column's values in vocabularies and hashes; errors name the column."""
    with naming_column(name, "cannot be read as categories"):
        return keys_of(cells[name], data_type)
