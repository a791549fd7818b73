"""The rows of a SELECT as Parquet shards, which jobs read as they read any Parquet files.

The SELECT runs once and unchanged; what its columns hold is known when the last row was read. The
shards appear whole, or not at all.
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
from edl_horovod.sql.shards import Shards
from edl_horovod.sql.side import ExactReader, KeyReader
from edl_horovod.sql.target import TargetPlan

__all__ = [
    "PROGRESS_SECONDS",
    "ExportedColumn",
    "ExportedTable",
    "NoRows",
    "Progress",
    "export",
    "records_of",
]

KIND = "exported table"
"""The kind of the folder, as its marker names it."""
_RECORDS = "records"
_SIDE = "side"
_FIRST_BATCH_ROWS = 8
"""Until it is known how many bytes a row has."""
_BATCH_BYTES = 4 << 20
"""Bytes of the rows that are in memory as Python objects, about."""
_BLOCK_ROWS = 5_000
_BLOCK_BYTES = 8 << 20
PROGRESS_SECONDS = 0.5
"""Between two calls of a `Progress`."""

Progress = Callable[[int, float], None]
"""Is called with the number of rows that were read or written, and how many a second."""


class NoRows(DataError):
    """The SELECT gives no rows."""


@dataclass(frozen=True, kw_only=True)
class ExportedColumn:
    """A column of the shards."""

    name: str
    kind: Kind
    """In the shards numbers are float64, timestamps microseconds in UTC."""
    declared_type: str
    """As the engine calls it; empty if it does not say."""
    num_defaults: int
    """Rows that are NULL and have the default."""
    scale: int | None = None
    """Of a PREDICT that makes a table: digits behind the point of numbers that are kept exactly."""


@dataclass(frozen=True, kw_only=True)
class ExportedTable:
    """Shards of the rows of a SELECT: record i is row i."""

    folder: Path
    data: Path
    """What a job takes as `data`."""
    columns: tuple[ExportedColumn, ...]
    num_rows: int
    first_rows: tuple[tuple[Any, ...], ...]
    """As the driver gives them, for those who asked."""
    side: Path | None
    """Of a PREDICT into a table: what is beside the records, row by row."""


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
        select: It runs as it is.
        folder: Must not exist yet, or be empty.
        nulls: What a NULL counts as, by the name of its column; elsewhere it is an error.
        tell: Is called with a sentence about what the shards or models lose of the values.
        on_progress: Is called about twice a second, and at the end.
        target: Where predictions for the rows go; `select` is the plan's then. The keys of the
            rows, or their values as they are, are written beside the records.
        columns: Names of the columns that the job reads; None for all. The records have no others,
            which may hold anything.
        num_first_rows: How many of the first rows are also returned as they are.
        dates: Columns of sqlite whose texts are dates or timestamps; None where the texts of all
            rows decide that. Sqlite has no type for them.
        kept_nulls: Columns whose NULLs are written as they are.

    Raises:
        ConfigError: A default is for no column of the SELECT, or is of another kind.
        NoRows: There is no row.
        DataError: The engine refuses the SELECT or is gone; a column has no name of its own, is
            NULL without a default, or mixes kinds.
        OutputError: The folder is in use, or cannot be written.
    """
    with staged(folder, KIND, overwrite=False) as made:
        scan = _Scan(
            engine,
            select,
            nulls=nulls,
            target=target,
            read=columns,
            num_first_rows=num_first_rows,
            dates=dates if engine.dialect == "sqlite" and dates else {},
            kept_nulls=kept_nulls,
        )
        num_rows = scan.write(made, on_progress or (lambda num_rows, rate: None))
        for column in scan.records:
            if column.kind == "number" and column.first_inexact is not None:
                row, value = column.first_inexact
                tell(
                    f"The column {column.name!r} has {column.num_inexact:,} numbers above 2^24 that"
                    f" lose digits in a model, such as {value!r} in row {row + 1:,}: models compute"
                    " in 32-bit floating point."
                )
    return ExportedTable(
        folder=folder,
        data=records_of(folder),
        columns=tuple(
            _exported(column, scale)
            for column, scale in zip(scan.columns, scan.scales, strict=True)
        ),
        num_rows=num_rows,
        first_rows=tuple(scan.first_rows),
        side=folder / _SIDE if target else None,
    )


def records_of(folder: Path) -> Path:
    """What a job takes as `data` of a folder that rows are written into."""
    return folder / _RECORDS


def _exported(column: ScannedColumn, scale: int | None) -> ExportedColumn:
    return ExportedColumn(
        name=column.name,
        # A column that no job reads may hold nothing but NULL.
        kind=column.kind or "text",
        declared_type=column.declared_type,
        num_defaults=column.num_nulls,
        scale=scale,
    )


@dataclass
class _Block:
    """Some consecutive rows."""

    num_rows: int = 0
    num_bytes: int = 0
    parts: list[list[pa.Array]] = field(default_factory=list)
    """Batch after batch, an array of each column."""
    beside: list[dict[str, pa.Array]] = field(default_factory=list)
    """Keys, or exact numbers."""


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
        kept_nulls: Collection[str],
    ) -> None:
        self._engine = engine
        self._select = select
        self._nulls = nulls
        self._target = target
        self._read_by_job = read
        self._num_first_rows = num_first_rows
        self._dates = dates
        self._kept_nulls = kept_nulls
        self._keys: KeyReader | None = None
        self._exact: ExactReader | None = None
        self._num_asked = _FIRST_BATCH_ROWS
        self.first_rows: list[tuple[Any, ...]] = []
        self.columns: list[ScannedColumn] = []
        self._places: list[int] = []
        """Where they are among those that the database gives: others are keys or not read."""

    @property
    def records(self) -> list[ScannedColumn]:
        """The columns that the job reads."""
        return [column for column in self.columns if self._is_record(column.name)]

    def _is_record(self, name: str) -> bool:
        return self._read_by_job is None or name in self._read_by_job

    def write(self, folder: Path, on_progress: Progress) -> int:
        """Write the shards; returns the number of rows."""
        num_rows = 0
        began = told = time.monotonic()
        with (
            self._engine.reading(self._select) as rows,
            Shards(folder / _RECORDS) as shards,
            Shards(folder / _SIDE) if self._target else nullcontext() as side,
        ):
            self._begin(rows.columns)
            while block := self._read(rows, first_row=num_rows):
                shown = self._joined(block, first_row=num_rows)
                num_rows += block.num_rows
                if not self._missing():
                    shards.add(
                        {
                            column.name: column.filled(values)
                            for column, values in zip(self.columns, shown, strict=True)
                            if self._is_record(column.name)
                        }
                    )
                    if side is not None:
                        side.add(self._beside(block, shown))
                del block, shown  # They would be in memory while the next are read.
                if (now := time.monotonic()) - told > PROGRESS_SECONDS:
                    told = now
                    on_progress(num_rows, num_rows / (now - began))
            self._check(num_rows)
            found = {column.name: column.find_dates() for column in self.records}
            shards.close({name: types for name, types in found.items() if types})
            if side is not None:
                side.close()
        on_progress(num_rows, num_rows / max(time.monotonic() - began, 1e-9))
        return num_rows

    @property
    def scales(self) -> Sequence[int | None]:
        """Of each column: see `ExactReader`."""
        return self._exact.scales if self._exact is not None else [None] * len(self.columns)

    def _begin(self, columns: Sequence[SelectColumn]) -> None:
        plan = self._target
        selected = columns[: len(plan.selected)] if plan else columns
        unread = plan.unread_columns if plan else ()
        is_beside = plan is not None and plan.action != "update"
        self._places = [
            place
            for place, column in enumerate(selected)
            if column.name not in unread and (is_beside or self._is_record(column.name))
        ]
        named = self._named(selected)
        self.columns = [named[place] for place in self._places]
        if plan is not None and plan.action == "update":
            keys = [ScannedColumn(columns[place]) for place in plan.key_places]
            self._keys = KeyReader(keys, plan.key_places, num_selected=len(selected))
        elif plan is not None:
            self._exact = ExactReader(len(self.columns))

    def _read(self, rows: Rows, first_row: int) -> "_Block | None":
        """The next rows as arrays, batch after batch; None at the end."""
        block = _Block()
        while block.num_rows < _BLOCK_ROWS and block.num_bytes < _BLOCK_BYTES:
            # Nothing keeps a batch while the next is read: its memory is used again.
            if not self._take(rows.fetch(self._num_asked), block, first_row + block.num_rows):
                break
        return block if block.num_rows else None

    def _take(self, batch: Sequence[tuple[Any, ...]], block: "_Block", first_row: int) -> bool:
        """Add rows to a block; whether there were any."""
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
            block.beside.append(self._keys.read(batch, first_row=first_row))
        elif self._exact is not None:
            block.beside.append(self._exact.read(values))
        num_bytes = sum(one.nbytes for one in arrays)
        block.num_rows += len(batch)
        block.num_bytes += num_bytes
        most = _BATCH_BYTES * len(batch) // max(1, num_bytes)
        self._num_asked = max(1, min(BATCH_ROWS, most))
        return True

    def _joined(self, block: "_Block", first_row: int) -> list[pa.Array]:
        """The values of each column, NULL where there is none."""
        by_column = zip(*block.parts, strict=True)
        return [
            column.joined(parts, first_row=first_row)
            for column, parts in zip(self.columns, by_column, strict=True)
        ]

    def _beside(self, block: "_Block", shown: Sequence[pa.Array]) -> Mapping[str, pa.Array]:
        beside = {
            name: pa.concat_arrays([arrays[name] for arrays in block.beside])
            for name in block.beside[0]
        }
        if self._exact is None:
            return beside
        return {f"value_{number}": values for number, values in enumerate(shown)} | beside

    def _named(self, columns: Sequence[SelectColumn]) -> list[ScannedColumn]:
        names = [column.name for column in columns]
        for place, name in enumerate(names):
            if name in ("", "?column?"):
                raise DataError(
                    f"Column {place + 1} of the SELECT has no name.",
                    received={"select": self._select},
                    hint="Write AS and a name after it.",
                )
        twice = [name for name, count in Counter(names).items() if count > 1]
        if twice:
            raise DataError(
                f"The SELECT gives more than one column {twice[0]!r}.",
                received=f"the columns {', '.join(names)}",
                hint="Write AS and another name after one of them, or leave it out.",
            )
        for name in self._nulls:
            if name not in names:
                raise ConfigError(
                    f"There is a default for {name!r}, and the SELECT gives no such column.",
                    received=f"the columns {', '.join(names)}",
                    hint=f"Write the name of one of its columns.{did_you_mean(name, names)}",
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

    def _missing(self) -> list[ScannedColumn]:
        """Columns of the records that have NULLs and no default."""
        return [
            column
            for column in self.records
            if column.num_nulls
            and self._nulls.get(column.name) is None
            and column.name not in self._kept_nulls
        ]

    def _check(self, num_rows: int) -> None:
        if not num_rows:
            raise NoRows(
                "The SELECT gives no rows.",
                received={"select": self._select},
                hint="Look at its WHERE, and at the table.",
            )
        if missing := self._missing():
            found = "; ".join(
                f"{column.name!r} in {column.num_nulls:,} of {num_rows:,} rows, the first of them"
                f" row {(column.first_null_row or 0) + 1:,}"
                for column in missing
            )
            raise DataError(
                f"The SELECT gives NULL: {found}.",
                received={"select": self._select},
                hint="Give a default for each of these columns, use COALESCE in the SELECT, or"
                " leave such rows out by WHERE.",
            )
