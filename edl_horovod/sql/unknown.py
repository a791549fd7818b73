"""Values of rows that a model's training did not have: counted before a job, and told once."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from edl_horovod.columns import Column
from edl_horovod.columns.categories import Vocabulary
from edl_horovod.columns.typed import Array, keys_of

__all__ = ["UnknownValues", "array_of", "unknown_values"]


@dataclass(frozen=True, kw_only=True)
class UnknownValues:
    """Those of one column."""

    column: str
    num_rows: int
    """Rows that have such a value."""
    first: str
    first_row: int
    """Counted from 0."""

    def __str__(self) -> str:
        """A line for people."""
        rows = "1 row has a value" if self.num_rows == 1 else f"{self.num_rows:,} rows have values"
        return (
            f"{rows} of {self.column!r} that the training did not have,"
            f" the first of them {self.first!r} in row {self.first_row + 1:,}: they count as"
            " unknown."
        )


def unknown_values(adapted: Mapping[str, Any], shards: Sequence[Path]) -> list[UnknownValues]:
    """What rows have that the training of a model of tables did not have, in constant memory.

    Args:
        adapted: What the trained model keeps of its training's data; of a model that is none of
            the zoo's models of tables there is nothing to tell.
        shards: Parquet files of the rows, in their order, with the columns of the training.
    """
    columns = map(Column.from_json, adapted.get("columns", ()))
    known = {
        column.name: column
        for column in columns
        if column.name in adapted.get("read", ()) and column.vocabulary
    }
    found: dict[str, UnknownValues] = {}
    first_row = 0
    for shard in shards if known else ():
        with pq.ParquetFile(shard) as file:
            for batch in file.iter_batches(columns=list(known)):
                for name, column in known.items():
                    _count(column, batch.column(name), first_row, found)
                first_row += batch.num_rows
    return [found[name] for name in sorted(found)]


def _count(
    column: Column, cells: pa.Array, first_row: int, found: dict[str, UnknownValues]
) -> None:
    values = pc.unique(cells)
    vocabulary = Vocabulary(column.name, column.vocabulary, column.data_type)
    codes = vocabulary.encode({column.name: array_of(values)})[:, 0]
    is_new = pc.is_in(cells, value_set=values.filter(pa.array(codes == vocabulary.unknown)))
    num_rows = pc.sum(is_new).as_py() or 0
    if not num_rows:
        return
    before = found.get(column.name)
    place = pc.index(is_new, True).as_py()
    (first,) = keys_of(array_of(cells.slice(place, 1)), column.data_type)
    found[column.name] = UnknownValues(
        column=column.name,
        num_rows=num_rows + (before.num_rows if before else 0),
        first=before.first if before else first,
        first_row=before.first_row if before else first_row + place,
    )


def array_of(values: pa.Array) -> Array:
    """Values as the models of tables get them: texts as bytes, an empty number as NaN."""
    if pa.types.is_string(values.type):
        values = values.cast(pa.binary())
    found: Array = values.to_numpy(zero_copy_only=False)
    return found
