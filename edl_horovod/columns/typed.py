"""What columns of typed values hold, as Parquet and databases have them, by one pass over all rows.

Their types are known, so a text that looks like a number stays a text.
"""

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edl_horovod.columns.infer import MAX_VALUES, Column, DataType, Kind, by_frequency
from edl_horovod.errors import DataError

__all__ = [
    "DATE_PARTS",
    "Array",
    "date_parts",
    "infer_typed",
    "keys_of",
    "require_dates",
    "type_of",
]

Array = NDArray[Any]
DATE_PARTS = {"year": 0, "month": 13, "weekday": 7, "hour": 24}
"""The parts of dates: how many numbers they have, from 0 on; 0 where there is no bound."""


def infer_typed(
    blocks: Iterable[Mapping[str, Array]],
    *,
    kinds: Mapping[str, Kind] | None = None,
    categories: Collection[str] = (),
) -> dict[str, Column]:
    """What each column holds, by its name, in the order of the data.

    Args:
        blocks: Columns of some rows after the other, arrays of shape (rows,): numbers, booleans,
            datetime64, or objects that are bytes in UTF-8. NaN is an empty cell.
        kinds: Columns that the model is to take for texts, or for numbers.
        categories: Columns whose values are categories, so that numbers have a vocabulary, too.

    Raises:
        DataError: A column holds lists, bytes that are no text or numbers that are not finite, or
            is to be of numbers and is not.
    """
    kinds = kinds or {}
    found: dict[str, _Cells] = {}
    num_rows = 0
    for block in blocks:
        size = 0
        for name, values in block.items():
            if name not in found:
                is_category = name in categories
                found[name] = _cells_for(name, values, kinds.get(name), is_category=is_category)
            found[name].add(values, num_rows)
            size = len(values)
        num_rows += size
    return {name: cells.column(num_rows) for name, cells in found.items()}


def type_of(values: Array) -> DataType:
    """The type of a column of these values.

    Raises:
        DataError: It has none that a model of tables takes.
    """
    # Lists of different lengths are no array.
    kind = values.dtype.kind if isinstance(values, np.ndarray) and values.ndim == 1 else ""
    if not kind or kind not in "biufOSM":
        raise DataError(
            "It holds lists, which no column of a model of tables is.",
            received="more than one value in a row" if not kind else str(values.dtype),
            cure="Leave it out, or select its parts as columns of their own.",
        )
    if kind == "M":
        return "date" if np.datetime_data(values.dtype)[0] == "D" else "timestamp"
    if kind in "OS":
        return "text"
    return {"b": "boolean", "f": "number"}.get(kind, "integer")  # type: ignore[return-value]


def keys_of(values: Array, data_type: DataType | None = None) -> list[str]:
    """The values of a column as texts, by which vocabularies and hashes know them.

    Args:
        values: Of one column.
        data_type: What the training had in it: a number has the same key in a column of integers
            and in one of floating-point numbers. None where these are the training's values.

    Raises:
        DataError: One is no text in UTF-8, or a number that cannot be told from its neighbours.
    """
    if values.dtype.kind in "OS":
        try:
            return [value.decode() for value in values.tolist()]
        except UnicodeDecodeError as error:
            raise DataError(
                "It holds bytes that are no text in UTF-8.",
                received=repr(error.object[:20]),
                cure="Leave the column out, or select a text of it.",
            ) from error
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
    # From here on the floating-point numbers of this type leave out some integers.
    limit = 2.0 ** (np.finfo(values.dtype).nmant + 1)
    is_beyond = np.isfinite(values) & (np.abs(values) >= limit)
    if is_beyond.any():
        raise DataError(
            f"It holds {values.dtype} numbers that may have been other integers, which the"
            " training had.",
            received=str(values[is_beyond][0]),
            cure="Give the column as integers, or leave such rows out.",
        )


def date_parts(values: Array) -> dict[str, NDArray[np.int64]]:
    """The parts of dates: `month` from 1, `weekday` from 0 for Monday, `hour` from 0."""
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
    """Refuse dates of which one is empty.

    Raises:
        DataError: There is one.
    """
    if np.isnat(values).any():
        raise DataError(
            f"The column {name!r} has a date that is empty (NaT), and no date stands for one.",
            cure="Leave such rows out, or give the date another value.",
        )


def _cells_for(name: str, values: Array, kind: Kind | None, *, is_category: bool) -> "_Cells":
    try:
        data_type = type_of(values)
    except DataError as error:
        raise _about(name, error) from error
    if kind == "number" and data_type not in ("integer", "number", "boolean"):
        raise DataError(
            f"The column {name!r} is to be of numbers, and the data have {data_type}s in it.",
            cure="Take a model for texts, or cast the column in the SELECT.",
        )
    natural: Kind = "date" if data_type in ("date", "timestamp") else "number"
    if data_type in ("text", "boolean"):
        natural = data_type
    if kind == "text" or natural == "text":
        return _Texts(name, "text", data_type, values)
    if natural == "date":
        return _Dates(name, natural, data_type, values)
    return _Numbers(name, kind or natural, data_type, values, is_category=is_category)


class _Cells(ABC):
    """What was seen of a column so far."""

    def __init__(self, name: str, kind: Kind, data_type: DataType, values: Array) -> None:
        self.name, self.kind, self.data_type = name, kind, data_type
        self.unit = np.datetime_data(values.dtype)[0] if values.dtype.kind == "M" else ""

    @abstractmethod
    def add(self, values: Array, first_row: int) -> None:
        """Look at some more values."""

    @abstractmethod
    def column(self, num_rows: int) -> Column:
        """What all of them are."""


class _Numbers(_Cells):
    def __init__(
        self,
        name: str,
        kind: Kind,
        data_type: DataType,
        values: Array,
        *,
        is_category: bool = False,
    ) -> None:
        super().__init__(name, kind, data_type, values)
        self._values: Counter[str] | None = Counter() if is_category else None
        self._count, self._num_empty = 0, 0
        self._first_empty: int | None = None
        self._mean = self._squares = 0.0
        self._lowest, self._highest = math.inf, -math.inf

    def add(self, values: Array, first_row: int) -> None:
        if self._values is not None:
            self._values = _counted(self._values, keys_of(values))
        numbers = values.astype(np.float64)
        is_empty = np.isnan(numbers)
        if is_empty.any():
            self._num_empty += int(is_empty.sum())
            if self._first_empty is None:
                self._first_empty = first_row + int(np.argmax(is_empty))
            numbers = numbers[~is_empty]
        if np.isinf(numbers).any():
            row = first_row + int(np.argmax(np.isinf(values))) + 1
            raise DataError(
                f"The column {self.name!r} has a number in row {row} that is not finite.",
                cure="Leave the row out, or give the number another value in the SELECT.",
            )
        if not len(numbers):
            return
        # Chan's: the means and squares of two parts as those of both.
        count, mean = len(numbers), float(numbers.mean())
        total, between = self._count + count, mean - self._mean
        self._squares += float(np.square(numbers - mean).sum())
        self._squares += between * between * self._count * count / total
        self._mean += between * count / total
        self._count = total
        self._lowest = min(self._lowest, float(numbers.min()))
        self._highest = max(self._highest, float(numbers.max()))

    def column(self, num_rows: int) -> Column:
        if not self._count:
            raise DataError(
                f"The column {self.name!r} has no number at all.",
                received=f"{num_rows} rows, all of them empty",
                cure="Leave the column out.",
            )
        return Column(
            name=self.name,
            kind=self.kind,
            data_type=self.data_type,
            num_rows=num_rows,
            num_empty=self._num_empty,
            first_empty=self._first_empty,
            mean=self._mean,
            deviation=math.sqrt(self._squares / self._count) or 1.0,
            lowest=self._lowest,
            highest=self._highest,
            vocabulary=by_frequency(self._values or {}),
        )


class _Dates(_Cells):
    def __init__(self, name: str, kind: Kind, data_type: DataType, values: Array) -> None:
        super().__init__(name, kind, data_type, values)
        self._bounds: dict[str, tuple[int, int]] = {}
        self._years = _Numbers(name, "number", "integer", np.zeros(0))

    def add(self, values: Array, first_row: int) -> None:
        if not len(values):
            return
        require_dates(values, self.name)
        for part, numbers in date_parts(values).items():
            low, high = int(numbers.min()), int(numbers.max())
            before = self._bounds.get(part, (low, high))
            self._bounds[part] = min(low, before[0]), max(high, before[1])
            if part == "year":
                self._years.add(numbers, first_row)

    def column(self, num_rows: int) -> Column:
        years = self._years.column(num_rows)
        return Column(
            name=self.name,
            kind=self.kind,
            data_type=self.data_type,
            unit=self.unit,
            num_rows=num_rows,
            num_empty=0,
            mean=years.mean,
            deviation=years.deviation,
            lowest=years.lowest,
            highest=years.highest,
            parts=tuple(part for part, (low, high) in self._bounds.items() if low != high),
        )


class _Texts(_Cells):
    def __init__(self, name: str, kind: Kind, data_type: DataType, values: Array) -> None:
        super().__init__(name, kind, data_type, values)
        self._values: Counter[str] | None = Counter()

    def add(self, values: Array, first_row: int) -> None:
        try:
            keys = keys_of(values)
        except DataError as error:
            raise _about(self.name, error) from error
        if self._values is not None:
            self._values = _counted(self._values, keys)

    def column(self, num_rows: int) -> Column:
        return Column(
            name=self.name,
            kind=self.kind,
            data_type=self.data_type,
            num_rows=num_rows,
            num_empty=0,
            vocabulary=by_frequency(self._values or {}),
        )


def _counted(counts: Counter[str], keys: Iterable[str]) -> Counter[str] | None:
    """The counts with some more values; None where these are too many for a vocabulary."""
    counts.update(keys)
    return counts if len(counts) <= MAX_VALUES else None


def _about(name: str, error: DataError) -> DataError:
    what = f"{error.what[:1].lower()}{error.what[1:]}"
    return DataError(
        f"The column {name!r} cannot be learned from: {what}",
        received=error.received,
        cure=error.cure,
    )
