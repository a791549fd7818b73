"""Write rows into Parquet files in constant memory, a row group while the next one is read."""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import pyarrow as pa
import pyarrow.parquet as pq

__all__ = ["ShardWriter"]

GROUP_ROWS = 20_000
"""Maximum rows of a row group, which a rank decodes at once."""
GROUP_BYTES = 16 << 20
"""Approximate size of a row group before compression."""
SHARD_BYTES = 64 << 20
"""Approximate size of a file before compression."""


class ShardWriter:
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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
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
            self._writer = _open(self._path(len(self._schemas)), schema)
            self._schemas.append(schema)
            self._shard_bytes = 0
        for rows in _row_groups(pa.Table.from_batches(group)):
            self._writer.write_table(rows, row_group_size=GROUP_ROWS)
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
        new_path = path.with_suffix(".wider")
        with pq.ParquetFile(path) as old_file, _open(new_path, schema) as new_file:
            for number in range(old_file.num_row_groups):
                table = old_file.read_row_group(number, use_threads=False)
                for name, types in casts.items():
                    column = table.column(name)
                    for type_ in types:
                        column = column.cast(type_)
                    table = table.set_column(schema.get_field_index(name), name, column)
                new_file.write_table(table.cast(schema, safe=False), row_group_size=GROUP_ROWS)
        new_path.replace(path)


def _row_groups(table: pa.Table) -> list[pa.Table]:
    return [table.slice(start, GROUP_ROWS) for start in range(0, len(table), GROUP_ROWS)]


def _open(path: Path, schema: pa.Schema) -> pq.ParquetWriter:
    return pq.ParquetWriter(path, schema, write_page_checksum=True)
