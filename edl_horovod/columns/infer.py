"""Types, defaults and vocabularies of columns of text, by one pass over all rows.

A column is of numbers only where every cell is one or is empty, so no row that comes late can
contradict what was found. Pure Python: the rows may come from a file, records or a database.
"""

import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, Self

__all__ = ["EMPTY_NUMBERS", "MAX_VALUES", "Column", "DataType", "Kind", "by_frequency", "infer"]

MAX_VALUES = 10_000
"""Values of a column up to which they are its vocabulary; with more it has none."""
_SHOWN = 40
_MANY = 20
"""Texts that are hardly all different by chance: a name says nothing of other rows."""

_NUMBER = re.compile(r"[+-]?(?!0\d)(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
"""Neither `01067`, which would lose its 0, nor `1_000`, `inf` and `Nan`, as Python's floats."""
EMPTY_NUMBERS = ("", "NaN", "nan", "NULL", "null", "NA", "N/A")
"""What programs write for a number that is not there; in a column of texts these are texts."""

Kind = Literal["number", "text", "boolean", "date"]
DataType = Literal["cells", "integer", "number", "text", "boolean", "date", "timestamp"]


@dataclass(frozen=True, kw_only=True)
class Column:
    """What a column holds."""

    name: str
    kind: Kind
    """What the model takes it for."""
    data_type: DataType = "cells"
    """What the data have in it; `cells` are texts of a file that has no types."""
    unit: str = ""
    """NumPy's unit of a date or timestamp, which counts from 1970."""
    num_rows: int
    num_empty: int
    """Rows without a value: those get `default`."""
    first_empty: int | None = None
    """The first of them, counted from 0; None without one."""
    mean: float = 0.0
    """Of a column of numbers."""
    deviation: float = 1.0
    """Standard deviation of a column of numbers; 1 where all are the same."""
    lowest: float = 0.0
    """Of a column of numbers or dates."""
    highest: float = 0.0
    """Of a column of numbers or dates."""
    parts: tuple[str, ...] = ()
    """What differs between the dates of a column: `year`, `month`, `weekday`, `hour`."""
    vocabulary: tuple[str, ...] = ()
    """The values of a column of texts, or of one whose numbers are categories, the commonest first;
    none where there are too many."""
    first_text: str = ""
    """The first value that is no number, of a column of texts."""
    first_text_row: int | None = None
    """The row of that value, counted from 0; None where there is none."""

    @property
    def default(self) -> float | str:
        """What an empty cell counts as: the mean, or an empty text."""
        return self.mean if self.kind == "number" else ""

    def __str__(self) -> str:
        """A line for people."""
        if self.kind == "number":
            found = f"numbers, mean {self.mean:.6g}, deviation {self.deviation:.6g}"
            if self.vocabulary:
                found += f", {len(self.vocabulary)} values"
        elif self.kind == "boolean":
            found = f"booleans, {self.mean:.3g} of them true"
        elif self.kind == "date":
            found = f"dates, read as {', '.join(self.parts) or 'nothing: all are the same'}"
        elif self.vocabulary:
            found = f"texts, {len(self.vocabulary)} values"
            if len(self.vocabulary) == self.num_rows - self.num_empty >= _MANY:
                found += ", each once"
        else:
            found = f"texts, more than {MAX_VALUES} values"
        if self.kind == "text" and self.first_text_row is not None:
            found += f" (row {self.first_text_row + 1} has {self.first_text[:_SHOWN]!r})"
        default = "an empty text" if self.kind == "text" else f"{self.mean:.6g}"
        empty = f"; {self.num_empty} empty, which count as {default}" if self.num_empty else ""
        return f"{self.name}: {found}{empty}"

    def to_json(self) -> dict[str, Any]:
        """The column as plain values."""
        return asdict(self)

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Self:
        """The column that `to_json` gave."""
        lists = {name: tuple(found.get(name, ())) for name in ("parts", "vocabulary")}
        return cls(**{**found, **lists})


def infer(
    rows: Iterable[Mapping[str, str]],
    *,
    kinds: Mapping[str, Kind] | None = None,
    categories: Collection[str] = (),
) -> dict[str, Column]:
    """What each column holds, by its name, in the order in which they first appear.

    Args:
        rows: The cells of each row by column; an empty text, or no cell, is empty.
        kinds: Columns that are known to be texts, or numbers.
        categories: Columns whose values are categories, so that numbers have a vocabulary, too.

    Raises:
        ValueError: A column that is known to be of numbers is not; the message names the row.
    """
    kinds = kinds or {}
    found: dict[str, _Cells] = {}
    num_rows = 0
    for row in rows:
        for name, text in row.items():
            if text:
                cells = found.get(name)
                if cells is None:
                    cells = found[name] = _Cells(first_row=num_rows)
                cells.add(text, num_rows)
            elif name not in found:
                found[name] = _Cells(first_row=None)
        for cells in found.values():
            cells.end_row(num_rows)
        num_rows += 1
    return {
        name: cells.column(name, num_rows, kinds.get(name), is_category=name in categories)
        for name, cells in found.items()
    }


class _Cells:
    """What was seen of a column so far."""

    def __init__(self, *, first_row: int | None) -> None:
        self._first_empty = None if first_row == 0 else 0
        self._last_row = -1
        self._num_numbers = 0
        self._mean = self._squares = 0.0
        self._lowest, self._highest = math.inf, -math.inf
        self._num_said_empty = 0
        self._first_said_empty: int | None = None
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
            # Welford's: one pass, and no sum of squares that loses the small ones.
            self._num_numbers += 1
            before = value - self._mean
            self._mean += before / self._num_numbers
            self._squares += before * (value - self._mean)
            self._lowest, self._highest = min(self._lowest, value), max(self._highest, value)
        elif text in EMPTY_NUMBERS:
            self._num_said_empty += 1
            if self._first_said_empty is None:
                self._first_said_empty = row
        else:
            self._first_text, self._first_text_row = text, row

    def end_row(self, row: int) -> None:
        if self._first_empty is None and self._last_row != row:
            self._first_empty = row

    def column(self, name: str, num_rows: int, kind: Kind | None, *, is_category: bool) -> Column:
        """What the column holds.

        Raises:
            ValueError: It is known to be of numbers, and is not.
        """
        is_number = self._first_text_row is None and self._num_numbers > 0
        if kind == "number" and not is_number:
            said = "has no number at all"
            if self._first_text_row is not None:
                said = f"has {self._first_text[:_SHOWN]!r} in row {self._first_text_row + 1}"
            raise ValueError(f"the column {name!r} is to be of numbers, and {said}")
        empty = num_rows - self._num_cells
        if kind == "text" or not is_number:
            return Column(
                name=name,
                kind="text",
                num_rows=num_rows,
                num_empty=empty,
                first_empty=self._first_empty if empty else None,
                vocabulary=self._vocabulary(),
                first_text=self._first_text,
                first_text_row=self._first_text_row,
            )
        firsts = [
            row
            for row, is_there in (
                (self._first_empty, empty),
                (self._first_said_empty, self._num_said_empty),
            )
            if is_there and row is not None
        ]
        return Column(
            name=name,
            kind="number",
            num_rows=num_rows,
            num_empty=empty + self._num_said_empty,
            first_empty=min(firsts, default=None),
            mean=self._mean,
            deviation=math.sqrt(self._squares / self._num_numbers) or 1.0,
            lowest=self._lowest,
            highest=self._highest,
            vocabulary=self._numbers(empty + self._num_said_empty) if is_category else (),
        )

    def _vocabulary(self) -> tuple[str, ...]:
        return by_frequency(self._values or Counter())

    def _numbers(self, num_empty: int) -> tuple[str, ...]:
        """A vocabulary of numbers, however each is written; the empty cell is one of them."""
        counts: Counter[str] = Counter()
        for text, count in (self._values or {}).items():
            if text not in EMPTY_NUMBERS:
                counts[str(float(text))] += count
        if counts and num_empty:
            counts[str(math.nan)] = num_empty
        return by_frequency(counts)


def by_frequency(counts: Mapping[str, int]) -> tuple[str, ...]:
    """Texts, the commonest first; not by their first appearance, as rows have no fixed order."""
    return tuple(text for text, _ in sorted(counts.items(), key=lambda each: (-each[1], each[0])))
