"""Exported rows in two: those that a model learns from, and those held back for its validation."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from edl_horovod.errors import DataError
from edl_horovod.sql.splitting import Split

__all__ = ["divide", "parts_of"]

_ROWS = 20_000


def parts_of(folder: Path) -> tuple[Path, Path]:
    """The folders of the rows to learn from, and of those held back."""
    return folder / "training", folder / "validation"


def divide(records: Path, folder: Path, split: Split, key: str = "") -> None:
    """Write the rows of some Parquet files into two folders, those of `parts_of`.

    Args:
        records: The folder of the files.
        folder: A new one for both.
        split: Which rows are held back.
        key: The column by whose values that is decided, of `key`.

    Raises:
        DataError: No row is left for one of them.
    """
    files = sorted(file for file in records.iterdir() if file.suffix == ".parquet")
    total = sum(pq.read_metadata(file).num_rows for file in files)
    counts = [0, 0]
    places = parts_of(folder)
    for place in places:
        place.mkdir(parents=True)
    first_row = 0
    for file in files:
        source = pq.ParquetFile(file)
        with (
            pq.ParquetWriter(places[0] / file.name, source.schema_arrow) as training,
            pq.ParquetWriter(places[1] / file.name, source.schema_arrow) as validation,
        ):
            for batch in source.iter_batches(batch_size=_ROWS):
                is_held_back = _held_back(split, batch, key, first_row, total)
                for at, (writer, mask) in enumerate(
                    ((training, ~is_held_back), (validation, is_held_back))
                ):
                    rows = batch.filter(pa.array(mask))
                    counts[at] += rows.num_rows
                    if rows.num_rows:
                        writer.write_batch(rows)
                first_row += batch.num_rows
    if 0 in counts:
        raise DataError(
            f"train.split={split.kind} holds back {counts[1]:,} of {total:,} rows, and both sides"
            " need some.",
            cure="Select more rows, or choose another train.split_fraction.",
        )


def _held_back(
    split: Split, batch: pa.RecordBatch, key: str, first_row: int, total: int
) -> "np.ndarray[tuple[int], np.dtype[np.bool_]]":
    if split.kind in ("random", "sequential"):
        return split.by_number(first_row, batch.num_rows, num_rows=total)
    if split.kind == "key":
        return split.by_key([(value,) for value in batch.column(key).to_pylist()])
    return split.by_column(batch.column(split.column).to_pylist(), first_row=first_row)
