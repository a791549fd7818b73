"""Dates, times and durations in the units of a training, whatever the units of other data.

They are integers, so a model cannot tell by their type which unit they count.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edl_horovod.errors import DataError
from edl_horovod.records.columns import Ragged, Values
from edl_horovod.records.layout import BYTES, Column, Layout
from edl_horovod.records.source import Records, RecordSource

__all__ = ["columns_from_json", "columns_to_json", "with_time_types_of"]


def columns_to_json(columns: Sequence[Column]) -> str:
    """Columns as text; "" for none."""
    return json.dumps([asdict(column) for column in columns]) if columns else ""


def columns_from_json(text: str) -> tuple[Column, ...]:
    """The columns that `columns_to_json` gave."""
    return tuple(
        Column(one["name"], one["dtype"], tuple(one["shape"]), time_type=one["time_type"])
        for one in json.loads(text or "[]")
    )


def with_time_types_of(
    trained: Sequence[Column], source: RecordSource, *, data: str
) -> RecordSource:
    """A source whose dates, times and durations count in the units of a training.

    Args:
        trained: The columns of the training; others are left as they are.
        source: Closed with the one that is returned.
        data: What people call the source.

    Raises:
        DataError: A column is a date in one of both, and a duration or no time in the other.
    """
    if source.layout is None:
        return source
    wanted = {column.name: column for column in trained}
    columns = tuple(
        _column(column, wanted.get(column.name), data) for column in source.layout.columns
    )
    if columns == source.layout.columns:
        return source
    return _Converted(source, replace(source.layout, columns=columns), data)


class _Converted(RecordSource):
    """Another source, with a layout whose times count other units."""

    def __init__(self, source: RecordSource, layout: Layout, data: str) -> None:
        assert source.layout is not None
        self._source = source
        self._data = data
        self._pairs = list(zip(source.layout.columns, layout.columns, strict=True))
        self.layout = layout
        self.block_starts = source.block_starts
        self.block_counts = source.block_counts
        self.fingerprint = source.fingerprint

    def read(self, ids: Sequence[int] | NDArray[np.integer]) -> Records:
        """The records with these ids, converted."""
        found: list[Any] = self._source.read(ids)
        return [
            values if read_as == wanted else _converted(values, read_as, wanted, self._data)
            for values, (read_as, wanted) in zip(found, self._pairs, strict=True)
        ]

    def record_bytes(self) -> float:
        """What a record takes in memory on average, in bytes."""
        return self._source.record_bytes()

    def describe(self) -> str:
        """What the source holds, for the log."""
        return self._source.describe()

    def close(self) -> None:
        """Close the source."""
        self._source.close()


def _column(column: Column, trained: Column | None, data: str) -> Column:
    """A column with the type of the training's."""
    if trained is None or trained.time_type == column.time_type:
        return column
    both = np.dtype(column.time_type or int), np.dtype(trained.time_type or int)
    if both[0].kind != both[1].kind or not np.can_cast(*both, "same_kind"):
        raise DataError(
            f"The column {column.name!r} of {data} has another type than in the training.",
            received=f"{_named(column)}; the training had {_named(trained)}",
            cure="Write the column with the type of the training, or train again.",
        )
    return replace(column, dtype=trained.dtype, time_type=trained.time_type)


def _converted(values: Values, read_as: Column, wanted: Column, data: str) -> Values:
    if isinstance(values, Ragged):
        assert isinstance(values.values, np.ndarray)
        return Ragged(_in_unit(values.values, read_as, wanted, data), values.ends)
    return _in_unit(values, read_as, wanted, data)


def _in_unit(values: NDArray[Any], read_as: Column, wanted: Column, data: str) -> NDArray[Any]:
    times = values.astype(np.int64).view(read_as.time_type)
    found = times.astype(wanted.time_type)
    # NumPy wraps around where a finer unit cannot hold a time.
    if np.can_cast(read_as.time_type, wanted.time_type):
        is_other = (found.astype(read_as.time_type) != times) & ~np.isnat(times)
        if is_other.any():
            raise DataError(
                f"The column {wanted.name!r} of {data} has a value that the training's unit cannot"
                " hold.",
                received=f"{times[is_other].flat[0]} as {wanted.time_type}",
                cure="Leave such rows out, or train again with a coarser unit.",
            )
    return found.view(np.int64).astype(wanted.dtype)


def _named(column: Column) -> str:
    return column.time_type or ("text" if column.dtype == BYTES else f"plain {column.dtype}")
