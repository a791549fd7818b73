"""NULLs of exported rows, filled by the mean or the most frequent value of the training rows."""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from edl_horovod.errors import DataError

__all__ = ["fill_nulls"]


def fill_nulls(training: Path, held_back: Path | None, columns: Sequence[str]) -> dict[str, Any]:
    """Replace the NULLs of some columns in all rows of a training.

    Numbers, dates and timestamps are filled with their mean, which is rounded where the column
    holds whole numbers; texts and booleans with their most frequent value. Both are computed from
    the training rows alone, so that the validation says nothing about rows that it has seen.

    Args:
        training: The folder of the Parquet files that the model learns from.
        held_back: The folder of those for the validation, if there are any.
        columns: The columns to fill.

    Returns:
        The value of each column, also of those without NULLs: a later SELECT may have some. Dates
        and timestamps are texts in ISO 8601.

    Raises:
        DataError: A column is NULL in all training rows, or its values have no mean and cannot be
            counted.
    """
    folders = [training, *([held_back] if held_back else [])]
    empty = {name for folder in folders for name in columns if _has_nulls(folder, name)}
    values: dict[str, pa.Scalar[Any]] = {}
    for name in columns:
        value = _fill_value(training, name)
        if value is not None:
            values[name] = value
        elif name in empty:
            raise DataError(
                f"The column {name!r} has NULLs, and its other values give nothing to fill them"
                " with.",
                received={"train.nulls": "mean"},
                hint="Only numbers, dates, texts and booleans can be filled. Leave the column out"
                " of the SELECT, or use COALESCE there.",
            )
    for folder in folders:
        for file in _files(folder):
            _fill(file, {name: values[name] for name in empty})
    return {name: _plain(value) for name, value in values.items()}


def _files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.parquet"))


def _batches(folder: Path, name: str) -> Iterator[pa.Array]:
    for file in _files(folder):
        with pq.ParquetFile(file) as source:
            for batch in source.iter_batches(columns=[name]):
                yield batch.column(0)


def _has_nulls(folder: Path, name: str) -> bool:
    return any(values.null_count for values in _batches(folder, name))


def _fill_value(folder: Path, name: str) -> "pa.Scalar[Any] | None":
    """The mean or the most frequent value; None where there is none."""
    type_ = pq.read_schema(_files(folder)[0]).field(name).type
    if pa.types.is_string(type_) or pa.types.is_boolean(type_):
        counts: Counter[Any] = Counter()
        for values in _batches(folder, name):
            for pair in pc.value_counts(values.drop_null()).to_pylist():
                counts[pair["values"]] += pair["counts"]
        # Of values that are equally frequent the smallest, whatever the order of the rows.
        most = min(counts, key=lambda value: (-counts[value], value), default=None)
        return None if most is None else pa.scalar(most, type_)
    if pa.types.is_binary(type_) or pa.types.is_null(type_):
        return None
    number = {pa.date32(): pa.int32(), pa.float64(): pa.float64()}.get(type_, pa.int64())
    total, count = 0, 0
    for values in _batches(folder, name):
        there = values.drop_null().cast(number)
        # As Python's numbers, whose sum does not overflow.
        total += sum(there.to_pylist())
        count += len(there)
    if not count:
        return None
    mean = total / count if number == pa.float64() else round(total / count)
    return pa.scalar(mean, number).cast(type_)


def _fill(file: Path, values: "dict[str, pa.Scalar[Any]]") -> None:
    """Write a file again without NULLs, in the same row groups."""
    if not values:
        return
    filled = file.with_suffix(".filled")
    with pq.ParquetFile(file) as old:
        schema = old.schema_arrow
        with pq.ParquetWriter(filled, schema, write_page_checksum=True) as new:
            for number in range(old.num_row_groups):
                table = old.read_row_group(number, use_threads=False)
                for name, value in values.items():
                    place = schema.get_field_index(name)
                    column = table.column(name).fill_null(value)
                    table = table.set_column(place, schema.field(name), column)
                new.write_table(table)
    filled.replace(file)


def _plain(value: "pa.Scalar[Any]") -> Any:
    """A value as JSON has it."""
    plain = value.as_py()
    return plain.isoformat() if hasattr(plain, "isoformat") else plain
