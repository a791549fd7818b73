"""Fills NULLs of exported rows with the mean or the most frequent value of the training rows."""

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
    """Replace the NULLs of columns in all rows of a training.

    Numbers, dates and timestamps are filled with their mean, which is rounded where the column
    holds whole numbers; texts and booleans with their most frequent value. Both are computed from
    the training rows alone, so that no information about the rows held back reaches the training.

    Args:
        training: The folder of the Parquet files that the model learns from.
        held_back: The folder of the rows for the validation, if there are any.
        columns: The columns to fill.

    Returns:
        The value for each column, also for columns without NULLs, because a later SELECT may have
        some. Dates and timestamps are texts in ISO 8601.

    Raises:
        DataError: A column is NULL in all training rows, or its values have no mean and cannot be
            counted.
    """
    folders = [training, *([held_back] if held_back else [])]
    columns_with_nulls = {
        name for folder in folders for name in columns if _has_nulls(folder, name)
    }
    values: dict[str, pa.Scalar[Any]] = {}
    for name in columns:
        value = _fill_value(training, name)
        if value is not None:
            values[name] = value
        elif name in columns_with_nulls:
            raise DataError(
                f"The column {name!r} has NULLs, and its other values give nothing to fill them"
                " with.",
                received={"train.nulls": "mean"},
                hint="Only numbers, dates, texts and booleans can be filled. Leave the column out"
                " of the SELECT, or use COALESCE there.",
            )
    for folder in folders:
        for file in _files(folder):
            _rewrite(file, {name: values[name] for name in columns_with_nulls})
    return {name: _json_value(value) for name, value in values.items()}


def _files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.parquet"))


def _column_batches(folder: Path, name: str) -> Iterator[pa.Array]:
    for file in _files(folder):
        with pq.ParquetFile(file) as source:
            for batch in source.iter_batches(columns=[name]):
                yield batch.column(0)


def _has_nulls(folder: Path, name: str) -> bool:
    return any(values.null_count for values in _column_batches(folder, name))


def _fill_value(folder: Path, name: str) -> "pa.Scalar[Any] | None":
    """The mean or the most frequent value; None if the column has neither."""
    value_type = pq.read_schema(_files(folder)[0]).field(name).type
    if pa.types.is_string(value_type) or pa.types.is_boolean(value_type):
        counts: Counter[Any] = Counter()
        for values in _column_batches(folder, name):
            for pair in pc.value_counts(values.drop_null()).to_pylist():
                counts[pair["values"]] += pair["counts"]
        # The smallest of equally frequent values, so that the order of rows does not matter.
        most_frequent = min(counts, key=lambda value: (-counts[value], value), default=None)
        return None if most_frequent is None else pa.scalar(most_frequent, value_type)
    if pa.types.is_binary(value_type) or pa.types.is_null(value_type):
        return None
    number = {pa.date32(): pa.int32(), pa.float64(): pa.float64()}.get(value_type, pa.int64())
    total, count = 0, 0
    for values in _column_batches(folder, name):
        numbers = values.drop_null().cast(number)
        # Sums of Python's numbers do not overflow.
        total += sum(numbers.to_pylist())
        count += len(numbers)
    if not count:
        return None
    mean = total / count if number == pa.float64() else round(total / count)
    return pa.scalar(mean, number).cast(value_type)


def _rewrite(file: Path, values: "dict[str, pa.Scalar[Any]]") -> None:
    """Replace NULLs in a file, which keeps its row groups."""
    if not values:
        return
    filled = file.with_suffix(".filled")
    with pq.ParquetFile(file) as reader:
        schema = reader.schema_arrow
        with pq.ParquetWriter(filled, schema, write_page_checksum=True) as writer:
            for number in range(reader.num_row_groups):
                table = reader.read_row_group(number, use_threads=False)
                for name, value in values.items():
                    index = schema.get_field_index(name)
                    column = table.column(name).fill_null(value)
                    table = table.set_column(index, schema.field(name), column)
                writer.write_table(table)
    filled.replace(file)


def _json_value(value: "pa.Scalar[Any]") -> Any:
    """A value that JSON can represent."""
    plain = value.as_py()
    return plain.isoformat() if hasattr(plain, "isoformat") else plain
