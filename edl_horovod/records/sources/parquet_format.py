"""Parquet files, read with PyArrow: a chunk is a row group, and a record is a row."""

import functools
import io
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from edl_horovod.errors import DataError
from edl_horovod.records.chunks import ChunkInfo, FileChunks, is_skipping, warn_skipped
from edl_horovod.records.columns import ColumnChunk
from edl_horovod.records.files.input_file import InputFile, file_error
from edl_horovod.records.files.pool import open_input
from edl_horovod.records.index_tables import IndexedFile
from edl_horovod.records.layout import Layout
from edl_horovod.records.record_format import ColumnFormat, RecordFormat
from edl_horovod.records.source import FormatSettings
from edl_horovod.records.sources.arrow_columns import chunk_of, same_layout_of, schema_bytes

_MAGIC = b"PAR1"
_END = struct.Struct("<I4s")
_MAX_BYTES = (1 << 32) - 1


def make(name: str, settings: FormatSettings) -> RecordFormat:
    """The format with the settings of a job."""
    scan = functools.partial(read_chunks, damaged=settings.damaged)
    columns = ColumnFormat(same_layout_of, decode)
    return RecordFormat(name, scan, columns, holds_chunk, change_detection="samples")


def read_chunks(path: str, *, damaged: str = "raise") -> FileChunks:
    """Find the row groups of a Parquet file; reads only its footer, or the whole file with `skip`.

    Raises:
        DataError: The file cannot be opened, is damaged, or has another format.
    """
    skips_bad_groups = is_skipping(damaged)
    with open_input(path) as file:
        footer = _footer_bytes(file)
        with _translated_errors(path):
            metadata = _parse(footer)
            schema = metadata.schema.to_arrow_schema()
        chunks: list[ChunkInfo] = []
        skipped: list[int] = []
        for number in range(metadata.num_row_groups):
            chunk = _chunk(metadata, number, footer, path)
            if chunk.num_records and skips_bad_groups and not _can_be_read(file, chunk, metadata):
                skipped.append(chunk.num_records)
            elif chunk.num_records:
                chunks.append(chunk)
        header = schema_bytes(schema)
        return FileChunks(path, file.size_bytes, tuple(chunks), len(skipped), sum(skipped), header)


def decode(payload: bytes, *, chunk: ChunkInfo, file: IndexedFile, layout: Layout) -> ColumnChunk:
    """Decode the columns of a row group.

    Raises:
        DataError: The row group is damaged, has empty values, or has changed since the scan.
    """
    footer, metadata = _cached_footer(file.path, file.size_bytes, chunk.checksum)
    if zlib.crc32(footer) != chunk.checksum:
        raise chunk.changed(file.path)
    names = metadata.schema.to_arrow_schema().names
    needed = [name for name in names if _is_needed(name, layout)]
    with _translated_errors(file.path):
        table = _read(payload, chunk, metadata, needed)
    return chunk_of(table, layout=layout, path=file.path, chunk=chunk)


def holds_chunk(file: InputFile, chunk: ChunkInfo) -> bool:
    """Whether the footer is unchanged since the row group was found.

    Raises:
        DataError: The file cannot be read, or is no longer a Parquet file.
    """
    return zlib.crc32(_footer_bytes(file)) == chunk.checksum


def _chunk(metadata: Any, number: int, footer: bytes, path: str) -> ChunkInfo:
    group = metadata.row_group(number)
    columns = [group.column(index) for index in range(group.num_columns)]
    first = end = 0
    for column in columns:
        start = min(filter(None, (column.dictionary_page_offset, column.data_page_offset)))
        first = min(first or start, start)
        end = max(end, start + column.total_compressed_size)
    if end - first > _MAX_BYTES:
        problem = f"A row group of {path} is larger than 4 GiB."
        hint = "Write the file with smaller row groups, as with row_group_size=100_000."
        raise DataError(problem, received={"path": path, "row group": number}, hint=hint)
    checksum = zlib.crc32(footer)
    return ChunkInfo.between(number, first, end, checksum=checksum, num_records=group.num_rows)


def _is_needed(name: str, layout: Layout) -> bool:
    return any(f"{column.name}.".startswith(f"{name}.") for column in layout.columns)


def _can_be_read(file: InputFile, chunk: ChunkInfo, metadata: Any) -> bool:
    payload = file.read_at(chunk.offset, num_bytes=chunk.compressed_bytes)
    try:
        with _translated_errors(file.path):
            _read(payload, chunk, metadata, None)
    except DataError as error:
        part = f"row group {chunk.number} of {chunk.num_records} records"
        warn_skipped(file.path, part, error.problem)
        return False
    return True


def _read(payload: bytes, chunk: ChunkInfo, metadata: Any, columns: list[str] | None) -> pa.Table:
    parquet_file = pq.ParquetFile(
        _Part(payload, chunk.offset), metadata=metadata, page_checksum_verification=True
    )
    return parquet_file.read_row_group(chunk.number, columns=columns, use_threads=False)


class _Part(io.BytesIO):
    """A file object that contains only one range of a file's bytes."""

    def __init__(self, payload: bytes, offset: int) -> None:
        super().__init__(payload)
        self._offset = offset

    def tell(self) -> int:
        return super().tell() + self._offset

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        if whence == io.SEEK_SET:
            offset -= self._offset
            if offset < 0:
                raise OSError(f"byte {offset + self._offset} is not in the row group")
        return super().seek(offset, whence) + self._offset


@functools.lru_cache(maxsize=256)
def _cached_footer(path: str, size_bytes: int, checksum: int) -> tuple[bytes, Any]:
    """Return the footer of a file and its metadata; size and checksum identify its version."""
    with open_input(path) as file:
        footer = _footer_bytes(file)
    with _translated_errors(path):
        return footer, _parse(footer)


def _footer_bytes(file: InputFile) -> bytes:
    """Read the metadata at the end of a file, before its length and a magic number."""
    path, size = file.path, file.size_bytes
    start = file.read_at(0, num_bytes=len(_MAGIC))
    if start != _MAGIC:
        problem = f"is not a Parquet file: it starts with {start.hex(' ') or 'nothing'}."
        raise file_error(path, problem, hint="Rename it after its format.")
    end = file.read_at(max(0, size - _END.size), num_bytes=_END.size)
    length, magic = _END.unpack(end)
    if magic != _MAGIC or length + _END.size + len(_MAGIC) > size:
        problem = "is damaged: its footer is invalid; it may be truncated."
        raise file_error(path, problem, hint="Copy or write it again.")
    return file.read_at(size - _END.size - length, num_bytes=length)


def _parse(footer: bytes) -> Any:
    whole = _MAGIC + footer + _END.pack(len(footer), _MAGIC)
    return pq.read_metadata(io.BytesIO(whole))


@contextmanager
def _translated_errors(path: str) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError) as e:
        message = str(e).splitlines()[0] if str(e) else type(e).__name__
        raise file_error(
            path,
            f"is damaged: {message}",
            hint="Copy or write it again, or set data_plan.damaged=skip to skip the row groups that"
            " cannot be read.",
        ) from e
