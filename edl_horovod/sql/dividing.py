"""Splits exported rows: some to learn from, others held back for the validation."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from edl_horovod.errors import DataError
from edl_horovod.sql.splitting import Split

__all__ = ["check_label", "count_rows", "part_folders", "split_rows"]

_ROWS = 20_000


def part_folders(folder: Path) -> tuple[Path, Path]:
    """The folders of the rows to learn from, and of the rows held back."""
    return folder / "training", folder / "validation"


def count_rows(records: Path) -> int:
    """The number of rows in the Parquet files of a folder."""
    return _num_rows(_files(records))


def check_label(records: Path, label: str) -> None:
    """Refuse rows from which nothing can be learned: a single row, or a constant label.

    Args:
        records: The folder of the Parquet files.
        label: The column that is to be learned.

    Raises:
        DataError: Nothing can be learned from the rows.
    """
    files = _files(records)
    if (num_rows := _num_rows(files)) == 1:
        raise DataError(
            "The SELECT gives 1 row, and a model learns from differences between rows.",
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
        hint="Select rows with different labels, or name another column by LABEL.",
    )


def split_rows(
    records: Path, folder: Path, split: Split, key: str = "", *, label: str = ""
) -> None:
    """Write the rows of Parquet files into the two `part_folders`.

    A class that `random` or `key` would hold back altogether is learned from instead.

    Args:
        records: The folder of the files.
        folder: The parent of both folders.
        split: Which rows are held back.
        key: The column whose values decide, for the kind `key`.
        label: The label, if it is a class; empty for a number.

    Raises:
        DataError: One of the folders would have no rows.
    """
    files = _files(records)
    splitter = _RowSplitter(split, key, label, total=_num_rows(files))
    if label and split.kind in ("random", "key"):
        splitter.find_rare_classes(files)
    counts = [0, 0]
    folders = part_folders(folder)
    for part_folder in folders:
        part_folder.mkdir(parents=True)
    first_row = 0
    for file in files:
        schema = pq.read_schema(file)
        with (
            pq.ParquetWriter(folders[0] / file.name, schema) as training,
            pq.ParquetWriter(folders[1] / file.name, schema) as validation,
        ):
            for batch in _batches([file]):
                is_held_back = splitter.held_back(batch, first_row)
                for side, (writer, mask) in enumerate(
                    ((training, ~is_held_back), (validation, is_held_back))
                ):
                    rows_of_side = batch.filter(pa.array(mask))
                    counts[side] += rows_of_side.num_rows
                    if rows_of_side.num_rows:
                        writer.write_batch(rows_of_side)
                first_row += batch.num_rows
    if 0 in counts:
        raise DataError(
            f"train.split={split.kind} holds back {counts[1]:,} of {splitter.total:,} rows, and"
            " each side needs at least one.",
            hint="Select more rows, or choose another train.split_fraction.",
        )


@dataclass
class _RowSplitter:
    """Decides which rows of batches are held back."""

    split: Split
    key: str
    label: str
    total: int
    rare_classes: pa.Array | None = None
    """Classes that would be held back altogether, and so are not held back at all."""

    def find_rare_classes(self, files: list[Path]) -> None:
        """Find the classes that would be held back altogether."""
        sides: tuple[set[object], set[object]] = (set(), set())
        first_row = 0
        for batch in _batches(files, [self.label, *filter(None, [self.key])]):
            mask = self.held_back(batch, first_row)
            for values, is_selected in zip(sides, (~mask, mask), strict=True):
                labels = batch.column(self.label).filter(pa.array(is_selected))
                values.update(pc.unique(labels).to_pylist())
            first_row += batch.num_rows
        if rare := sides[1] - sides[0]:
            self.rare_classes = pa.array(
                list(rare), pq.read_schema(files[0]).field(self.label).type
            )

    def held_back(
        self, batch: pa.RecordBatch, first_row: int
    ) -> "np.ndarray[tuple[int], np.dtype[np.bool_]]":
        mask = _held_back_by_split(self.split, batch, self.key, first_row, self.total)
        if self.rare_classes is not None:
            is_rare = pc.is_in(batch.column(self.label), value_set=self.rare_classes)
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


def _held_back_by_split(
    split: Split, batch: pa.RecordBatch, key: str, first_row: int, total: int
) -> "np.ndarray[tuple[int], np.dtype[np.bool_]]":
    if split.kind in ("random", "sequential"):
        return split.by_number(first_row, batch.num_rows, num_rows=total)
    if split.kind == "key":
        return split.by_key([(value,) for value in batch.column(key).to_pylist()])
    return split.by_column(batch.column(split.column).to_pylist(), first_row=first_row)
