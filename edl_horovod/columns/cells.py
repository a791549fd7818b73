"""The cells of a table as arrays, from records of texts and from columns that have types."""

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
"""NumPy's kinds of arrays that may hold a column of each kind."""


def rows_of(records: Iterable[bytes]) -> Iterator[dict[str, str]]:
    """The rows that records of a table hold, as texts; a cell that is empty may be missing.

    Raises:
        DataError: A record is no example, or holds other than texts.
    """
    for record in records:
        yield {name: text.decode() for name, text in texts_of(record).items()}


def text_cells(records: Iterable[bytes], columns: Sequence[Column]) -> dict[str, Array]:
    """The columns of records of texts; a cell that is missing is an empty text.

    Raises:
        DataError: A record is no example, or holds other than texts.
    """
    rows = [texts_of(record) for record in records]
    found = {}
    for column in columns:
        found[column.name] = np.empty(len(rows), object)
        found[column.name][:] = [row.get(column.name, b"") for row in rows]
    return found


def require_types(dtypes: Mapping[str, np.dtype], columns: Sequence[Column]) -> None:
    """Refuse data whose columns are not those of the training.

    Args:
        dtypes: Of the data's columns.
        columns: That are read, as the training had them.

    Raises:
        DataError: One is missing, or has another type.
    """
    for column in columns:
        if column.name not in dtypes:
            raise DataError(
                f"The data have no column {column.name!r}, which the model was trained with.",
                received=f"columns {', '.join(sorted(dtypes))}",
                cure=did_you_mean(column.name, dtypes) or "Select it.",
            )
        allowed = _DTYPES[column.kind]
        if column.kind == "text" and column.data_type in ("integer", "number", "boolean"):
            allowed = "b" if column.data_type == "boolean" else "iuf"
        if dtypes[column.name].kind not in allowed:
            raise _other_type(column, dtypes[column.name])


def arrays_of(cells: Mapping[str, Array], columns: Sequence[Column]) -> dict[str, Array]:
    """The cells of columns, as numbers where they are numbers and as dates where they are dates.

    Args:
        cells: Arrays of shape (rows,), of bytes where the data have no types.
        columns: That are read, as the training had them.

    Raises:
        DataError: A text is no number, or the training had a type where there are only texts.
    """
    return {column.name: _array(cells[column.name], column) for column in columns}


def _array(cells: Array, column: Column) -> Array:
    is_text = cells.dtype.kind in "OS"
    if is_text and column.kind != "text" and column.data_type != "cells":
        raise _other_type(column, cells.dtype)
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
            f"The column {column.name!r} holds other than numbers.",
            received=f"{error}; the training had {column}",
            cure="Leave such rows out, or train again with all rows.",
        ) from error


def _other_type(column: Column, dtype: np.dtype) -> DataError:
    return DataError(
        f"The column {column.name!r} has another type than in the training.",
        received=f"{_named(dtype)}; the training had {column}",
        cure="Cast it in the SELECT, or train again.",
    )


def _named(dtype: np.dtype) -> str:
    names = {"b": "booleans", "i": "integers", "u": "integers", "f": "numbers", "M": "dates"}
    return names.get(dtype.kind, "texts")
