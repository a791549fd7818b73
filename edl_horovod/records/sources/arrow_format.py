"""Arrow IPC files and streams, read with PyArrow: a chunk is a record batch, a record is a row.

The header of an indexed file has the data that all batches need: the message of the schema and, if
the file has dictionaries, their number, a row of `_DICTIONARY` for each, and their messages. A
stream may replace a dictionary, so a batch is decoded with the dictionaries that precede it.
"""

import struct
import zlib
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from edl_horovod.errors import DataError
from edl_horovod.records.chunks import ChunkInfo, Codec, FileChunks, changed
from edl_horovod.records.columns import ColumnChunk
from edl_horovod.records.files.input_file import InputFile, ReadAhead
from edl_horovod.records.files.pool import open_input
from edl_horovod.records.index_tables import IndexedFile
from edl_horovod.records.layout import Layout
from edl_horovod.records.sources.arrow_columns import chunk_of
from edl_horovod.records.sources.arrow_messages import (
    Kind,
    Message,
    damaged_file,
    is_file,
    messages,
)
from edl_horovod.records.sources.arrow_schema import check_same, layout_of

__all__ = ["decode_chunk", "holds_chunk", "layout", "read_chunks"]

_MAX_HEADER_BYTES = 64 << 20
_MAX_BYTES = (1 << 32) - 1
_COUNT = struct.Struct("<I")
_DICTIONARY = np.dtype(
    [("since", "<i8"), ("id", "<i8"), ("is_delta", "<i8"), ("num_bytes", "<i8")],
)
"""A dictionary message. `since` is the offset after which it is valid: 0 in a file, where all
batches have the same dictionaries."""


def read_chunks(path: str) -> FileChunks:
    """Find the record batches of an Arrow file or stream without reading their bodies.

    Raises:
        DataError: The file cannot be opened, is damaged, or has another format.
    """
    with ReadAhead(open_input(path)) as file:
        is_stream = not is_file(file)
        chunks: list[ChunkInfo] = []
        schema, dictionaries = b"", _Dictionaries(file, is_stream=is_stream)
        for message in messages(file):
            if message.kind is Kind.RECORDS:
                if message.num_rows:
                    chunks.append(_chunk(message, len(chunks), path))
                continue
            if message.kind is Kind.SCHEMA:
                schema = file.read_at(message.offset, num_bytes=message.num_bytes)
            else:
                dictionaries.add(message)
        header = schema + dictionaries.to_bytes()
        return FileChunks(
            path=path, size_bytes=file.size_bytes, chunks=tuple(chunks), header=header
        )


def layout(files: Sequence[IndexedFile], *, selected: Sequence[str]) -> Layout:
    """Return the columns of the files; see `layout_of`.

    Raises:
        DataError: The columns differ between files.
    """
    with_batches = [file for file in files if file.num_chunks]
    schema = _schema(with_batches[0])
    checked_headers = {with_batches[0].header}
    for file in with_batches:
        if file.header not in checked_headers:
            check_same(schema, with_batches[0].path, _schema(file), file.path)
            checked_headers.add(file.header)
    return layout_of(schema, selected, path=with_batches[0].path)


def decode_chunk(
    payload: bytes, *, chunk: ChunkInfo, file: IndexedFile, layout: Layout
) -> ColumnChunk:
    """Decode the columns of a record batch.

    Raises:
        DataError: The batch is damaged, has empty values, or has changed since the scan.
    """
    metadata_bytes = int.from_bytes(payload[4:8], "little")
    if zlib.crc32(payload[8 : 8 + metadata_bytes]) != chunk.checksum:
        raise changed(file.path, chunk)
    try:
        with pa.ipc.open_stream(pa.py_buffer(_preamble(chunk, file) + payload)) as stream:
            batch = stream.read_next_batch()
            batch.validate(full=False)
            table = pa.Table.from_batches([batch])
    except (pa.ArrowException, OSError, StopIteration) as e:
        problem = f"its record batch {chunk.number + 1} cannot be read: {e}"
        raise damaged_file(file.path, problem) from e
    return chunk_of(table, layout=layout, path=file.path, chunk=chunk)


def holds_chunk(file: InputFile, chunk: ChunkInfo) -> bool:
    """Whether the metadata of a batch is unchanged.

    Raises:
        DataError: The file cannot be read.
    """
    start = file.read_at(chunk.offset, num_bytes=8)
    metadata = file.read_at(chunk.offset + 8, num_bytes=int.from_bytes(start[4:], "little"))
    return zlib.crc32(metadata) == chunk.checksum


def _chunk(message: Message, number: int, path: str) -> ChunkInfo:
    if message.num_bytes > _MAX_BYTES:
        raise _too_large(path, "a record batch is larger than 4 GiB")
    return ChunkInfo(
        number=number,
        offset=message.offset,
        checksum=zlib.crc32(message.metadata),
        codec=Codec.NONE,
        compressed_bytes=message.num_bytes,
        num_records=message.num_rows,
    )


class _Dictionaries:
    """Collects the dictionaries of a file for its header."""

    def __init__(self, file: InputFile, *, is_stream: bool) -> None:
        self._file = file
        self._is_stream = is_stream
        self._rows: list[tuple[int, int, bool, int]] = []
        self._contents: list[bytes] = []
        self._num_bytes = 0
        self._ids: set[int] = set()

    def add(self, message: Message) -> None:
        is_replaced = message.dictionary_id in self._ids and not message.is_delta
        if is_replaced and not self._is_stream:
            problem = f"it replaces a dictionary at byte {message.offset}; only streams may do this"
            raise damaged_file(self._file.path, problem)
        self._num_bytes += message.num_bytes
        if self._num_bytes > _MAX_HEADER_BYTES:
            raise _too_large(self._file.path, "its dictionaries take more than 64 MiB")
        since = message.offset if self._is_stream else 0
        self._rows.append((since, message.dictionary_id, message.is_delta, message.num_bytes))
        self._contents.append(self._file.read_at(message.offset, num_bytes=message.num_bytes))
        self._ids.add(message.dictionary_id)

    def to_bytes(self) -> bytes:
        if not self._rows:
            return b""
        rows = np.array(self._rows, _DICTIONARY)
        return b"".join([_COUNT.pack(len(rows)), rows.tobytes(), *self._contents])


def _preamble(chunk: ChunkInfo, file: IndexedFile) -> bytes:
    """Return the start of a stream of only this batch: the schema and its dictionaries."""
    header = file.header
    schema_end = _schema_end(header)
    if schema_end == len(header):
        return header
    (count,) = _COUNT.unpack_from(header, schema_end)
    rows = np.frombuffer(header, _DICTIONARY, count, schema_end + _COUNT.size)
    ends = schema_end + _COUNT.size + rows.nbytes + np.cumsum(rows["num_bytes"])
    rows = rows[: np.searchsorted(rows["since"], chunk.offset)]
    # For each dictionary: the last message that replaces it, and the deltas after that.
    ids, dictionary_of = np.unique(rows["id"], return_inverse=True)
    first = np.zeros(len(ids), np.int64)
    replacements = np.flatnonzero(rows["is_delta"] == 0)
    np.maximum.at(first, dictionary_of[replacements], replacements)
    needed = np.flatnonzero(np.arange(len(rows)) >= first[dictionary_of]).tolist()
    contents = (header[ends[index] - rows["num_bytes"][index] : ends[index]] for index in needed)
    return b"".join([header[:schema_end], *contents])


def _schema(file: IndexedFile) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(file.header[: _schema_end(file.header)]))


def _schema_end(header: bytes) -> int:
    """Return the end of the schema message: a mark, the length of the rest, and the rest."""
    return 8 + int.from_bytes(header[4:8], "little")


def _too_large(path: str, problem: str) -> DataError:
    return DataError(
        f"{path} cannot be read in parts: {problem}.",
        received={"path": path},
        hint="Write it in smaller batches, and text as text instead of categories.",
    )
