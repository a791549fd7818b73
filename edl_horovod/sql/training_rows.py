"""Prepares the exported rows of a training: chooses those for the validation, and fills NULLs."""

import hashlib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from edl_horovod.errors import ConfigError, DataError, did_you_mean
from edl_horovod.sql.export import parquet_writer, rewrite_file

_BATCH_ROWS = 20_000
_SPLITS = ("key", "random", "sequential", "column", "none")
_NUM_HASHES = 1 << 64
_Mask = NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class Split:
    """The rule by which rows are held back for the validation."""

    kind: str = "none"
    """`key`: by the key of a row, so that a row stays on its side when others are added or removed.
    `random`: by the number of a row. `sequential`: the last rows. `column`: rows for which a column
    is true. `none`: no rows."""
    fraction: float = 0.1
    """The approximate share of rows held back, above 0 and below 1; ignored by `column`."""
    column: str = ""
    """The name of the column for `column`. The model does not learn from it."""
    seed: int = 0
    """For `key` and `random`: another seed holds other rows back."""

    def __post_init__(self) -> None:
        """Check the values of the fields."""
        if self.kind not in _SPLITS:
            problem = f"train.split must be one of {', '.join(_SPLITS)}."
            hint = did_you_mean(self.kind, _SPLITS)
            raise ConfigError(problem, received={"train.split": self.kind}, hint=hint)
        if not 0 < self.fraction < 1:
            problem = "The share of rows for the validation must be above 0 and below 1."
            raise ConfigError(problem, received={"fraction": self.fraction})
        if (self.kind == "column") != bool(self.column):
            problem = "train.split=column needs train.split_column, which other splits do not take."
            raise ConfigError(problem, received={"train.split": self.kind, "column": self.column})

    def by_number(self, first_row: int, count: int, *, num_rows: int = 0) -> _Mask:
        """Which of consecutive rows are held back, for `random` and `sequential`.

        Args:
            first_row: The number of the first row, counted from 0.
            count: The number of rows.
            num_rows: The total number of rows, for `sequential`.
        """
        numbers = np.arange(first_row, first_row + count, dtype=np.uint64)
        if self.kind == "sequential":
            return numbers >= num_rows - round(num_rows * self.fraction)
        assert self.kind == "random", self.kind
        # A hash of the row's number: SplitMix64.
        mixed = numbers + np.uint64(
            (self.seed * 0x9E3779B97F4A7C15 + 0x9E3779B97F4A7C15) % _NUM_HASHES
        )
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
        mixed = mixed ^ (mixed >> np.uint64(31))
        return mixed < np.uint64(int(self.fraction * _NUM_HASHES))

    def by_key(self, keys: Sequence[tuple[object, ...]]) -> _Mask:
        """Which rows are held back by the values of their keys, for `key`."""
        assert self.kind == "key", self.kind
        bound = int(self.fraction * _NUM_HASHES)
        seed = self.seed.to_bytes(8, "little", signed=True)
        return np.fromiter((_hash_key(key, seed) < bound for key in keys), np.bool_, len(keys))

    def by_column(self, values: Sequence[object], *, first_row: int = 0) -> _Mask:
        """Which rows are held back by the values of a column, for `column`.

        Raises:
            DataError: A value is not TRUE, FALSE, 1 or 0.
        """
        assert self.kind == "column", self.kind
        for index, value in enumerate(values):
            if not isinstance(value, bool | int) or value not in (0, 1):
                raise DataError(
                    f"The column {self.column!r} of train.split must hold TRUE or FALSE, 1 or 0.",
                    received=f"{value!r} in row {first_row + index + 1:,}",
                    hint="Add such a column to the SELECT, for example with CASE.",
                )
        return np.fromiter(map(bool, values), np.bool_, len(values))


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
        problem = "The SELECT gives 1 row, and a model learns from differences between rows."
        raise DataError(problem, received=f"the label {label!r}", hint="Select more rows.")
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


def count_rows(records: Path) -> int:
    """The number of rows in the Parquet files of a folder."""
    return _num_rows(_files(records))


def part_folders(folder: Path) -> tuple[Path, Path]:
    """The folders of the rows to learn from, and of the rows held back."""
    return folder / "training", folder / "validation"


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
            parquet_writer(folders[0] / file.name, schema) as training,
            parquet_writer(folders[1] / file.name, schema) as validation,
        ):
            for batch in _batches([file]):
                is_held_back = splitter.held_back(batch, first_row)
                sides = ((training, ~is_held_back), (validation, is_held_back))
                for side, (writer, mask) in enumerate(sides):
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


def fill_nulls(
    training: Path,
    held_back: Path | None,
    columns: Sequence[str],
    *,
    columns_with_nulls: Collection[str],
) -> dict[str, Any]:
    """Replace the NULLs of columns in all rows of a training.

    Numbers, dates and timestamps are filled with their mean, which is rounded where the column
    holds whole numbers; texts and booleans with their most frequent value, for which all distinct
    values are in memory. Both are computed from the training rows alone, so that no information
    about the rows held back reaches the training.

    Args:
        training: The folder of the Parquet files that the model learns from.
        held_back: The folder of the rows for the validation, if there are any.
        columns: The columns to fill.
        columns_with_nulls: Those that have NULLs, in either folder.

    Returns:
        The value for each column, also for columns without NULLs, because a later SELECT may have
        some. Dates and timestamps are texts in ISO 8601.

    Raises:
        DataError: A column with NULLs has no values in the training rows, or values that have no
            mean and cannot be counted.
    """
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
                hint="Only numbers, dates, timestamps, texts and booleans can be filled. Leave the"
                " column out of the SELECT, or use COALESCE there.",
            )
    replacements = {name: values[name] for name in columns if name in columns_with_nulls}
    folders = [training, *([held_back] if held_back else [])]
    for file in (file for folder in folders for file in _files(folder) if replacements):
        _replace_nulls(file, replacements)
    return {name: _json_value(value) for name, value in values.items()}


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
            type_ = pq.read_schema(files[0]).field(self.label).type
            self.rare_classes = pa.array(list(rare), type_)

    def held_back(self, batch: pa.RecordBatch, first_row: int) -> _Mask:
        split = self.split
        if split.kind in ("random", "sequential"):
            mask = split.by_number(first_row, batch.num_rows, num_rows=self.total)
        elif split.kind == "key":
            mask = split.by_key([(value,) for value in batch.column(self.key).to_pylist()])
        else:
            values = batch.column(split.column).to_pylist()
            mask = split.by_column(values, first_row=first_row)
        if self.rare_classes is not None:
            is_rare = pc.is_in(batch.column(self.label), value_set=self.rare_classes)
            mask = mask & ~is_rare.to_numpy(zero_copy_only=False)
        return mask


def _fill_value(folder: Path, name: str) -> "pa.Scalar[Any] | None":
    """The mean or the most frequent value; None if the column has neither."""
    value_type = pq.read_schema(_files(folder)[0]).field(name).type
    batches = (batch.column(0).drop_null() for batch in _batches(_files(folder), [name]))
    if pa.types.is_string(value_type) or pa.types.is_boolean(value_type):
        counts: Counter[Any] = Counter()
        for values in batches:
            for pair in pc.value_counts(values).to_pylist():
                counts[pair["values"]] += pair["counts"]
        # The smallest of equally frequent values, so that the order of rows does not matter.
        most_frequent = min(counts, key=lambda value: (-counts[value], value), default=None)
        return None if most_frequent is None else pa.scalar(most_frequent, value_type)
    if pa.types.is_binary(value_type) or pa.types.is_null(value_type):
        return None
    if pa.types.is_floating(value_type):
        # Wider than the numbers, whose sum may be too large for them.
        float_total, count = np.longdouble(0), 0
        for values in batches:
            float_total += values.to_numpy().sum(dtype=np.longdouble)
            count += len(values)
        return pa.scalar(float(float_total / count)) if count else None
    integers = pa.int32() if value_type == pa.date32() else pa.int64()
    total, count = 0, 0
    for values in filter(len, batches):
        total += int(pc.sum(values.cast(integers).cast(pa.decimal128(38))).as_py())
        count += len(values)
    if not count:
        return None
    return pa.scalar((2 * total + count) // (2 * count), integers).cast(value_type)


def _replace_nulls(file: Path, values: "Mapping[str, pa.Scalar[Any]]") -> None:
    schema = pq.read_schema(file)
    for name, value in values.items():
        # A column of NULLs alone has no type of its own.
        schema = schema.set(schema.get_field_index(name), pa.field(name, value.type))

    def fill(table: pa.Table) -> pa.Table:
        table = table.cast(schema)
        for name, value in values.items():
            filled = table.column(name).fill_null(value)
            table = table.set_column(schema.get_field_index(name), name, filled)
        return table

    rewrite_file(file, schema, fill)


def _json_value(value: "pa.Scalar[Any]") -> Any:
    """A value that JSON can represent."""
    plain = value.as_py()
    return plain.isoformat() if hasattr(plain, "isoformat") else plain


def _hash_key(key: tuple[object, ...], seed: bytes) -> int:
    # Drivers may give the same key as 1 or as 1.0.
    texts = (str(int(p)) if isinstance(p, float) and p.is_integer() else str(p) for p in key)
    joined = "\0".join(texts).encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(joined, digest_size=8, key=seed).digest(), "little")


def _files(records: Path) -> list[Path]:
    return sorted(file for file in records.iterdir() if file.suffix == ".parquet")


def _num_rows(files: list[Path]) -> int:
    return sum(pq.read_metadata(file).num_rows for file in files)


def _batches(files: list[Path], columns: list[str] | None = None) -> Iterator[pa.RecordBatch]:
    for file in files:
        with pq.ParquetFile(file) as source:
            yield from source.iter_batches(batch_size=_BATCH_ROWS, columns=columns)
