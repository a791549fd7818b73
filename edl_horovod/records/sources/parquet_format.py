"""Parquet files by PyArrow: a chunk is a row group, a record one row."""

import functools
import io
import logging
import struct
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from edl_horovod.errors import DataError
from edl_horovod.records.chunks import ChunkInfo, Codec, FileChunks, changed, check_policy
from edl_horovod.records.columns import ColumnChunk
from edl_horovod.records.files.input_file import InputFile
from edl_horovod.records.files.local import open_input
from edl_horovod.records.layout import Layout
from edl_horovod.records.sources.arrow_columns import chunk_of
from edl_horovod.records.sources.arrow_schema import layout_of, schema_bytes, shared_schema
from edl_horovod.records.tables import IndexedFile

__all__ = ["decode_chunk", "holds_chunk", "layout", "read_chunks"]

log = logging.getLogger(__name__)

_MAGIC = b"PAR1"
_END = struct.Struct("<I4s")
_MOST_BYTES = (1 << 32) - 1


def read_chunks(path: str, *, damaged: str = "raise") -> FileChunks:
    """The row groups of a Parquet file; only its footer is read, or all of it with `skip`.

    Raises:
        DataError: The file cannot be opened, is damaged, or has another format.
    """
    check_policy(damaged)
    is_skipping = damaged == "skip"
    with open_input(path) as file:
        footer = _footer_bytes(file)
        with _reading(path):
            metadata = _parse(footer)
            schema = metadata.schema.to_arrow_schema()
        chunks: list[ChunkInfo] = []
        skipped: list[int] = []
        for number in range(metadata.num_row_groups):
            chunk = _chunk(metadata, number, footer, path)
            if chunk.num_records and is_skipping and not _can_be_read(file, chunk, metadata):
                skipped.append(chunk.num_records)
            elif chunk.num_records:
                chunks.append(chunk)
        return FileChunks(
            path=path,
            size_bytes=file.size_bytes,
            chunks=tuple(chunks),
            skipped_chunks=len(skipped),
            skipped_records=sum(skipped),
            header=schema_bytes(schema),
        )


def layout(files: Sequence[IndexedFile], *, wanted: Sequence[str]) -> Layout:
    """The columns of some files; see `layout_of`."""
    return layout_of(shared_schema(files), wanted, path=files[0].path)


def decode_chunk(
    payload: bytes, *, chunk: ChunkInfo, file: IndexedFile, layout: Layout
) -> ColumnChunk:
    """The columns of a row group.

    Raises:
        DataError: It is damaged, has empty values, or has changed since it was scanned.
    """
    footer, metadata = _kept_footer(file.path, file.size_bytes, chunk.checksum)
    if zlib.crc32(footer) != chunk.checksum:
        raise changed(file.path, chunk)
    names = metadata.schema.to_arrow_schema().names
    needed = [name for name in names if _is_needed(name, layout)]
    with _reading(file.path):
        table = _read(payload, chunk, metadata, needed)
    return chunk_of(table, layout=layout, path=file.path, chunk=chunk)


def holds_chunk(file: InputFile, chunk: ChunkInfo) -> bool:
    """Whether the footer is still the one that the row group was found in.

    Raises:
        DataError: The file cannot be read, or is no Parquet file any more.
    """
    return zlib.crc32(_footer_bytes(file)) == chunk.checksum


def _chunk(metadata: Any, number: int, footer: bytes, path: str) -> ChunkInfo:
    group = metadata.row_group(number)
    columns = [group.column(place) for place in range(group.num_columns)]
    starts = [min(filter(None, (c.dictionary_page_offset, c.data_page_offset))) for c in columns]
    sizes = [column.total_compressed_size for column in columns]
    first = min(starts, default=0)
    end = max((start + size for start, size in zip(starts, sizes, strict=True)), default=0)
    if end - first > _MOST_BYTES:
        raise DataError(
            f"A row group of {path} is larger than 4 GiB.",
            received={"path": path, "row group": number},
            cure="Write the file with smaller ones, as by row_group_size=100_000.",
        )
    return ChunkInfo(
        number=number,
        offset=first,
        checksum=zlib.crc32(footer),
        codec=Codec.NONE,
        compressed_bytes=end - first,
        num_records=group.num_rows,
    )


def _is_needed(name: str, layout: Layout) -> bool:
    return any(f"{column.name}.".startswith(f"{name}.") for column in layout.columns)


def _can_be_read(file: InputFile, chunk: ChunkInfo, metadata: Any) -> bool:
    payload = file.read_at(chunk.offset, num_bytes=chunk.compressed_bytes)
    try:
        with _reading(file.path):
            _read(payload, chunk, metadata, None)
    except DataError as error:
        log.warning(
            "%s: left out row group %d of %d records: %s (data_plan.damaged=skip)",
            file.path,
            chunk.number,
            chunk.num_records,
            error.what,
        )
        return False
    return True


def _read(payload: bytes, chunk: ChunkInfo, metadata: Any, columns: list[str] | None) -> pa.Table:
    opened = pq.ParquetFile(
        _Part(payload, chunk.offset), metadata=metadata, page_checksum_verification=True
    )
    return opened.read_row_group(chunk.number, columns=columns, use_threads=False)


class _Part(io.RawIOBase):
    """A file of which one run of bytes is there."""

    def __init__(self, payload: bytes, offset: int) -> None:
        super().__init__()
        self._payload, self._offset, self._at = payload, offset, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        end = self._offset + len(self._payload)
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: end}[whence]
        return self._at

    def read(self, size: int = -1) -> bytes:
        start = self._at - self._offset
        if start < 0:
            raise OSError(f"byte {self._at} is not in the row group")
        data = self._payload[start : start + size if size >= 0 else None]
        self._at += len(data)
        return data


@functools.lru_cache(maxsize=256)
def _kept_footer(path: str, size_bytes: int, checksum: int) -> tuple[bytes, Any]:
    """The footer of a file, and what it says; its size and checksum tell files apart."""
    with open_input(path) as file:
        footer = _footer_bytes(file)
    with _reading(path):
        return footer, _parse(footer)


def _footer_bytes(file: InputFile) -> bytes:
    """The metadata at the end of a file: its length and a magic number follow it."""
    path, size = file.path, file.size_bytes
    start = file.read_at(0, num_bytes=len(_MAGIC))
    if start != _MAGIC:
        raise DataError(
            f"{path} is no Parquet file: it starts with {start.hex(' ') or 'nothing'}.",
            received={"path": path},
            cure="Name it as what it is.",
        )
    end = file.read_at(max(0, size - _END.size), num_bytes=_END.size)
    length, magic = _END.unpack(end)
    if magic != _MAGIC or length + _END.size + len(_MAGIC) > size:
        raise DataError(
            f"{path} is damaged: it does not end as Parquet files do, as if it were cut off.",
            received={"path": path},
            cure="Copy or write it again.",
        )
    return file.read_at(size - _END.size - length, num_bytes=length)


def _parse(footer: bytes) -> Any:
    whole = _MAGIC + footer + _END.pack(len(footer), _MAGIC)
    return pq.read_metadata(io.BytesIO(whole))


@contextmanager
def _reading(path: str) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError) as e:
        said = str(e).splitlines()[0] if str(e) else type(e).__name__
        raise DataError(
            f"{path} is damaged: {said}",
            received={"path": path},
            cure="Copy or write it again, or set data_plan.damaged=skip to leave out the row groups"
            " that cannot be read.",
        ) from e
