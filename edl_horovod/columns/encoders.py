"""Encoders of columns: as numbers for a layer, or as codes for tables of embeddings."""

import zlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from edl_horovod.columns.infer import DataType
from edl_horovod.columns.typed import DATE_PARTS, Array, date_parts, keys_of
from edl_horovod.errors import DataError

__all__ = [
    "Buckets",
    "Codes",
    "Crossed",
    "DatePart",
    "Hashed",
    "Ids",
    "Indicator",
    "Numbers",
    "Scaled",
    "ScaledYear",
    "Sequences",
    "Vector",
    "Vocabulary",
]

UNKNOWN = 0
"""The code of a value that did not occur in the training."""
_PADDING, _FIRST_OF_SEQUENCE = 0, 2
_MIX = np.uint64(0x9E3779B97F4A7C15)
_Integers = NDArray[np.int64]
_Floats = NDArray[np.float32]


class Codes(ABC):
    """A method to convert cells to codes."""

    name: str
    """Name of the column; the names of all columns joined by * for a cross."""
    num_codes: int
    """One more than the largest code."""
    is_sequence = False
    """Whether a row has several codes, which end before the first 0."""
    unknown: int | None = None
    """The code of values that did not occur in the training; None if every value is known."""

    @abstractmethod
    def encode(self, cells: Mapping[str, Array]) -> _Integers:
        """Return the codes of some rows, shape (rows, codes of a row)."""


@dataclass(frozen=True)
class Vocabulary(Codes):
    """Codes of the values of the training, the most frequent first; 0 for any other value."""

    name: str
    values: tuple[str, ...]
    data_type: DataType | None = None
    """The column's type in the training."""
    unknown = UNKNOWN

    @property
    def num_codes(self) -> int:  # type: ignore[override]
        """The values and one for unknown values."""
        return len(self.values) + 1

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

    name: str
    num_codes: int = field()
    data_type: DataType | None = None
    """The column's type in the training."""

    def encode(self, cells: Mapping[str, Array]) -> _Integers:
        """Hash each value."""
        keys = _category_keys(cells, self.name, self.data_type)
        hashes = (zlib.crc32(key.encode()) % self.num_codes for key in keys)
        return np.fromiter(hashes, np.int64, len(keys))[:, np.newaxis]


@dataclass(frozen=True)
class Ids(Codes):
    """Integers from 0 to a bound (exclusive); any other number is unknown."""

    name: str
    num_buckets: int
    unknown = UNKNOWN

    @property
    def num_codes(self) -> int:  # type: ignore[override]
        """The numbers and one for unknown values."""
        return self.num_buckets + 1

    def encode(self, cells: Mapping[str, Array]) -> _Integers:
        """Use each number as its own code, plus one."""
        numbers = cells[self.name].astype(np.float64)
        is_known = (numbers >= 0) & (numbers < self.num_buckets) & (numbers == np.floor(numbers))
        codes = np.where(is_known, np.where(is_known, numbers, 0).astype(np.int64) + 1, UNKNOWN)
        return codes[:, np.newaxis]


@dataclass(frozen=True)
class Sequences(Codes):
    """Texts that contain sequences of integers of any length."""

    name: str
    num_buckets: int
    separator: str
    is_sequence = True
    unknown = _FIRST_OF_SEQUENCE - 1

    @property
    def num_codes(self) -> int:  # type: ignore[override]
        """The numbers, one for unknown values and one for the end of a sequence."""
        return self.num_buckets + _FIRST_OF_SEQUENCE

    def encode(self, cells: Mapping[str, Array]) -> _Integers:
        """Split each text; shorter rows are padded with 0."""
        rows = [self._codes(key) for key in keys_of(cells[self.name])]
        codes = np.full((len(rows), max(map(len, rows), default=0) or 1), _PADDING, np.int64)
        for index, row in enumerate(rows):
            codes[index, : len(row)] = row
        return codes

    def _codes(self, key: str) -> list[int]:
        numbers = (number.strip() for number in key.split(self.separator) if number.strip())
        return [
            int(number) + _FIRST_OF_SEQUENCE
            if number.isdecimal() and int(number) < self.num_buckets
            else self.unknown
            for number in numbers
        ]


@dataclass(frozen=True)
class Buckets(Codes):
    """The interval between borders that contains a number; an empty cell counts as the mean."""

    name: str
    borders: tuple[float, ...]
    mean: float

    @property
    def num_codes(self) -> int:  # type: ignore[override]
        """One more than the number of borders."""
        return len(self.borders) + 1

    def encode(self, cells: Mapping[str, Array]) -> _Integers:
        """Find the bucket of each number."""
        numbers = cells[self.name].astype(np.float64)
        numbers = np.where(np.isnan(numbers), self.mean, numbers)
        return np.searchsorted(self.borders, numbers, side="right")[:, np.newaxis]


@dataclass(frozen=True)
class DatePart(Codes):
    """The month, the day of the week or the hour of a date."""

    name: str
    part: str

    @property
    def num_codes(self) -> int:  # type: ignore[override]
        """One more than the largest number of the part."""
        return DATE_PARTS[self.part]

    def encode(self, cells: Mapping[str, Array]) -> _Integers:
        """Return the part of each date."""
        return date_parts(cells[self.name])[self.part][:, np.newaxis]


@dataclass(frozen=True)
class Crossed(Codes):
    """A hash of the combination of values of several columns."""

    of: Sequence[Codes]
    num_codes: int = field()

    @property
    def name(self) -> str:  # type: ignore[override]
        """The names of all columns."""
        return " * ".join(part.name for part in self.of)

    def encode(self, cells: Mapping[str, Array]) -> _Integers:
        """Hash the codes of each row."""
        mixed: NDArray[np.uint64] = np.zeros(1, np.uint64)
        for part in self.of:
            mixed = (mixed ^ part.encode(cells)[:, 0].astype(np.uint64)) * _MIX
            mixed = mixed ^ (mixed >> np.uint64(29))
        return (mixed % np.uint64(self.num_codes)).astype(np.int64)[:, np.newaxis]


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


def _category_keys(cells: Mapping[str, Array], name: str, data_type: DataType | None) -> list[str]:
    """The keys of a column's values in vocabularies and hashes; errors name the column."""
    try:
        return keys_of(cells[name], data_type)
    except DataError as error:
        problem = f"{error.problem[:1].lower()}{error.problem[1:]}"
        raise DataError(
            f"The column {name!r} cannot be read as categories: {problem}",
            received=error.received,
            hint=error.hint,
        ) from error
