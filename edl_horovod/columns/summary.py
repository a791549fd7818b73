"""The summary of its training data that a model of tables stores: columns, label and classes.

It is computed from the cells of the table, which come from records of texts or from typed columns.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from edl_horovod.columns.infer import EMPTY_NUMBERS, Column, Kind, infer
from edl_horovod.columns.typed import Array, infer_typed, keys_of, require_dates
from edl_horovod.errors import DataError, did_you_mean
from edl_horovod.records.examples import texts_of

__all__ = [
    "MAX_CLASSES",
    "Classes",
    "TableSummary",
    "arrays_of",
    "require_types",
    "rows_of",
    "summarize",
    "text_cells",
]

MAX_CLASSES = 1000
_MAX_SHOWN = 10
_DTYPES = {"number": "biuf", "boolean": "b", "date": "iuM", "text": "OS"}
"""The NumPy kinds of arrays that a column of each kind may have."""


@dataclass(frozen=True)
class Classes:
    """The classes of a label, in the order of a classifier's probabilities."""

    name: str
    """Name of the label."""
    values: tuple[str | int | bool, ...]
    """The values in the data: texts, whole numbers or booleans."""
    counts: tuple[int, ...]
    """Number of rows of the training data for each class."""

    def encode(self, cells: Array) -> NDArray[np.int64]:
        """Return the class numbers of some rows, shape (rows,).

        Raises:
            DataError: A row has a class that did not occur in the training.
        """
        numbers = {key: number for number, key in enumerate(map(str, self.values))}
        keys = keys_of(_as_classes(cells))
        row_classes = np.fromiter((numbers.get(key, -1) for key in keys), np.int64, len(keys))
        if (row_classes < 0).any():
            problem = f"The label {self.name!r} has a class that did not occur in the training."
            hint = f"Its classes are {_values_text(self.values)}. Remove such rows."
            raise DataError(problem, received=repr(keys[int(np.argmin(row_classes))]), hint=hint)
        return row_classes

    def weights(self) -> NDArray[np.float32]:
        """Return weights that balance the classes, shape (classes,); their mean over rows is 1."""
        counts = np.asarray(self.counts, np.float64)
        weights: NDArray[np.float64] = counts.sum() / (len(counts) * counts)
        return weights.astype(np.float32)

    def to_json(self) -> dict[str, Any]:
        """Convert the classes to plain values."""
        return {"name": self.name, "values": list(self.values), "counts": list(self.counts)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Create the classes from the values that `to_json` returned."""
        return cls(values["name"], tuple(values["values"]), tuple(values["counts"]))


@dataclass(frozen=True, kw_only=True)
class TableSummary:
    """The columns, the label and the classes of the training data."""

    label: Column
    columns: Mapping[str, Column]
    """All columns except the label, by name."""
    classes: Classes | None
    """The classes of the label; None if it is a number."""

    def to_json(self) -> dict[str, Any]:
        """Convert the summary to plain values."""
        return {
            "label": self.label.to_json(),
            "columns": [column.to_json() for column in self.columns.values()],
            "classes": self.classes.to_json() if self.classes is not None else None,
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Create the summary from the values that `to_json` returned."""
        columns = [Column.from_json(column) for column in values["columns"]]
        return cls(
            label=Column.from_json(values["label"]),
            columns={column.name: column for column in columns},
            classes=Classes.from_json(values["classes"]) if values["classes"] else None,
        )


def summarize(
    records: Iterable[bytes],
    blocks: Iterable[Mapping[str, Array]] | None,
    *,
    label: str,
    has_classes: bool,
    kinds: Mapping[str, Kind],
    tell: Callable[[str], None],
    categories: Collection[str] = (),
) -> TableSummary:
    """Read all rows of the training data once and summarize them.

    Args:
        records: The rows as records of texts.
        blocks: Consecutive blocks of rows as columns; None if the data has only texts.
        label: Name of the column to predict.
        has_classes: Whether the label is a class; if not, it is a number.
        kinds: The kinds of columns that must be text or numbers.
        tell: Called with a line for each column.
        categories: Columns whose values are categories, so that numbers have a vocabulary, too.

    Raises:
        DataError: A column is missing or cannot be used, or the label is unsuitable.
    """
    counts: Counter[str] = Counter()
    """The number of rows with each value of the label."""

    def counted(row: dict[str, str]) -> dict[str, str]:
        if text := row.get(label):
            counts[text] += 1
        return row

    def counted_block(block: Mapping[str, Array]) -> Mapping[str, Array]:
        if has_classes and label in block and block[label].dtype.kind in "biuOS":
            counts.update(keys_of(block[label]))
        return block

    if blocks is not None:
        columns = infer_typed(map(counted_block, blocks), kinds=kinds, categories=categories)
    else:
        text_kinds: dict[str, Kind] = {**kinds, **({label: "text"} if has_classes else {})}
        columns = infer(map(counted, rows_of(records)), kinds=text_kinds, categories=categories)
    for name in (label, *kinds):
        if name not in columns:
            raise DataError(
                f"The data has no column {name!r}.",
                received=f"columns {', '.join(sorted(columns)) or 'none'}",
                hint=did_you_mean(name, columns) or "Select it, or choose another column.",
            )
    for name in sorted(columns):
        tell(f"column {columns[name]}")
    if not has_classes and columns[label].kind != "number":
        problem = f"The label {label!r} of a regressor must be a number."
        hint = "Use a classifier, or select another label."
        raise DataError(problem, received=str(columns[label]), hint=hint)
    _require_filled(columns[label])
    classes = None
    if has_classes:
        classes = _classes_of(columns[label], counts)
        tell(f"label {label}: classes {', '.join(map(str, classes.values))}")
    # The classes replace the vocabulary of the label.
    label_column = replace(columns.pop(label), vocabulary=())
    return TableSummary(label=label_column, columns=columns, classes=classes)


def _classes_of(column: Column, counts: Mapping[str, int]) -> Classes:
    """Return the classes of a label, sorted.

    Args:
        column: The label.
        counts: The number of rows with each value, by the value's text.

    Raises:
        DataError: The label has only one value, too many, or numbers that are not whole.
    """
    values: list[str | int | bool]
    if column.data_type == "boolean":
        values = [value for value in (False, True) if str(value) in counts]
    elif column.data_type == "integer":
        values = sorted(map(int, counts))
    elif column.data_type in ("text", "cells"):
        values = sorted(counts)
    else:
        raise DataError(
            f"The label {column.name!r} of a classifier must be a text, a whole number or a"
            " boolean.",
            received=str(column),
            hint="Use a regressor, or cast the label in the SELECT.",
        )
    if not 1 < len(values) <= MAX_CLASSES:
        raise DataError(
            f"The label {column.name!r} of a classifier must have 2 to {MAX_CLASSES:,} values.",
            received=f"{len(values):,} values: {_values_text(values)}",
            hint="Use a regressor for a number, or select a label with fewer values.",
        )
    return Classes(column.name, tuple(values), tuple(counts[str(value)] for value in values))


def _require_filled(column: Column) -> None:
    """Refuse a label that has empty cells.

    Raises:
        DataError: The label has an empty cell.
    """
    if column.num_empty:
        row = (column.first_empty or 0) + 1
        raise DataError(
            f"The label {column.name!r} is empty in row {row}.",
            received=f"{column.num_empty:,} of {column.num_rows:,} rows",
            hint="Remove such rows: WHERE the label IS NOT NULL.",
        )


def _as_classes(cells: Array) -> Array:
    """Convert floats back to integers: databases return them for columns with empty cells."""
    if cells.dtype.kind == "f" and (cells == np.floor(cells)).all():
        return cells.astype(np.int64)
    return cells


def _values_text(values: Sequence[object]) -> str:
    first_values = ", ".join(map(repr, values[:_MAX_SHOWN]))
    return f"{first_values}, ..." if len(values) > _MAX_SHOWN else first_values


def rows_of(records: Iterable[bytes]) -> Iterator[dict[str, str]]:
    """Yield the rows in the records of a table as texts; empty cells may be missing.

    Raises:
        DataError: A record is not an example, or contains values other than texts.
    """
    for record in records:
        yield {name: text.decode() for name, text in texts_of(record).items()}


def text_cells(records: Iterable[bytes], columns: Sequence[Column]) -> dict[str, Array]:
    """Return the columns of records of texts; a missing cell becomes an empty text.

    Raises:
        DataError: A record is not an example, or contains values other than texts.
    """
    rows = [texts_of(record) for record in records]
    cells = {}
    for column in columns:
        cells[column.name] = np.empty(len(rows), object)
        cells[column.name][:] = [row.get(column.name, b"") for row in rows]
    return cells


def require_types(dtypes: Mapping[str, np.dtype], columns: Sequence[Column]) -> None:
    """Refuse data whose columns do not match the training.

    Args:
        dtypes: The types of the data's columns, by name.
        columns: The columns to read, as they were in the training.

    Raises:
        DataError: A column is missing or has another type.
    """
    for column in columns:
        if column.name not in dtypes:
            problem = f"The data has no column {column.name!r}, which the model was trained with."
            hint = did_you_mean(column.name, dtypes) or "Select it."
            raise DataError(problem, received=f"columns {', '.join(sorted(dtypes))}", hint=hint)
        allowed = _DTYPES[column.kind]
        if column.kind == "text" and column.data_type in ("integer", "number", "boolean"):
            allowed = "b" if column.data_type == "boolean" else "iuf"
        if dtypes[column.name].kind not in allowed:
            raise _type_differs(column, dtypes[column.name])


def arrays_of(cells: Mapping[str, Array], columns: Sequence[Column]) -> dict[str, Array]:
    """Convert cells to the types of their columns: numbers, dates or texts.

    Args:
        cells: Arrays of shape (rows,) by column; objects that are bytes if the data is untyped.
        columns: The columns to read, as they were in the training.

    Raises:
        DataError: A text is not a number, or the data is untyped and the training's data was not.
    """
    return {column.name: _array(cells[column.name], column) for column in columns}


def _array(cells: Array, column: Column) -> Array:
    is_text = cells.dtype.kind in "OS"
    if is_text and column.kind != "text" and column.data_type != "cells":
        raise _type_differs(column, cells.dtype)
    if column.kind == "date":
        dates = cells.astype(f"datetime64[{column.unit}]")
        require_dates(dates, column.name)
        return dates
    if column.kind != "number" or not is_text:
        return cells
    try:
        texts = (cell.decode() for cell in cells.tolist())
        numbers = (float("nan") if text in EMPTY_NUMBERS else float(text) for text in texts)
        return np.fromiter(numbers, np.float64, len(cells))
    except ValueError as error:
        raise DataError(
            f"The column {column.name!r} contains values that are not numbers.",
            received=f"{error}; in the training: {column}",
            hint="Remove such rows, or train again with all rows.",
        ) from error


def _type_differs(column: Column, dtype: np.dtype) -> DataError:
    names = {"b": "booleans", "i": "integers", "u": "integers", "f": "numbers", "M": "dates"}
    return DataError(
        f"The type of the column {column.name!r} differs from the training.",
        received=f"{names.get(dtype.kind, 'texts')}; in the training: {column}",
        hint="Cast it in the SELECT, or train again.",
    )
