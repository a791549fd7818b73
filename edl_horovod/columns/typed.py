"""Statistics and vocabularies of typed columns, as in Parquet and databases, in one pass.

The types are known, so a text that looks like a number remains a text.
"""

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edl_horovod.columns.infer import MAX_VALUES, Column, DataType, Kind, by_frequency
from edl_horovod.errors import DataError

Array = NDArray[Any]
_NOT_FOR_TRAINING = "cannot be used for training"
DATE_PARTS = {"year": 0, "month": 13, "weekday": 7, "hour": 24}
"""The parts of dates, with one more than their largest number; 0 if it is unbounded."""


def infer_typed(
    blocks: Iterable[Mapping[str, Array]],
    *,
    kinds: Mapping[str, Kind] | None = None,
    categories: Collection[str] = (),
) -> dict[str, Column]:
    """Infer the columns of a table, by name in the order of the data.

    Args:
        blocks: The columns of consecutive blocks of rows, arrays of shape (rows,): numbers,
            booleans, datetime64, or objects that are UTF-8 bytes. NaN is an empty cell.
        kinds: The kinds of columns that the model requires to be text or numbers.
        categories: Columns whose values are categories, so that numbers have a vocabulary, too.

    Raises:
        DataError: A column contains lists, bytes that are not text or infinite numbers, or a column
            that must be numeric is not.
    """
    kinds = kinds or {}
    cells_by_column: dict[str, _Cells] = {}
    num_rows = 0
    for block in blocks:
        size = 0
        for name, values in block.items():
            if name not in cells_by_column:
                cells_by_column[name] = _cells_for(name, values, kinds.get(name), categories)
            cells_by_column[name].add(values, num_rows)
            size = len(values)
        num_rows += size
    return {name: cells.column(num_rows) for name, cells in cells_by_column.items()}


def type_of(values: Array) -> DataType:
    """Return the type of a column with these values.

    Raises:
        DataError: Models of tables do not support the type.
    """
    # Lists with different lengths are not an array.
    kind = values.dtype.kind if isinstance(values, np.ndarray) and values.ndim == 1 else ""
    if not kind or kind not in "biufOSM":
        raise DataError(
            "It contains lists, which models of tables do not support.",
            received="more than one value in a row" if not kind else str(values.dtype),
            hint="Remove the column, or select its parts as separate columns.",
        )
    if kind == "M":
        return "date" if np.datetime_data(values.dtype)[0] == "D" else "timestamp"
    if kind in "OS":
        return "text"
    return {"b": "boolean", "f": "number"}.get(kind, "integer")  # type: ignore[return-value]


def keys_of(values: Array, data_type: DataType | None = None) -> list[str]:
    """Convert the values of a column to the texts that vocabularies and hashes use as keys.

    Args:
        values: The values of one column.
        data_type: The column's type in the training, so that a number has the same key as an
            integer and as a floating-point number. None for the values of the training itself.

    Raises:
        DataError: A value is not UTF-8 text, or a floating-point number is too large to identify
            an integer.
    """
    if values.dtype.kind in "OS":
        try:
            return [value.decode() for value in values.tolist()]
        except UnicodeDecodeError as error:
            problem = "It contains bytes that are not UTF-8 text."
            hint = "Remove the column, or select a text instead."
            raise DataError(problem, received=repr(error.object[:20]), hint=hint) from error
    if data_type == "integer" and values.dtype.kind in "bf":
        _require_exact(values)
        numbers = values.astype(np.float64).tolist()
        return [str(int(value) if value.is_integer() else value) for value in numbers]
    if data_type in ("number", "cells") and values.dtype.kind in "biuf":
        values = values.astype(np.float64)
    return [str(value) for value in values.tolist()]


def _require_exact(values: Array) -> None:
    if values.dtype.kind != "f":
        return
    # Beyond this limit the floating-point type cannot represent every integer.
    limit = 2.0 ** (np.finfo(values.dtype).nmant + 1)
    is_beyond = np.isfinite(values) & (np.abs(values) >= limit)
    if is_beyond.any():
        raise DataError(
            f"It contains {values.dtype} numbers that are too large to identify the integers of the"
            " training.",
            received=str(values[is_beyond][0]),
            hint="Store the column as integers, or remove such rows.",
        )


def date_parts(values: Array) -> dict[str, NDArray[np.int64]]:
    """Return the parts of dates: `month` from 1, `weekday` from 0 for Monday, `hour` from 0."""
    days = values.astype("datetime64[D]").astype(np.int64)
    months = values.astype("datetime64[M]").astype(np.int64)
    hours = values.astype("datetime64[h]").astype(np.int64)
    return {
        "year": values.astype("datetime64[Y]").astype(np.int64) + 1970,
        "month": months % 12 + 1,
        "weekday": (days + 3) % 7,  # 1970 began on a Thursday.
        "hour": hours % 24,
    }


def require_dates(values: Array, name: str) -> None:
    """Refuse columns of dates with an empty date.

    Raises:
        DataError: A date is empty.
    """
    if np.isnat(values).any():
        problem = f"The column {name!r} has an empty date (NaT), which has no default value."
        raise DataError(problem, hint="Remove such rows, or replace the date by another value.")


def _cells_for(
    name: str, values: Array, kind: Kind | None, categories: Collection[str]
) -> "_Cells":
    with naming_column(name, _NOT_FOR_TRAINING):
        data_type = type_of(values)
    if kind == "number" and data_type not in ("integer", "number", "boolean"):
        problem = f"The column {name!r} must be numeric, but it contains {data_type}s."
        raise DataError(problem, hint="Use a model for texts, or cast the column in the SELECT.")
    if kind == "text" or data_type == "text":
        return _Texts(name, "text", data_type)
    if data_type in ("date", "timestamp"):
        return _Dates(name, "date", data_type, unit=np.datetime_data(values.dtype)[0])
    natural: Kind = "boolean" if data_type == "boolean" else "number"
    counts: Counter[str] | None = Counter() if name in categories else None
    return _Numbers(name, kind or natural, data_type, counts)


@dataclass
class _Cells(ABC):
    """The statistics of a column over the rows so far."""

    name: str
    kind: Kind
    data_type: DataType

    @abstractmethod
    def add(self, values: Array, first_row: int) -> None:
        """Add the values of a block whose first row has this number."""

    @abstractmethod
    def column(self, num_rows: int) -> Column:
        """Return the column after the last block."""

    def _column(self, num_rows: int, *, num_empty: int = 0, **statistics: Any) -> Column:
        column = Column(name=self.name, kind=self.kind, num_rows=num_rows, num_empty=num_empty)
        return replace(column, data_type=self.data_type, **statistics)


@dataclass
class _Numbers(_Cells):
    counts: Counter[str] | None = None
    """The number of rows with each value; None without a vocabulary."""
    num_filled: int = 0
    num_empty: int = 0
    first_empty: int | None = None
    mean: float = 0.0
    squares: float = 0.0
    lowest: float = math.inf
    highest: float = -math.inf

    def add(self, values: Array, first_row: int) -> None:
        if self.counts is not None:
            self.counts = _counted(self.counts, keys_of(values))
        numbers = values.astype(np.float64)
        is_empty = np.isnan(numbers)
        if is_empty.any():
            self.num_empty += int(is_empty.sum())
            if self.first_empty is None:
                self.first_empty = first_row + int(np.argmax(is_empty))
            numbers = numbers[~is_empty]
        if np.isinf(numbers).any():
            row = first_row + int(np.argmax(np.isinf(values))) + 1
            problem = f"The column {self.name!r} has an infinite number in row {row}."
            raise DataError(problem, hint="Remove the row, or replace the number in the SELECT.")
        if not len(numbers):
            return
        # Chan's algorithm: combine the mean and the sum of squared deviations of two parts.
        count, mean = len(numbers), float(numbers.mean())
        total, difference = self.num_filled + count, mean - self.mean
        self.squares += float(np.square(numbers - mean).sum())
        self.squares += difference * difference * self.num_filled * count / total
        self.mean += difference * count / total
        self.num_filled = total
        self.lowest = min(self.lowest, float(numbers.min()))
        self.highest = max(self.highest, float(numbers.max()))

    def column(self, num_rows: int) -> Column:
        if not self.num_filled:
            problem = f"The column {self.name!r} has no numbers."
            hint = "Remove the column."
            raise DataError(problem, received=f"{num_rows} rows, all empty", hint=hint)
        return self._column(
            num_rows,
            num_empty=self.num_empty,
            first_empty=self.first_empty,
            mean=self.mean,
            deviation=math.sqrt(self.squares / self.num_filled) or 1.0,
            lowest=self.lowest,
            highest=self.highest,
            vocabulary=by_frequency(self.counts or {}),
        )


@dataclass
class _Dates(_Cells):
    unit: str = ""
    bounds: dict[str, tuple[int, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._years = _Numbers(self.name, "number", "integer")

    def add(self, values: Array, first_row: int) -> None:
        if not len(values):
            return
        require_dates(values, self.name)
        for part, numbers in date_parts(values).items():
            low, high = int(numbers.min()), int(numbers.max())
            bounds = self.bounds.get(part, (low, high))
            self.bounds[part] = min(low, bounds[0]), max(high, bounds[1])
            if part == "year":
                self._years.add(numbers, first_row)

    def column(self, num_rows: int) -> Column:
        years = self._years.column(num_rows)
        return self._column(
            num_rows,
            unit=self.unit,
            mean=years.mean,
            deviation=years.deviation,
            lowest=years.lowest,
            highest=years.highest,
            parts=tuple(part for part, (low, high) in self.bounds.items() if low != high),
        )


@dataclass
class _Texts(_Cells):
    counts: Counter[str] | None = field(default_factory=Counter)
    """The number of rows with each value; None if there are too many values."""

    def add(self, values: Array, first_row: int) -> None:
        with naming_column(self.name, _NOT_FOR_TRAINING):
            keys = keys_of(values)
        if self.counts is not None:
            self.counts = _counted(self.counts, keys)

    def column(self, num_rows: int) -> Column:
        return self._column(num_rows, vocabulary=by_frequency(self.counts or {}))


def _counted(counts: Counter[str], keys: Iterable[str]) -> Counter[str] | None:
    """Add keys to the counts; return None if there are too many values for a vocabulary."""
    counts.update(keys)
    return counts if len(counts) <= MAX_VALUES else None


@contextmanager
def naming_column(name: str, consequence: str) -> Iterator[None]:
    """Begin the messages of errors about values with the name of their column.

    Args:
        name: The name of the column.
        consequence: What is impossible, as a phrase that follows the name.
    """
    try:
        yield
    except DataError as error:
        problem = f"{error.problem[:1].lower()}{error.problem[1:]}"
        problem = f"The column {name!r} {consequence}: {problem}"
        raise DataError(problem, received=error.received, hint=error.hint) from error
