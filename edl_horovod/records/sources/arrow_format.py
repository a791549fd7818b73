"""Arrow IPC files and streams by PyArrow: a chunk is a record batch, a record one row.

What a batch needs besides itself, the schema and the dictionaries, is the header of its file.
"""

import zlib
from collections.abc import Sequence

import pyarrow as pa

from edl_horovod.errors import DataError
from edl_horovod.records.chunks import ChunkInfo, Codec, FileChunks, changed
from edl_horovod.records.columns import ColumnChunk
from edl_horovod.records.files.input_file import InputFile
from edl_horovod.records.files.local import open_input
from edl_horovod.records.layout import Layout
from edl_horovod.records.read_ahead import ReadAhead
from edl_horovod.records.sources.arrow_columns import chunk_of
from edl_horovod.records.sources.arrow_messages import Kind, Message, damaged_file, messages
from edl_horovod.records.sources.arrow_schema import check_same, layout_of
from edl_horovod.records.tables import IndexedFile

__all__ = ["decode_chunk", "holds_chunk", "layout", "read_chunks"]

_MOST_HEADER_BYTES = 64 << 20
_MOST_BYTES = (1 << 32) - 1


def read_chunks(path: str) -> FileChunks:
    """The record batches of an Arrow file or stream; what they hold is not read.

    Raises:
        DataError: The file cannot be opened, is damaged, or has another format.
    """
    with ReadAhead(open_input(path)) as file:
        chunks: list[ChunkInfo] = []
        header = b""
        for message in messages(file):
            if message.kind is not Kind.RECORDS:
                header += file.read_at(message.offset, num_bytes=message.num_bytes)
                if len(header) > _MOST_HEADER_BYTES:
                    raise _too_large(path, "its dictionaries take more than 64 MiB")
            elif message.num_rows:
                chunks.append(_chunk(message, len(chunks), path))
        return FileChunks(
            path=path, size_bytes=file.size_bytes, chunks=tuple(chunks), header=header
        )


def layout(files: Sequence[IndexedFile], *, wanted: Sequence[str]) -> Layout:
    """The columns of some files; see `layout_of`.

    Raises:
        DataError: The files' columns differ.
    """
    filled = [file for file in files if file.num_chunks]
    schema = _schema(filled[0])
    seen = {filled[0].header}
    for file in filled:
        if file.header not in seen:
            check_same(schema, filled[0].path, _schema(file), file.path)
            seen.add(file.header)
    return layout_of(schema, wanted, path=filled[0].path)


def decode_chunk(
    payload: bytes, *, chunk: ChunkInfo, file: IndexedFile, layout: Layout
) -> ColumnChunk:
    """The columns of a record batch.

    Raises:
        DataError: It is damaged, has empty values, or has changed since it was scanned.
    """
    metadata_bytes = int.from_bytes(payload[4:8], "little")
    if zlib.crc32(payload[8 : 8 + metadata_bytes]) != chunk.checksum:
        raise changed(file.path, chunk)
    try:
        with pa.ipc.open_stream(pa.py_buffer(file.header + payload)) as stream:
            batch = stream.read_next_batch()
            batch.validate(full=False)
            table = pa.Table.from_batches([batch])
    except (pa.ArrowException, OSError, StopIteration) as e:
        problem = f"its record batch {chunk.number + 1} cannot be read: {e}"
        raise damaged_file(file.path, problem) from e
    return chunk_of(table, layout=layout, path=file.path, chunk=chunk)


def holds_chunk(file: InputFile, chunk: ChunkInfo) -> bool:
    """Whether a batch with the same metadata is still there.

    Raises:
        DataError: The file cannot be read.
    """
    start = file.read_at(chunk.offset, num_bytes=8)
    metadata = file.read_at(chunk.offset + 8, num_bytes=int.from_bytes(start[4:], "little"))
    return zlib.crc32(metadata) == chunk.checksum


def _chunk(message: Message, number: int, path: str) -> ChunkInfo:
    if message.num_bytes > _MOST_BYTES:
        raise _too_large(path, "a record batch is larger than 4 GiB")
    return ChunkInfo(
        number=number,
        offset=message.offset,
        checksum=zlib.crc32(message.metadata),
        codec=Codec.NONE,
        compressed_bytes=message.num_bytes,
        num_records=message.num_rows,
    )


def _schema(file: IndexedFile) -> pa.Schema:
    with pa.ipc.open_stream(pa.py_buffer(file.header)) as stream:
        return stream.schema


def _too_large(path: str, problem: str) -> DataError:
    return DataError(
        f"{path} cannot be read in parts: {problem}.",
        received={"path": path},
        cure="Write it in smaller batches, and text as text instead of categories.",
    )
