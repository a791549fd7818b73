"""Write the rows of a SELECT into Parquet shards, which jobs read like any Parquet files.

The SELECT runs once and unchanged; the kinds of its columns are known after the last row. The
shards appear as a whole or not at all.
"""

import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from edl_horovod.errors import ConfigError, DataError, did_you_mean
from edl_horovod.files.output_dir import staged
from edl_horovod.sql.engine import Engine
from edl_horovod.sql.kinds import Kind, ScannedColumn
from edl_horovod.sql.rows import BATCH_ROWS, Rows, SelectColumn
from edl_horovod.sql.shards import ShardWriter
from edl_horovod.sql.side import ExactReader, KeyReader
from edl_horovod.sql.target import TargetPlan

__all__ = [
    "PROGRESS_SECONDS",
    "ExportedColumn",
    "ExportedTable",
    "NoRows",
    "Progress",
    "export",
    "records_folder",
]

FOLDER_KIND = "exported table"
"""The kind of the folder in its marker file."""
_RECORDS = "records"
_KEY_DATA = "key_data"
_FIRST_BATCH_ROWS = 8
"""Rows of the first batch, which shows how large a row is."""
_BATCH_BYTES = 4 << 20
"""Approximate size of the rows that are in memory as Python objects."""
_BLOCK_ROWS = 5_000
_BLOCK_BYTES = 8 << 20
PROGRESS_SECONDS = 0.5
"""Time between two calls of a `Progress`."""

Progress = Callable[[int, float], None]
"""Called with the number of rows that were read or written, and with the rows per second."""


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
    num_defaults: int
    """Rows whose NULL was replaced by the default."""
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
    columns_with_nulls: Collection[str] = (),
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
        columns_with_nulls: Columns whose NULLs are written as NULLs.

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
            nulls=nulls,
            target=target,
            read=columns,
            num_first_rows=num_first_rows,
            dates=dates if engine.dialect == "sqlite" and dates else {},
            columns_with_nulls=columns_with_nulls,
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
            _exported_column(column, scale)
            for column, scale in zip(scan.columns, scan.scales, strict=True)
        ),
        num_rows=num_rows,
        first_rows=tuple(scan.first_rows),
        key_data=folder / _KEY_DATA if target else None,
    )


def records_folder(folder: Path) -> Path:
    """The records in the folder of an `export`, the setting `data` of a job."""
    return folder / _RECORDS


def _exported_column(column: ScannedColumn, scale: int | None) -> ExportedColumn:
    return ExportedColumn(
        name=column.name,
        # A column that no job reads may consist of NULLs, which have no kind.
        kind=column.kind or "text",
        declared_type=column.declared_type,
        num_defaults=column.num_nulls,
        scale=scale,
    )


@dataclass
class _Block:
    """Consecutive rows that are written together."""

    num_rows: int = 0
    num_bytes: int = 0
    parts: list[list[pa.Array]] = field(default_factory=list)
    """For each batch the arrays of its columns."""
    key_parts: list[dict[str, pa.Array]] = field(default_factory=list)
    """For each batch the keys, or the exact numbers."""


class _Scan:
    """One pass over the rows of a SELECT."""

    def __init__(
        self,
        engine: Engine,
        select: str,
        *,
        nulls: Mapping[str, object],
        target: TargetPlan | None,
        read: Collection[str] | None,
        num_first_rows: int,
        dates: Mapping[str, Kind | None],
        columns_with_nulls: Collection[str],
    ) -> None:
        self._engine = engine
        self._select = select
        self._nulls = nulls
        self._target = target
        self._read_by_job = read
        self._num_first_rows = num_first_rows
        self._dates = dates
        self._columns_with_nulls = columns_with_nulls
        self._keys: KeyReader | None = None
        self._exact: ExactReader | None = None
        self._num_requested = _FIRST_BATCH_ROWS
        self.first_rows: list[tuple[Any, ...]] = []
        self.columns: list[ScannedColumn] = []
        self._places: list[int] = []
        """Positions of `columns` in a row of the database; other positions are keys or unread."""

    @property
    def record_columns(self) -> list[ScannedColumn]:
        """The columns that the job reads."""
        return [column for column in self.columns if self._is_record(column.name)]

    def _is_record(self, name: str) -> bool:
        return self._read_by_job is None or name in self._read_by_job

    def write(self, folder: Path, on_progress: Progress) -> int:
        """Write the shards; returns the number of rows."""
        num_rows = 0
        began = reported = time.monotonic()
        with (
            self._engine.reading(self._select) as rows,
            ShardWriter(folder / _RECORDS) as shards,
            ShardWriter(folder / _KEY_DATA) if self._target else nullcontext() as key_shards,
        ):
            self._begin(rows.columns)
            while block := self._read(rows, first_row=num_rows):
                columns = self._columns_of(block, first_row=num_rows)
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
                del block, columns  # Free their memory before the next rows are read.
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
        """Decimal places of each column; see `ExactReader`."""
        return self._exact.scales if self._exact is not None else [None] * len(self.columns)

    def _begin(self, columns: Sequence[SelectColumn]) -> None:
        plan = self._target
        selected = columns[: len(plan.selected)] if plan else columns
        unread = plan.unread_columns if plan else ()
        stores_values = plan is not None and plan.action != "update"
        self._places = [
            place
            for place, column in enumerate(selected)
            if column.name not in unread and (stores_values or self._is_record(column.name))
        ]
        scanned = self._scanned_columns(selected)
        self.columns = [scanned[place] for place in self._places]
        if plan is not None and plan.action == "update":
            keys = [ScannedColumn(columns[place]) for place in plan.key_places]
            self._keys = KeyReader(keys, plan.key_places, num_selected=len(selected))
        elif plan is not None:
            self._exact = ExactReader(len(self.columns))

    def _read(self, rows: Rows, first_row: int) -> "_Block | None":
        """The next rows as arrays; None at the end."""
        block = _Block()
        while block.num_rows < _BLOCK_ROWS and block.num_bytes < _BLOCK_BYTES:
            # No variable keeps a batch alive, so that the next one reuses its memory.
            if not self._add_batch(
                rows.fetch(self._num_requested), block, first_row + block.num_rows
            ):
                break
        return block if block.num_rows else None

    def _add_batch(self, batch: Sequence[tuple[Any, ...]], block: "_Block", first_row: int) -> bool:
        """Add rows to a block; returns whether there were any."""
        if not batch:
            return False
        self.first_rows += batch[: max(0, self._num_first_rows - len(self.first_rows))]
        by_column = list(zip(*batch, strict=True))
        values = [by_column[place] for place in self._places]
        arrays = [
            column.read(cells, first_row=first_row)
            for column, cells in zip(self.columns, values, strict=True)
        ]
        block.parts.append(arrays)
        if self._keys is not None:
            block.key_parts.append(self._keys.read(batch, first_row=first_row))
        elif self._exact is not None:
            block.key_parts.append(self._exact.read(values))
        num_bytes = sum(array.nbytes for array in arrays)
        block.num_rows += len(batch)
        block.num_bytes += num_bytes
        num_rows = _BATCH_BYTES * len(batch) // max(1, num_bytes)
        self._num_requested = max(1, min(BATCH_ROWS, num_rows))
        return True

    def _columns_of(self, block: "_Block", first_row: int) -> list[pa.Array]:
        """The values of each column, before NULLs are replaced."""
        by_column = zip(*block.parts, strict=True)
        return [
            column.concatenated(parts, first_row=first_row)
            for column, parts in zip(self.columns, by_column, strict=True)
        ]

    def _key_data(self, block: "_Block", columns: Sequence[pa.Array]) -> Mapping[str, pa.Array]:
        """The columns of `ExportedTable.key_data` for a block of rows."""
        key_columns = {
            name: pa.concat_arrays([arrays[name] for arrays in block.key_parts])
            for name in block.key_parts[0]
        }
        if self._exact is None:
            return key_columns
        return {f"value_{number}": values for number, values in enumerate(columns)} | key_columns

    def _scanned_columns(self, columns: Sequence[SelectColumn]) -> list[ScannedColumn]:
        names = [column.name for column in columns]
        for place, name in enumerate(names):
            if name in ("", "?column?"):
                raise DataError(
                    f"Column {place + 1} of the SELECT has no name.",
                    received={"select": self._select},
                    hint="Add AS and a name to it.",
                )
        duplicates = [name for name, count in Counter(names).items() if count > 1]
        if duplicates:
            raise DataError(
                f"The SELECT has more than one column {duplicates[0]!r}.",
                received=f"the columns {', '.join(names)}",
                hint="Rename one of them by AS, or leave it out.",
            )
        for name in self._nulls:
            if name not in names:
                raise ConfigError(
                    f"There is a default for {name!r}, which is not a column of the SELECT.",
                    received=f"the columns {', '.join(names)}",
                    hint=f"Name one of its columns.{did_you_mean(name, names)}",
                )
        return [
            ScannedColumn(
                column,
                default=self._nulls.get(column.name),
                kind_of_texts=self._dates.get(column.name),
                may_be_dates=column.name in self._dates,
            )
            for column in columns
        ]

    def _columns_without_default(self) -> list[ScannedColumn]:
        """Columns of the records that have NULLs without a default."""
        return [
            column
            for column in self.record_columns
            if column.num_nulls
            and self._nulls.get(column.name) is None
            and column.name not in self._columns_with_nulls
        ]

    def _check(self, num_rows: int) -> None:
        if not num_rows:
            raise NoRows(
                "The SELECT returns no rows.",
                received={"select": self._select},
                hint="Check its WHERE and the table.",
            )
        if columns := self._columns_without_default():
            null_counts = "; ".join(
                f"{column.name!r} in {column.num_nulls:,} of {num_rows:,} rows, first in row"
                f" {(column.first_null_row or 0) + 1:,}"
                for column in columns
            )
            raise DataError(
                f"The SELECT returns NULL: {null_counts}.",
                received={"select": self._select},
                hint="Give a default for each of these columns, use COALESCE in the SELECT, or"
                " leave such rows out by WHERE.",
            )
