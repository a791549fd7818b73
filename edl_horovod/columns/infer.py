"""Types, defaults and vocabularies of columns of text, inferred in one pass over all rows.

A column is numeric only if every cell is a number or empty, so a late row cannot contradict the
result. Pure Python: the rows may come from a file, records or a database.
"""

import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, Self

MAX_VALUES = 10_000
"""Maximum size of a column's vocabulary; a column with more values has no vocabulary."""
_MAX_SHOWN_CHARACTERS = 40
_MIN_UNIQUE = 20
"""Number of texts from which all-different values are reported: they look like names or ids."""

_NUMBER = re.compile(r"[+-]?(?!0\d)(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
"""Excludes `01067`, which would lose its 0, and `1_000`, `inf` and `Nan`, which `float` accepts."""
EMPTY_NUMBERS = ("", "NaN", "nan", "NULL", "null", "NA", "N/A")
"""Texts that programs write for a missing number; in a column of texts they are ordinary texts."""

Kind = Literal["number", "text", "boolean", "date"]
DataType = Literal["cells", "integer", "number", "text", "boolean", "date", "timestamp"]


@dataclass(frozen=True, kw_only=True)
class Column:
    """The type and statistics of a column."""

    name: str
    kind: Kind
    """How the model treats the column."""
    data_type: DataType = "cells"
    """The type in the data; `cells` are texts of an untyped file."""
    unit: str = ""
    """The NumPy unit of a date or timestamp, which counts from 1970."""
    num_rows: int
    num_empty: int
    """Number of rows without a value, which counts as the mean or as an empty text."""
    first_empty: int | None = None
    """The first row without a value, counted from 0; None if there is none."""
    mean: float = 0.0
    """Mean of a numeric column."""
    deviation: float = 1.0
    """Standard deviation of a numeric column; 1 if all numbers are equal."""
    lowest: float = 0.0
    """Minimum of a column of numbers, or of the years of dates."""
    highest: float = 0.0
    """Maximum of a column of numbers, or of the years of dates."""
    parts: tuple[str, ...] = ()
    """The parts that differ between dates: `year`, `month`, `weekday`, `hour`."""
    vocabulary: tuple[str, ...] = ()
    """The values of a column of texts, or of a column whose numbers are categories, the most
    frequent first; empty if there are too many."""
    first_text: str = ""
    """The first value of a column of texts that is not a number."""
    first_text_row: int | None = None
    """The row of `first_text`, counted from 0; None if there is none."""

    def __str__(self) -> str:
        """Describe the column in one line."""
        if self.kind == "number":
            description = f"numbers, mean {self.mean:.6g}, deviation {self.deviation:.6g}"
            if self.vocabulary:
                description += f", {len(self.vocabulary)} values"
        elif self.kind == "boolean":
            description = f"booleans, {self.mean:.3g} of them true"
        elif self.kind == "date":
            description = f"dates, read as {', '.join(self.parts) or 'nothing: all are equal'}"
        elif self.vocabulary:
            description = f"texts, {len(self.vocabulary)} values"
            if len(self.vocabulary) == self.num_rows - self.num_empty >= _MIN_UNIQUE:
                description += ", each once"
        else:
            description = f"texts, more than {MAX_VALUES} values"
        if self.kind == "text" and self.first_text_row is not None:
            description += (
                f" (row {self.first_text_row + 1} has {self.first_text[:_MAX_SHOWN_CHARACTERS]!r})"
            )
        default = "an empty text" if self.kind == "text" else f"{self.mean:.6g}"
        empty = f"; {self.num_empty} empty, which count as {default}" if self.num_empty else ""
        return f"{self.name}: {description}{empty}"

    def to_json(self) -> dict[str, Any]:
        """Convert the column to plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Create the column from the values that `to_json` returned."""
        lists = {name: tuple(values.get(name, ())) for name in ("parts", "vocabulary")}
        return cls(**{**values, **lists})


def infer(
    rows: Iterable[Mapping[str, str]],
    *,
    kinds: Mapping[str, Kind] | None = None,
    categories: Collection[str] = (),
) -> dict[str, Column]:
    """Infer the columns of a table, by name in the order in which they first appear.

    Args:
        rows: The cells of each row by column; an empty text or a missing cell is empty.
        kinds: The kinds of columns that must be text or numbers.
        categories: Columns whose values are categories, so that numbers have a vocabulary, too.

    Raises:
        ValueError: A column that must be numeric is not; the message names the row.
    """
    kinds = kinds or {}
    cells_by_column: dict[str, _Cells] = {}
    num_rows = 0
    for row in rows:
        for name, text in row.items():
            if text:
                cells = cells_by_column.get(name)
                if cells is None:
                    cells = cells_by_column[name] = _Cells(first_row=num_rows)
                cells.add(text, num_rows)
            elif name not in cells_by_column:
                cells_by_column[name] = _Cells(first_row=None)
        for cells in cells_by_column.values():
            cells.end_row(num_rows)
        num_rows += 1
    return {
        name: cells.column(name, num_rows, kinds.get(name), is_category=name in categories)
        for name, cells in cells_by_column.items()
    }


class _Cells:
    """The statistics of a column over the rows so far."""

    def __init__(self, *, first_row: int | None) -> None:
        self._first_empty = None if first_row == 0 else 0
        self._last_row = -1
        self._num_numbers = 0
        self._mean = self._squares = 0.0
        self._lowest, self._highest = math.inf, -math.inf
        self._num_marked_empty = 0
        self._first_marked_empty: int | None = None
        self._num_cells = 0
        self._first_text = ""
        self._first_text_row: int | None = None
        self._values: Counter[str] | None = Counter()

    def add(self, text: str, row: int) -> None:
        self._last_row = row
        self._num_cells += 1
        if self._values is not None:
            self._values[text] += 1
            if len(self._values) > MAX_VALUES:
                self._values = None
        if self._first_text_row is not None:
            return
        if _NUMBER.fullmatch(text) and math.isfinite(value := float(text)):
            # Welford's algorithm: one pass, without the cancellation of a sum of squares.
            self._num_numbers += 1
            difference = value - self._mean
            self._mean += difference / self._num_numbers
            self._squares += difference * (value - self._mean)
            self._lowest, self._highest = min(self._lowest, value), max(self._highest, value)
        elif text in EMPTY_NUMBERS:
            self._num_marked_empty += 1
            if self._first_marked_empty is None:
                self._first_marked_empty = row
        else:
            self._first_text, self._first_text_row = text, row

    def end_row(self, row: int) -> None:
        if self._first_empty is None and self._last_row != row:
            self._first_empty = row

    def column(self, name: str, num_rows: int, kind: Kind | None, *, is_category: bool) -> Column:
        """Return the column after the last row.

        Raises:
            ValueError: The column must be numeric and is not.
        """
        is_number = self._first_text_row is None and self._num_numbers > 0
        if kind == "number" and not is_number:
            problem = "has no numbers"
            if self._first_text_row is not None:
                shown_text = self._first_text[:_MAX_SHOWN_CHARACTERS]
                problem = f"has {shown_text!r} in row {self._first_text_row + 1}"
            raise ValueError(f"the column {name!r} must be numeric, but {problem}")
        empty = num_rows - self._num_cells
        if kind == "text" or not is_number:
            return Column(
                name=name,
                kind="text",
                num_rows=num_rows,
                num_empty=empty,
                first_empty=self._first_empty if empty else None,
                vocabulary=by_frequency(self._values or {}),
                first_text=self._first_text,
                first_text_row=self._first_text_row,
            )
        first_empty = (self._first_empty if empty else None, self._first_marked_empty)
        return Column(
            name=name,
            kind="number",
            num_rows=num_rows,
            num_empty=empty + self._num_marked_empty,
            first_empty=min((row for row in first_empty if row is not None), default=None),
            mean=self._mean,
            deviation=math.sqrt(self._squares / self._num_numbers) or 1.0,
            lowest=self._lowest,
            highest=self._highest,
            vocabulary=self._numbers(empty + self._num_marked_empty) if is_category else (),
        )

    def _numbers(self, num_empty: int) -> tuple[str, ...]:
        """Return a vocabulary of normalized numbers; it includes NaN if there are empty cells."""
        counts: Counter[str] = Counter()
        for text, count in (self._values or {}).items():
            if text not in EMPTY_NUMBERS:
                counts[str(float(text))] += count
        if counts and num_empty:
            counts[str(math.nan)] = num_empty
        return by_frequency(counts)


def by_frequency(counts: Mapping[str, int]) -> tuple[str, ...]:
    """Sort texts by frequency, then alphabetically: the order of rows is not fixed."""
    return tuple(text for text, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0])))
