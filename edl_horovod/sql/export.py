"""Write the rows of a SELECT into Parquet shards, which jobs read like any Parquet files.

The SELECT runs once and unchanged; the kinds of its columns are known after the last row. The
shards appear as a whole or not at all. Keys, or exact values, are stored in shards beside the
records, for a PREDICT that writes into a table.
"""

import hashlib
import time
import uuid
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pyarrow.parquet as pq

from edl_horovod.errors import ConfigError, DataError, did_you_mean
from edl_horovod.files.output_dir import staged
from edl_horovod.sql.engine import Engine
from edl_horovod.sql.kinds import Kind, ScannedColumn
from edl_horovod.sql.rows import BATCH_ROWS, Rows, SelectColumn
from edl_horovod.sql.target import TargetPlan

FOLDER_KIND = "exported table"
"""The kind of the folder in its marker file."""
_RECORDS = "records"
_KEY_DATA = "key_data"
_FIRST_BATCH_ROWS = 8
"""Rows of the first batch, which shows how large a row is."""
_BATCH_BYTES = 4 << 20
"""Approximate size of the rows that are in memory as Python objects."""
_BLOCK_ROWS = 5_000
"""Number of rows, at most about, that are written together."""
_BLOCK_BYTES = 8 << 20
"""Size of rows, at most about, that are written together."""
PROGRESS_SECONDS = 0.5
"""Time between two calls of a `Progress`."""
Progress = Callable[[int, float], None]
"""Called with the number of rows that were read or written, and with the rows per second."""
_READ_ROWS = 1_000
"""Rows that are read at once from the key data."""
_EXACT_TYPES = {int, Decimal}
"""Types whose values may have more digits than floating point."""
_LARGEST_EXACT_DOUBLE = 1 << 53
"""Whole numbers up to this limit are exact in 64-bit floating point."""
GROUP_ROWS = 20_000
"""Maximum rows of a row group, which a rank decodes at once."""
GROUP_BYTES = 16 << 20
"""Approximate size of a row group before compression."""
SHARD_BYTES = 64 << 20
"""Approximate size of a file before compression."""


class NoRows(DataError):
    """The SELECT returns no rows."""


@dataclass(frozen=True, kw_only=True)
class ExportedColumn:
    """A column of the shards."""

    name: str
    kind: Kind
    """In the shards numbers are float64, and timestamps are microseconds in UTC."""
    declared_type: str
    """The engine's name of the type; empty if it does not report one."""
    num_nulls: int
    """Rows with a NULL, which has the default or is written as NULL."""
    scale: int | None = None
    """Decimal places of numbers whose digits are stored exactly, for a PREDICT into a new table."""


@dataclass(frozen=True, kw_only=True)
class ExportedTable:
    """The shards of a SELECT; record i is row i."""

    folder: Path
    data: Path
    """The folder of the records, the setting `data` of a job."""
    columns: tuple[ExportedColumn, ...]
    num_rows: int
    first_rows: tuple[tuple[Any, ...], ...]
    """The first rows as the driver returned them, `num_first_rows` at most."""
    key_data: Path | None
    """Shards with the keys or exact values of the rows, for a PREDICT into a table."""


def export(
    engine: Engine,
    select: str,
    folder: Path,
    *,
    nulls: Mapping[str, object],
    tell: Callable[[str], None],
    on_progress: Progress | None = None,
    target: TargetPlan | None = None,
    columns: Collection[str] | None = None,
    num_first_rows: int = 0,
    dates: Mapping[str, Kind | None] | None = None,
    kept_nulls: Collection[str] = (),
) -> ExportedTable:
    """Write the rows of a SELECT into a new folder.

    Args:
        engine: The database.
        select: The SELECT, which runs unchanged.
        folder: A folder that is empty or does not exist.
        nulls: The values that replace NULLs, by column name; other NULLs are an error.
        tell: Called with a sentence about digits that models lose.
        on_progress: Called about twice a second, and at the end.
        target: The table that gets predictions for the rows; `select` must then be the plan's. The
            keys or the exact values of the rows are written beside the records.
        columns: Names of the columns that the job reads; None for all. Other columns may hold
            anything and are left out of the records.
        num_first_rows: Number of the first rows that are also returned unchanged.
        dates: Columns of SQLite, which has no type for dates, whose texts are dates or timestamps;
            None if the texts of all rows decide that.
        kept_nulls: Columns whose NULLs are written as NULLs.

    Raises:
        ConfigError: A default names no column of the SELECT or has another kind.
        NoRows: The SELECT returns no rows.
        DataError: The engine refuses the SELECT or is unreachable; a column has no unique name,
            has NULLs without a default, or mixes kinds.
        OutputError: The folder is in use, or cannot be written.
    """
    with staged(folder, FOLDER_KIND, overwrite=False) as new_folder:
        scan = _Scan(
            engine,
            select,
            defaults=nulls,
            target=target,
            read_by_job=columns,
            num_first_rows=num_first_rows,
            date_columns=dates if engine.dialect == "sqlite" and dates else {},
            kept_nulls=kept_nulls,
        )
        num_rows = scan.write(new_folder, on_progress or (lambda num_rows, rate: None))
        for column in scan.record_columns:
            if column.kind == "number" and column.first_inexact is not None:
                row, value = column.first_inexact
                tell(
                    f"The column {column.name!r} has {column.num_inexact:,} numbers above 2^24 that"
                    f" lose digits in a model, such as {value!r} in row {row + 1:,}, because models"
                    " compute in 32-bit floating point."
                )
    return ExportedTable(
        folder=folder,
        data=records_folder(folder),
        columns=tuple(
            ExportedColumn(
                name=column.name,
                # A column that no job reads may consist of NULLs, which have no kind.
                kind=column.kind or "text",
                declared_type=column.declared_type,
                num_nulls=column.num_nulls,
                scale=scale,
            )
            for column, scale in zip(scan.columns, scan.scales, strict=True)
        ),
        num_rows=num_rows,
        first_rows=tuple(scan.first_rows),
        key_data=folder / _KEY_DATA if target else None,
    )


def records_folder(folder: Path) -> Path:
    """The records in the folder of an `export`, the setting `data` of a job."""
    return folder / _RECORDS


def read_key_data(folder: Path) -> Iterator[tuple[Any, ...]]:
    """The rows of `ExportedTable.key_data`, in order."""
    for path in sorted(folder.glob("part-*.parquet")):
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(_READ_ROWS, use_threads=False):
                columns = [
                    batch.column(position).to_pylist() for position in range(batch.num_columns)
                ]
                yield from zip(*columns, strict=True)


def digest_of(row: Sequence[Any]) -> int:
    """A 64-bit digest of a row, which shows whether the row has changed."""
    digest = hashlib.blake2b(repr(tuple(row)).encode("utf-8", "surrogatepass"), digest_size=8)
    return int.from_bytes(digest.digest(), signed=True)


@dataclass
class _Block:
    """Consecutive rows that are written together."""

    num_rows: int = 0
    num_bytes: int = 0
    parts: list[list[pa.Array]] = field(default_factory=list)
    """For each batch the arrays of its columns."""
    key_parts: list[dict[str, pa.Array]] = field(default_factory=list)
    """For each batch the keys, or the exact numbers."""


@dataclass
class _Scan:
    """One pass over the rows of a SELECT."""

    engine: Engine
    select: str
    defaults: Mapping[str, object]
    """The values that replace NULLs, by column name."""
    target: TargetPlan | None
    read_by_job: Collection[str] | None
    num_first_rows: int
    date_columns: Mapping[str, Kind | None]
    """The kind of the columns whose texts may be dates; None if the texts decide it."""
    kept_nulls: Collection[str]
    keys: "_KeyReader | None" = None
    exact: "_ExactReader | None" = None
    num_requested: int = _FIRST_BATCH_ROWS
    first_rows: list[tuple[Any, ...]] = field(default_factory=list)
    columns: list[ScannedColumn] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    """Positions of `columns` in a row of the database; other positions are keys or unread."""

    @property
    def record_columns(self) -> list[ScannedColumn]:
        """The columns that the job reads."""
        return [column for column in self.columns if self._is_record(column.name)]

    def _is_record(self, name: str) -> bool:
        return self.read_by_job is None or name in self.read_by_job

    def write(self, folder: Path, on_progress: Progress) -> int:
        """Write the shards; returns the number of rows."""
        num_rows = 0
        began = reported = time.monotonic()
        with (
            self.engine.reading(self.select) as rows,
            _ShardWriter(folder / _RECORDS) as shards,
            _ShardWriter(folder / _KEY_DATA) if self.target else nullcontext() as key_shards,
        ):
            self._begin(rows.columns)
            while block := self._read(rows, first_row=num_rows):
                # The values of each column, before NULLs are replaced.
                by_column = zip(*block.parts, strict=True)
                columns = [
                    column.concatenated(parts, first_row=num_rows)
                    for column, parts in zip(self.columns, by_column, strict=True)
                ]
                num_rows += block.num_rows
                if not self._columns_without_default():
                    shards.add(
                        {
                            column.name: column.filled(values)
                            for column, values in zip(self.columns, columns, strict=True)
                            if self._is_record(column.name)
                        }
                    )
                    if key_shards is not None:
                        key_shards.add(self._key_data(block, columns))
                del block, by_column, columns  # Free their memory before the next rows are read.
                if (now := time.monotonic()) - reported > PROGRESS_SECONDS:
                    reported = now
                    on_progress(num_rows, num_rows / (now - began))
            self._check(num_rows)
            casts = {column.name: column.infer_dates() for column in self.record_columns}
            shards.close({name: types for name, types in casts.items() if types})
            if key_shards is not None:
                key_shards.close()
        on_progress(num_rows, num_rows / max(time.monotonic() - began, 1e-9))
        return num_rows

    @property
    def scales(self) -> Sequence[int | None]:
        """Decimal places of each column; see `_ExactReader`."""
        return self.exact.scales if self.exact is not None else [None] * len(self.columns)

    def _begin(self, columns: Sequence[SelectColumn]) -> None:
        plan = self.target
        selected = columns[: len(plan.selected)] if plan else columns
        unread = plan.unread_columns if plan else ()
        stores_values = plan is not None and plan.action != "update"
        self.positions = [
            position
            for position, column in enumerate(selected)
            if column.name not in unread and (stores_values or self._is_record(column.name))
        ]
        scanned = self._scanned_columns(selected)
        self.columns = [scanned[position] for position in self.positions]
        if plan is not None and plan.action == "update":
            keys = [ScannedColumn(columns[position]) for position in plan.key_positions]
            self.keys = _KeyReader(keys, plan.key_positions, num_selected=len(selected))
        elif plan is not None:
            self.exact = _ExactReader(len(self.columns))

    def _read(self, rows: Rows, first_row: int) -> "_Block | None":
        """The next rows as arrays; None at the end."""
        block = _Block()
        while block.num_rows < _BLOCK_ROWS and block.num_bytes < _BLOCK_BYTES:
            # No variable keeps a batch alive, so that the next one reuses its memory.
            if not self._add_batch(
                rows.fetch(self.num_requested), block, first_row + block.num_rows
            ):
                break
        return block if block.num_rows else None

    def _add_batch(self, batch: Sequence[tuple[Any, ...]], block: "_Block", first_row: int) -> bool:
        """Add rows to a block; returns whether there were any."""
        if not batch:
            return False
        self.first_rows += batch[: max(0, self.num_first_rows - len(self.first_rows))]
        by_column = list(zip(*batch, strict=True))
        values = [by_column[position] for position in self.positions]
        arrays = [
            column.read(cells, first_row=first_row)
            for column, cells in zip(self.columns, values, strict=True)
        ]
        block.parts.append(arrays)
        if self.keys is not None:
            block.key_parts.append(self.keys.read(batch, first_row=first_row))
        elif self.exact is not None:
            block.key_parts.append(self.exact.read(values))
        num_bytes = sum(array.nbytes for array in arrays)
        block.num_rows += len(batch)
        block.num_bytes += num_bytes
        # The next batch has as many rows as fit into `_BATCH_BYTES`, by the size of these.
        num_rows = _BATCH_BYTES * len(batch) // max(1, num_bytes)
        self.num_requested = max(1, min(BATCH_ROWS, num_rows))
        return True

    def _key_data(self, block: "_Block", columns: Sequence[pa.Array]) -> Mapping[str, pa.Array]:
        """The columns of `ExportedTable.key_data` for a block of rows."""
        parts, names = block.key_parts, list(block.key_parts[0])
        key_columns = {name: pa.concat_arrays([part[name] for part in parts]) for name in names}
        if self.exact is None:
            return key_columns
        return {f"value_{number}": values for number, values in enumerate(columns)} | key_columns

    def _scanned_columns(self, columns: Sequence[SelectColumn]) -> list[ScannedColumn]:
        """Check the names of the columns, and prepare to read their values.

        Raises:
            DataError: A column has no name or that of another one.
            ConfigError: A default names none of the columns.
        """
        names = [column.name for column in columns]
        for position, name in enumerate(names):
            if name in ("", "?column?"):
                problem = f"Column {position + 1} of the SELECT has no name."
                hint = "Add AS and a name to it."
                raise DataError(problem, received={"select": self.select}, hint=hint)
        if duplicates := [name for name, count in Counter(names).items() if count > 1]:
            problem = f"The SELECT has more than one column {duplicates[0]!r}."
            hint = "Rename one of them by AS, or leave it out."
            raise DataError(problem, received=f"the columns {', '.join(names)}", hint=hint)
        for name in self.defaults:
            if name not in names:
                problem = f"There is a default for {name!r}, which is not a column of the SELECT."
                hint = f"Name one of its columns.{did_you_mean(name, names)}"
                raise ConfigError(problem, received=f"the columns {', '.join(names)}", hint=hint)
        return [
            ScannedColumn(
                column,
                default=self.defaults.get(column.name),
                kind_of_texts=self.date_columns.get(column.name),
                may_be_dates=column.name in self.date_columns,
            )
            for column in columns
        ]

    def _columns_without_default(self) -> list[ScannedColumn]:
        """Columns of the records that have NULLs without a default."""
        return [
            column
            for column in self.record_columns
            if column.num_nulls
            and self.defaults.get(column.name) is None
            and column.name not in self.kept_nulls
        ]

    def _check(self, num_rows: int) -> None:
        if not num_rows:
            hint = "Check its WHERE and the table."
            raise NoRows("The SELECT returns no rows.", received={"select": self.select}, hint=hint)
        if columns := self._columns_without_default():
            null_counts = "; ".join(
                f"{column.name!r} in {column.num_nulls:,} of {num_rows:,} rows, first in row"
                f" {(column.first_null_row or 0) + 1:,}"
                for column in columns
            )
            raise DataError(
                f"The SELECT returns NULL: {null_counts}.",
                received={"select": self.select},
                hint="Give a default for each of these columns, use COALESCE in the SELECT, or"
                " leave such rows out by WHERE.",
            )


@dataclass(frozen=True)
class _KeyReader:
    """Reads the keys of rows, and a digest of the selected values of each row."""

    columns: Sequence[ScannedColumn]
    positions: Sequence[int]
    num_selected: int

    def read(self, batch: Sequence[tuple[Any, ...]], *, first_row: int) -> dict[str, pa.Array]:
        """The keys and digests of consecutive rows.

        Raises:
            DataError: A key is NULL or has a type that cannot identify rows.
        """
        keys_and_digest = {}
        for number, (column, position) in enumerate(zip(self.columns, self.positions, strict=True)):
            values = [row[position] for row in batch]
            if isinstance(values[0], uuid.UUID):
                values = [None if value is None else str(value) for value in values]
            key_values = column.read(values, first_row=first_row)
            if key_values.null_count or column.kind not in ("integer", "text", "bytes", "date"):
                raise DataError(
                    f"The key {column.name!r} does not identify rows: in row {first_row + 1:,} or"
                    f" soon after it is {'NULL' if key_values.null_count else f'a {column.kind}'}.",
                    hint="Predict into a new table.",
                )
            keys_and_digest[f"key_{number}"] = key_values
        digests = [digest_of(row[: self.num_selected]) for row in batch]
        return {**keys_and_digest, "digest": pa.array(digests, pa.int64())}


class _ExactReader:
    """Reads, as texts, whole numbers and decimals that would lose digits in floating point."""

    def __init__(self, num_columns: int) -> None:
        self.scales: list[int | None] = [None] * num_columns
        """Decimal places of each column; None if floating point holds its values exactly."""

    def read(self, columns: Sequence[Sequence[Any]]) -> dict[str, pa.Array]:
        """The digits of consecutive rows; NULL for values that floating point holds exactly.

        Args:
            columns: The values of these rows, column by column.

        Returns:
            A column of texts, `exact_0` and so on, for each column.
        """
        texts = {}
        for number, values in enumerate(columns):
            digits: list[str | None] = [None] * len(values)
            if _EXACT_TYPES & {*map(type, values)}:
                digits = list(map(_lossy_digits, values))
            if any(digits):
                decimals = [
                    value for value in values if isinstance(value, Decimal) and value.is_finite()
                ]
                scales = [-int(value.as_tuple().exponent) for value in decimals]
                self.scales[number] = max(self.scales[number] or 0, *scales, 0)
            texts[f"exact_{number}"] = pa.array(digits, pa.string())
        return texts


def _lossy_digits(value: object) -> str | None:
    """The digits of a value that floating point does not hold exactly; None for other values."""
    if isinstance(value, Decimal):
        return f"{value:f}"
    return f"{value:d}" if isinstance(value, int) and abs(value) > _LARGEST_EXACT_DOUBLE else None


class _ShardWriter:
    """Writes the files `part-00000.parquet`, ... of a folder in the order of the rows.

    A file has one schema. When the type of a column becomes wider, a new file begins, and `close`
    rewrites the earlier ones with the last schema.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writer: pq.ParquetWriter | None = None
        self._schemas: list[pa.Schema] = []
        self._shard_bytes = 0
        self._group: list[pa.RecordBatch] = []
        self._group_rows = self._group_bytes = 0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="shards")
        self._pending: Future[None] | None = None

    def __enter__(self) -> Self:
        self._folder.mkdir()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown(wait=True)
        if self._writer is not None:
            with suppress(OSError):  # The files are removed; the first error is reported.
                self._writer.close()

    def add(self, columns: Mapping[str, pa.Array]) -> None:
        """Append rows.

        Raises:
            OSError: A file cannot be written.
        """
        batch = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
        if self._group and self._group[0].schema != batch.schema:
            self._end_group()
        self._group.append(batch)
        self._group_rows += batch.num_rows
        self._group_bytes += batch.nbytes
        if self._group_rows >= GROUP_ROWS or self._group_bytes >= GROUP_BYTES:
            self._end_group()

    def close(self, casts: Mapping[str, Sequence[pa.DataType]] | None = None) -> None:
        """Write the remaining rows, and rewrite files whose schema is not the last one.

        Args:
            casts: The types to which columns of all files are cast in turn, by column name.

        Raises:
            OSError: A file cannot be written.
        """
        if self._group:
            self._end_group()
        self._wait()
        self._close_shard()
        for number, schema in enumerate(self._schemas):
            if schema != self._schemas[-1] or casts:
                self._rewrite(self._path(number), self._schemas[-1], casts or {})

    def _path(self, number: int) -> Path:
        return self._folder / f"part-{number:05d}.parquet"

    def _end_group(self) -> None:
        group, num_bytes = self._group, self._group_bytes
        self._group, self._group_rows, self._group_bytes = [], 0, 0
        self._wait()
        # Only this thread accesses the files until `_wait` returns.
        self._pending = self._thread.submit(self._write, group, num_bytes)

    def _wait(self) -> None:
        if self._pending is not None:
            self._pending.result()
            self._pending = None

    def _write(self, group: Sequence[pa.RecordBatch], num_bytes: int) -> None:
        schema = group[0].schema
        if self._writer is None or self._schemas[-1] != schema or self._shard_bytes >= SHARD_BYTES:
            self._close_shard()
            self._writer = parquet_writer(self._path(len(self._schemas)), schema)
            self._schemas.append(schema)
            self._shard_bytes = 0
        self._writer.write_table(pa.Table.from_batches(group), row_group_size=GROUP_ROWS)
        self._shard_bytes += num_bytes

    def _close_shard(self) -> None:
        if self._writer is not None:
            writer, self._writer = self._writer, None
            writer.close()

    def _rewrite(
        self, path: Path, schema: pa.Schema, casts: Mapping[str, Sequence[pa.DataType]]
    ) -> None:
        for name, types in casts.items():
            schema = schema.set(schema.get_field_index(name), pa.field(name, types[-1]))

        def cast(table: pa.Table) -> pa.Table:
            for name, types in casts.items():
                column = table.column(name)
                for type_ in types:
                    column = column.cast(type_)
                table = table.set_column(schema.get_field_index(name), name, column)
            return table.cast(schema, safe=False)

        rewrite_file(path, schema, cast)


def rewrite_file(path: Path, schema: pa.Schema, change: Callable[[pa.Table], pa.Table]) -> None:
    """Write an exported file again, row group by row group.

    Args:
        path: The file.
        schema: The schema of the rows as `change` returns them.
        change: Returns the changed rows of a row group.
    """
    new_path = path.with_suffix(".new")
    with pq.ParquetFile(path) as old_file, parquet_writer(new_path, schema) as new_file:
        for number in range(old_file.num_row_groups):
            table = change(old_file.read_row_group(number, use_threads=False))
            new_file.write_table(table, row_group_size=GROUP_ROWS)
    new_path.replace(path)


def parquet_writer(path: Path, schema: pa.Schema) -> pq.ParquetWriter:
    """A writer whose pages have checksums, so that damaged rows are noticed."""
    return pq.ParquetWriter(path, schema, write_page_checksum=True)
