"""The cells of a table as arrays, from records of texts and from typed columns."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from edl_horovod.columns.infer import EMPTY_NUMBERS, Column
from edl_horovod.columns.typed import Array, require_dates
from edl_horovod.errors import DataError, did_you_mean
from edl_horovod.records.examples import texts_of

__all__ = ["arrays_of", "require_types", "rows_of", "text_cells"]

_DTYPES = {
    "number": "biuf",
    "boolean": "b",
    "date": "iuM",
    "text": "OS",
}
"""The NumPy kinds of arrays that a column of each kind may have."""


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
            raise DataError(
                f"The data has no column {column.name!r}, which the model was trained with.",
                received=f"columns {', '.join(sorted(dtypes))}",
                hint=did_you_mean(column.name, dtypes) or "Select it.",
            )
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
    return DataError(
        f"The type of the column {column.name!r} differs from the training.",
        received=f"{_type_name(dtype)}; in the training: {column}",
        hint="Cast it in the SELECT, or train again.",
    )


def _type_name(dtype: np.dtype) -> str:
    names = {"b": "booleans", "i": "integers", "u": "integers", "f": "numbers", "M": "dates"}
    return names.get(dtype.kind, "texts")
