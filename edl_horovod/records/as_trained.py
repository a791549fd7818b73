"""Conversion of values to what they were in a model's training: time units, numbers of classes.

A model receives both as integers, which show neither the unit of a date nor the name of a class.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edl_horovod.errors import DataError
from edl_horovod.records.columns import Ragged, Values
from edl_horovod.records.layout import BYTES, Column, Layout
from edl_horovod.records.source import Records, RecordSource


def columns_to_json(columns: Sequence[Column]) -> str:
    """Serialize columns as JSON; "" if there are no columns."""
    return json.dumps([asdict(column) for column in columns]) if columns else ""


def columns_from_json(text: str) -> tuple[Column, ...]:
    """Parse the text that `columns_to_json` returned."""
    return tuple(map(Column.from_dict, json.loads(text or "[]")))


def as_trained(
    trained: Sequence[Column], source: RecordSource, *, data: str, needs_classes: bool = True
) -> RecordSource:
    """Return a source with the time units and the numbers of classes of the training.

    Args:
        trained: The columns that the model was trained with; other columns are left unchanged.
        source: The source to convert; the returned source closes it.
        data: The name of the source in messages.
        needs_classes: Whether to refuse classes that the training did not have. Otherwise their
            records get the number -1.

    Raises:
        DataError: A column is a date in the training or in the source, and a duration or not a
            time in the other; or a class is not known.
    """
    if source.layout is None:
        return source
    trained_columns = {column.name: column for column in trained}
    layout = source.layout
    columns = tuple(_column(item, trained_columns.get(item.name), data) for item in layout.columns)
    if columns == layout.columns:
        return source
    if needs_classes:
        for column, known in zip(layout.columns, columns, strict=True):
            _require_known(column, known, data)
    return _Converted(source, replace(layout, columns=columns), data)


class _Converted(RecordSource):
    """A source that converts columns of another source."""

    def __init__(self, source: RecordSource, layout: Layout, data: str) -> None:
        assert source.layout is not None
        self._source = source
        self._converters = [
            _converter(read_as, trained, data)
            for read_as, trained in zip(source.layout.columns, layout.columns, strict=True)
        ]
        self.layout = layout
        self.block_starts = source.block_starts
        self.block_counts = source.block_counts
        self.fingerprint = source.fingerprint

    def read(self, ids: Sequence[int] | NDArray[np.integer]) -> Records:
        """Return the records with these ids, converted."""
        source_values: list[Any] = self._source.read(ids)
        return [
            values if convert is None else convert(values)
            for values, convert in zip(source_values, self._converters, strict=True)
        ]

    def record_bytes(self) -> float:
        """Return the average size of a record in memory, in bytes."""
        return self._source.record_bytes()

    def describe(self) -> str:
        """Describe the source for the log."""
        return self._source.describe()

    def close(self) -> None:
        """Close the source."""
        self._source.close()


def _column(column: Column, trained: Column | None, data: str) -> Column:
    """Return the column with the type and the classes that it had in the training."""
    if trained is None:
        return column
    if column.classes and trained.classes:
        column = replace(column, classes=trained.classes)
    if trained.time_type == column.time_type:
        return column
    types = np.dtype(column.time_type or int), np.dtype(trained.time_type or int)
    if types[0].kind != types[1].kind or not np.can_cast(*types, "same_kind"):
        raise DataError(
            f"The type of the column {column.name!r} of {data} differs from the training.",
            received=f"{_type_name(column)}; in the training: {_type_name(trained)}",
            hint="Write the column with the type of the training, or train again.",
        )
    return replace(column, dtype=trained.dtype, time_type=trained.time_type)


def _require_known(column: Column, trained: Column, data: str) -> None:
    if unknown := sorted(set(column.classes) - set(trained.classes)):
        dots = ", ..." if len(trained.classes) > 5 else ""
        raise DataError(
            f"{data} has classes that the training does not have.",
            received=", ".join(unknown[:5]),
            hint=f"Leave their folders out. The training has {len(trained.classes):,} classes:"
            f" {', '.join(trained.classes[:5])}{dots}.",
        )


def _converter(read_as: Column, trained: Column, data: str) -> Callable[[Values], Values] | None:
    """What converts the values of a column; None if they stay as they are."""
    if read_as == trained:
        return None
    if read_as.classes:
        numbers = {name: number for number, name in enumerate(trained.classes)}
        renumbered = np.array([numbers.get(name, -1) for name in read_as.classes], trained.dtype)

        def renumber(values: Values) -> Values:
            assert isinstance(values, np.ndarray)
            return np.take(renumbered, values.astype(np.int64))

        return renumber

    def convert(values: Values) -> Values:
        if isinstance(values, Ragged):
            assert isinstance(values.values, np.ndarray)
            return Ragged(_in_unit(values.values, read_as, trained, data), values.ends)
        return _in_unit(values, read_as, trained, data)

    return convert


def _in_unit(values: NDArray[Any], read_as: Column, trained: Column, data: str) -> NDArray[Any]:
    times = values.astype(np.int64).view(read_as.time_type)
    converted = times.astype(trained.time_type)
    # NumPy wraps around silently where a finer unit cannot represent a time.
    if np.can_cast(read_as.time_type, trained.time_type):
        overflows = (converted.astype(read_as.time_type) != times) & ~np.isnat(times)
        if overflows.any():
            raise DataError(
                f"The column {trained.name!r} of {data} has a value that the training's time unit"
                " cannot represent.",
                received=f"{times[overflows].flat[0]} as {trained.time_type}",
                hint="Remove such rows, or train again with a coarser time unit.",
            )
    return converted.view(np.int64).astype(trained.dtype)


def _type_name(column: Column) -> str:
    return column.time_type or ("text" if column.dtype == BYTES else f"plain {column.dtype}")
