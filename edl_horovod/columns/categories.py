"""Columns as codes: whole numbers from 0 on that choose rows of a table of the model."""

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

__all__ = ["Buckets", "Codes", "Crossed", "DatePart", "Hashed", "Ids", "Sequences", "Vocabulary"]

UNKNOWN = 0
"""The code of a value that the training did not have."""
_PADDING, _FIRST_OF_SEQUENCE = 0, 2
_MIX = np.uint64(0x9E3779B97F4A7C15)

_Integers = NDArray[np.int64]


class Codes(ABC):
    """One way to make codes of cells."""

    name: str
    """Of the column; of a cross that of all, with a * between them."""
    num_codes: int
    """One more than the largest code."""
    is_sequence = False
    """Whether a row has several, up to the first 0, which is none."""
    unknown: int | None = None
    """The code of what the training did not have; None where all are known."""

    @abstractmethod
    def encode(self, cells: Mapping[str, Array]) -> _Integers:
        """The codes of some rows, shape (rows, codes of a row)."""


@dataclass(frozen=True)
class Vocabulary(Codes):
    """The values that the training had, the commonest first; 0 is any other."""

    name: str
    values: tuple[str, ...]
    data_type: DataType | None = None
    """What the training had in the column."""
    unknown = UNKNOWN

    @property
    def num_codes(self) -> int:  # type: ignore[override]
        """The values and the unknown one."""
        return len(self.values) + 1

    @cached_property
    def _codes(self) -> dict[str, int]:
        return {value: code for code, value in enumerate(self.values, 1)}

    def encode(self, cells: Mapping[str, Array]) -> _Integers:
        """Look each value up."""
        codes = self._codes
        keys = _keys(cells, self.name, self.data_type)
        found = np.fromiter((codes.get(key, UNKNOWN) for key in keys), np.int64, len(keys))
        return found[:, np.newaxis]


@dataclass(frozen=True)
class Hashed(Codes):
    """A hash of the value, the same wherever it is computed."""

    name: str
    num_codes: int = field()
    data_type: DataType | None = None
    """What the training had in the column."""

    def encode(self, cells: Mapping[str, Array]) -> _Integers:
        """Hash each value."""
        keys = _keys(cells, self.name, self.data_type)
        hashes = (zlib.crc32(key.encode()) % self.num_codes for key in keys)
        return np.fromiter(hashes, np.int64, len(keys))[:, np.newaxis]


@dataclass(frozen=True)
class Ids(Codes):
    """Whole numbers from 0 up to a bound, which is left out; any other is unknown."""

    name: str
    num_buckets: int
    unknown = UNKNOWN

    @property
    def num_codes(self) -> int:  # type: ignore[override]
        """The numbers and the unknown one."""
        return self.num_buckets + 1

    def encode(self, cells: Mapping[str, Array]) -> _Integers:
        """Take each number for what it is."""
        numbers = cells[self.name].astype(np.float64)
        is_known = (numbers >= 0) & (numbers < self.num_buckets) & (numbers == np.floor(numbers))
        codes = np.where(is_known, np.where(is_known, numbers, 0).astype(np.int64) + 1, UNKNOWN)
        return codes[:, np.newaxis]


@dataclass(frozen=True)
class Sequences(Codes):
    """Texts with whole numbers in them; a row is as long as its sequence."""

    name: str
    num_buckets: int
    separator: str
    is_sequence = True
    unknown = _FIRST_OF_SEQUENCE - 1

    @property
    def num_codes(self) -> int:  # type: ignore[override]
        """The numbers, the unknown one and the end."""
        return self.num_buckets + _FIRST_OF_SEQUENCE

    def encode(self, cells: Mapping[str, Array]) -> _Integers:
        """Split each text; shorter rows end in 0."""
        rows = [self._codes(key) for key in keys_of(cells[self.name])]
        codes = np.full((len(rows), max(map(len, rows), default=0) or 1), _PADDING, np.int64)
        for place, row in enumerate(rows):
            codes[place, : len(row)] = row
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
    """Between which borders a number lies; an empty cell counts as the mean."""

    name: str
    borders: tuple[float, ...]
    mean: float

    @property
    def num_codes(self) -> int:  # type: ignore[override]
        """One more than there are borders."""
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
        """One more than the largest."""
        return DATE_PARTS[self.part]

    def encode(self, cells: Mapping[str, Array]) -> _Integers:
        """Take the part of each date."""
        return date_parts(cells[self.name])[self.part][:, np.newaxis]


@dataclass(frozen=True)
class Crossed(Codes):
    """A hash of what several columns have together."""

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


def _keys(cells: Mapping[str, Array], name: str, data_type: DataType | None) -> list[str]:
    try:
        return keys_of(cells[name], data_type)
    except DataError as error:
        what = f"{error.what[:1].lower()}{error.what[1:]}"
        raise DataError(
            f"The column {name!r} cannot be read as categories: {what}",
            received=error.received,
            cure=error.cure,
        ) from error
