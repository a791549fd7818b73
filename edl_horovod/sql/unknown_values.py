"""Counts values that were not in the training data of a model, before a job uses them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from edl_horovod.columns import Column
from edl_horovod.columns.encoders import Vocabulary
from edl_horovod.columns.typed import Array, keys_of


@dataclass(frozen=True, kw_only=True)
class UnknownValues:
    """The unknown values of a column."""

    column: str
    num_rows: int
    """The number of rows with such a value."""
    first: str
    """The first unknown value."""
    first_row: int
    """The row of the first unknown value, counted from 0."""

    def __str__(self) -> str:
        """A sentence for users."""
        rows = "1 row has a value" if self.num_rows == 1 else f"{self.num_rows:,} rows have values"
        return (
            f"{rows} of {self.column!r} that the training did not have,"
            f" the first of them {self.first!r} in row {self.first_row + 1:,}: they count as"
            " unknown."
        )


def unknown_values(adapted: Mapping[str, Any], shards: Sequence[Path]) -> list[UnknownValues]:
    """Find values that were not in the training data of a model of tables, in constant memory.

    Args:
        adapted: The summary of the training data in the trained model; without the entries of the
            zoo's models of tables, no value counts as unknown.
        shards: Parquet files of the rows in order, with the columns of the training.
    """
    columns = map(Column.from_json, adapted.get("columns", ()))
    columns_with_vocabulary = {
        column.name: column
        for column in columns
        if column.name in adapted.get("read", ()) and column.vocabulary
    }
    counts: dict[str, UnknownValues] = {}
    first_row = 0
    for shard in shards if columns_with_vocabulary else ():
        with pq.ParquetFile(shard) as file:
            for batch in file.iter_batches(columns=list(columns_with_vocabulary)):
                for name, column in columns_with_vocabulary.items():
                    _count(column, batch.column(name), first_row, counts)
                first_row += batch.num_rows
    return [counts[name] for name in sorted(counts)]


def array_of(values: pa.Array) -> Array:
    """Values as models of tables receive them: texts as bytes, missing numbers as NaN."""
    if pa.types.is_string(values.type):
        values = values.cast(pa.binary())
    array: Array = values.to_numpy(zero_copy_only=False)
    return array


def _count(
    column: Column, cells: pa.Array, first_row: int, counts: dict[str, UnknownValues]
) -> None:
    values = pc.unique(cells)
    vocabulary = Vocabulary.of(column)
    codes = vocabulary.encode({column.name: array_of(values)})[:, 0]
    is_new = pc.is_in(cells, value_set=values.filter(pa.array(codes == vocabulary.unknown)))
    num_rows = pc.sum(is_new).as_py() or 0
    if not num_rows:
        return
    earlier = counts.get(column.name)
    index = pc.index(is_new, True).as_py()
    (first,) = keys_of(array_of(cells.slice(index, 1)), column.data_type)
    counts[column.name] = UnknownValues(
        column=column.name,
        num_rows=num_rows + (earlier.num_rows if earlier else 0),
        first=earlier.first if earlier else first,
        first_row=earlier.first_row if earlier else first_row + index,
    )
