"""Exported rows in two: those that a model learns from, and those held back for its validation."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from edl_horovod.errors import DataError
from edl_horovod.sql.splitting import Split

__all__ = ["check_label", "count_rows", "divide", "parts_of"]

_ROWS = 20_000


def parts_of(folder: Path) -> tuple[Path, Path]:
    """The folders of the rows to learn from, and of those held back."""
    return folder / "training", folder / "validation"


def count_rows(records: Path) -> int:
    """How many rows the Parquet files of a folder have."""
    return _num_rows(_files(records))


def check_label(records: Path, label: str) -> None:
    """Refuse rows of which nothing can be learned: one row, or a label that is always the same.

    Args:
        records: The folder of some Parquet files.
        label: The column that is to be learned.

    Raises:
        DataError: They are such rows.
    """
    files = _files(records)
    if (num_rows := _num_rows(files)) == 1:
        raise DataError(
            "The SELECT gives 1 row, and a model learns from how rows differ.",
            received=f"the label {label!r}",
            hint="Select more rows.",
        )
    first = None
    for batch in _batches(files, [label]):
        values = pc.unique(batch.column(label))
        first = values[0] if first is None else first
        if len(values) > 1 or values[0] != first:
            return
    raise DataError(
        f"The label {label!r} is the same in all {num_rows:,} rows, so there is nothing to learn.",
        received=repr(first.as_py() if first is not None else None),
        hint="Select rows that differ in it, or name another column by LABEL.",
    )


def divide(records: Path, folder: Path, split: Split, key: str = "", *, label: str = "") -> None:
    """Write the rows of some Parquet files into two folders, those of `parts_of`.

    By `random` and `key` a class that would be held back altogether is learned from.

    Args:
        records: The folder of the files.
        folder: A new one for both.
        split: Which rows are held back.
        key: The column by whose values that is decided, of `key`.
        label: The column of the classes that are learned; empty for a number.

    Raises:
        DataError: No row is left for one of them.
    """
    files = _files(records)
    rows = _Split(split, key, label, total=_num_rows(files))
    if label and split.kind in ("random", "key"):
        rows.find_rare(files)
    counts = [0, 0]
    places = parts_of(folder)
    for place in places:
        place.mkdir(parents=True)
    first_row = 0
    for file in files:
        schema = pq.read_schema(file)
        with (
            pq.ParquetWriter(places[0] / file.name, schema) as training,
            pq.ParquetWriter(places[1] / file.name, schema) as validation,
        ):
            for batch in _batches([file]):
                is_held_back = rows.held_back(batch, first_row)
                for at, (writer, mask) in enumerate(
                    ((training, ~is_held_back), (validation, is_held_back))
                ):
                    part = batch.filter(pa.array(mask))
                    counts[at] += part.num_rows
                    if part.num_rows:
                        writer.write_batch(part)
                first_row += batch.num_rows
    if 0 in counts:
        raise DataError(
            f"train.split={split.kind} holds back {counts[1]:,} of {rows.total:,} rows, and both"
            " sides need some.",
            hint="Select more rows, or choose another train.split_fraction.",
        )


@dataclass
class _Split:
    """Decides of batches of rows which are held back."""

    split: Split
    key: str
    label: str
    total: int
    rare: pa.Array | None = None
    """Classes that would be held back altogether."""

    def find_rare(self, files: list[Path]) -> None:
        """Look at the classes of both sides."""
        sides: tuple[set[object], set[object]] = (set(), set())
        first_row = 0
        for batch in _batches(files, [self.label, *filter(None, [self.key])]):
            mask = self.held_back(batch, first_row)
            for values, is_there in zip(sides, (~mask, mask), strict=True):
                labels = batch.column(self.label).filter(pa.array(is_there))
                values.update(pc.unique(labels).to_pylist())
            first_row += batch.num_rows
        if rare := sides[1] - sides[0]:
            self.rare = pa.array(list(rare), pq.read_schema(files[0]).field(self.label).type)

    def held_back(
        self, batch: pa.RecordBatch, first_row: int
    ) -> "np.ndarray[tuple[int], np.dtype[np.bool_]]":
        mask = _held_back(self.split, batch, self.key, first_row, self.total)
        if self.rare is not None:
            is_rare = pc.is_in(batch.column(self.label), value_set=self.rare)
            mask = mask & ~is_rare.to_numpy(zero_copy_only=False)
        return mask


def _files(records: Path) -> list[Path]:
    return sorted(file for file in records.iterdir() if file.suffix == ".parquet")


def _num_rows(files: list[Path]) -> int:
    return sum(pq.read_metadata(file).num_rows for file in files)


def _batches(files: list[Path], columns: list[str] | None = None) -> Iterator[pa.RecordBatch]:
    for file in files:
        with pq.ParquetFile(file) as source:
            yield from source.iter_batches(batch_size=_ROWS, columns=columns)


def _held_back(
    split: Split, batch: pa.RecordBatch, key: str, first_row: int, total: int
) -> "np.ndarray[tuple[int], np.dtype[np.bool_]]":
    if split.kind in ("random", "sequential"):
        return split.by_number(first_row, batch.num_rows, num_rows=total)
    if split.kind == "key":
        return split.by_key([(value,) for value in batch.column(key).to_pylist()])
    return split.by_column(batch.column(split.column).to_pylist(), first_row=first_row)
