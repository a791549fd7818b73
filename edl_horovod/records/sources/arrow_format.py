"""Arrow IPC files and streams, read with PyArrow: a chunk is a record batch, a record is a row.

A message is the continuation mark 0xFFFFFFFF, the length of its metadata (int32), the metadata (a
FlatBuffers table `Message` padded to 8 bytes), and its body, whose length is in the metadata. A
file is the magic `ARROW1`, padded to 8 bytes, a stream of messages, and a footer with the offsets
of the messages (https://arrow.apache.org/docs/format/Columnar.html#serialization-and-interprocess-communication-ipc).
A scan lists the messages without reading their bodies.

The header of an indexed file has the data that all batches need: the message of the schema and, if
the file has dictionaries, their number, a row of `_DICTIONARY` for each, and their messages. A
stream may replace a dictionary, so a batch is decoded with the dictionaries that precede it.
"""

import enum
import functools
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from edl_horovod.errors import DataError
from edl_horovod.records.chunks import ChunkInfo, FileChunks
from edl_horovod.records.columns import ColumnChunk
from edl_horovod.records.files.input_file import InputFile, ReadAhead, file_error
from edl_horovod.records.files.pool import open_input
from edl_horovod.records.index_tables import IndexedFile
from edl_horovod.records.layout import Layout
from edl_horovod.records.record_format import ColumnFormat, RecordFormat
from edl_horovod.records.source import FormatSettings
from edl_horovod.records.sources.arrow_columns import chunk_of, same_layout_of

_MAGIC = b"ARROW1"
_FEATHER_1 = b"FEA1"
_START = struct.Struct("<II")
_MARK = 0xFFFFFFFF
_MAX_METADATA_BYTES = 64 << 20

_MAX_HEADER_BYTES = 64 << 20
_MAX_BYTES = (1 << 32) - 1
# Indexes of the fields of `Message`, `RecordBatch` and `DictionaryBatch` in their tables
# (format/Message.fbs).
_HEADER_TYPE, _HEADER, _BODY_LENGTH, _NUM_ROWS, _DICTIONARY_ID, _IS_DELTA = 1, 2, 3, 0, 0, 2
_COUNT = struct.Struct("<I")
_DICTIONARY = np.dtype([(name, "<i8") for name in ("since", "id", "is_delta", "num_bytes")])
"""A dictionary message. `since` is the offset after which it is valid: 0 in a file, where all
batches have the same dictionaries."""


class _MessageKind(enum.IntEnum):
    """The content of a message; the values are those of `MessageHeader`."""

    SCHEMA = 1
    DICTIONARY = 2
    RECORDS = 3


@dataclass(frozen=True)
class _Message:
    """The location of a message in its file, and its properties."""

    kind: _MessageKind
    offset: int
    num_bytes: int
    """Size of the whole message."""
    metadata: bytes
    num_rows: int = 0
    """Number of rows, if the kind is `RECORDS`."""
    dictionary_id: int = 0
    """Id of the dictionary, if the kind is `DICTIONARY`."""
    is_delta: bool = False
    """Whether a `DICTIONARY` is appended to the dictionary so far; if not, it replaces it."""


def make(name: str, _: FormatSettings) -> RecordFormat:
    """The format with the settings of a job."""
    layout = functools.partial(same_layout_of, schema_of=_schema)
    columns = ColumnFormat(layout, decode)
    # The files have no checksums, so samples show whether they changed.
    return RecordFormat(name, read_chunks, columns, holds_chunk, change_detection="samples")


def read_chunks(path: str) -> FileChunks:
    """Find the record batches of an Arrow file or stream without reading their bodies.

    Raises:
        DataError: The file cannot be opened, is damaged, or has another format.
    """
    with ReadAhead(open_input(path)) as file:
        is_stream = not _is_file(file)
        chunks: list[ChunkInfo] = []
        schema, dictionaries = b"", _Dictionaries(file, is_stream=is_stream)
        for message in _messages(file):
            if message.kind is _MessageKind.SCHEMA:
                schema = file.read_at(message.offset, num_bytes=message.num_bytes)
            elif message.kind is _MessageKind.DICTIONARY:
                dictionaries.add(message)
            elif message.num_rows:
                chunks.append(_chunk(message, len(chunks), path))
        header = schema + dictionaries.to_bytes()
        return FileChunks(path, file.size_bytes, tuple(chunks), header=header)


def decode(payload: bytes, *, chunk: ChunkInfo, file: IndexedFile, layout: Layout) -> ColumnChunk:
    """Decode the columns of a record batch.

    Raises:
        DataError: The batch is damaged, has empty values, or has changed since the scan.
    """
    metadata_bytes = int.from_bytes(payload[4:8], "little")
    if zlib.crc32(payload[8 : 8 + metadata_bytes]) != chunk.checksum:
        raise chunk.changed(file.path)
    try:
        with pa.ipc.open_stream(pa.py_buffer(_preamble(chunk, file) + payload)) as stream:
            batch = stream.read_next_batch()
            batch.validate(full=False)
            table = pa.Table.from_batches([batch])
    except (pa.ArrowException, OSError, StopIteration) as e:
        problem = f"its record batch {chunk.number + 1} cannot be read: {e}"
        raise _damaged(file.path, problem) from e
    return chunk_of(table, layout=layout, path=file.path, chunk=chunk)


def holds_chunk(file: InputFile, chunk: ChunkInfo) -> bool:
    """Whether the metadata of a batch is unchanged.

    Raises:
        DataError: The file cannot be read.
    """
    start = file.read_at(chunk.offset, num_bytes=8)
    metadata = file.read_at(chunk.offset + 8, num_bytes=int.from_bytes(start[4:], "little"))
    return zlib.crc32(metadata) == chunk.checksum


def _messages(file: InputFile) -> Iterator[_Message]:
    """Yield the messages of a stream or a file, up to the end mark.

    Raises:
        DataError: The input is damaged, truncated, or not an Arrow file or stream.
    """
    start = file.read_at(0, num_bytes=8)
    has_footer = _is_file(file)
    if not has_footer and start[:4] != b"\xff\xff\xff\xff":
        kind = "a Feather version 1 file" if start[:4] == _FEATHER_1 else "not an Arrow file"
        raise file_error(
            file.path,
            f"is {kind}: it starts with {start.hex(' ') or 'nothing'}.",
            hint="Write it with pyarrow.feather.write_feather or pyarrow.ipc, or rename it after"
            " its format.",
        )
    size = file.size_bytes
    if has_footer and (size < 16 or file.read_at(size - 6, num_bytes=6) != _MAGIC):
        raise _damaged(file.path, "its footer is missing; it may be truncated")
    offset = 8 if has_footer else 0
    while offset < size:
        message = _parse_message(file, offset)
        if message is None:
            return
        yield message
        offset += message.num_bytes


def _parse_message(file: InputFile, offset: int) -> _Message | None:
    """Parse the message at an offset; None at the end mark."""
    start = file.read_at(offset, num_bytes=_START.size)
    if len(start) < _START.size:
        raise _damaged(file.path, f"it ends within the message at byte {offset}")
    mark, length = _START.unpack(start)
    if mark != _MARK or length > _MAX_METADATA_BYTES:
        raise _damaged(file.path, f"there is no message at byte {offset}")
    if not length:
        return None
    metadata = file.read_at(offset + _START.size, num_bytes=length)
    try:
        root = struct.unpack_from("<I", metadata)[0]
        kind = _MessageKind(_read_number(metadata, root, _HEADER_TYPE, "<B"))
        body = _read_number(metadata, root, _BODY_LENGTH, "<q")
        field_offset = _field_offset(metadata, root, _HEADER)
        table = field_offset + struct.unpack_from("<I", metadata, field_offset)[0]
        num_rows = dictionary_id = is_delta = 0
        if kind is _MessageKind.RECORDS:
            num_rows = _read_number(metadata, table, _NUM_ROWS, "<q")
        elif kind is _MessageKind.DICTIONARY:
            dictionary_id = _read_number(metadata, table, _DICTIONARY_ID, "<q")
            is_delta = _read_number(metadata, table, _IS_DELTA, "<B")
    except (struct.error, ValueError) as e:
        raise _damaged(file.path, f"the message at byte {offset} cannot be read") from e
    num_bytes = _START.size + length + body
    if body < 0 or num_rows < 0 or offset + num_bytes > file.size_bytes:
        raise _damaged(file.path, f"it ends within the message at byte {offset}")
    return _Message(kind, offset, num_bytes, metadata, num_rows, dictionary_id, bool(is_delta))


def _is_file(file: InputFile) -> bool:
    """Whether the input is an Arrow file, which has a footer, and not a stream."""
    return file.read_at(0, num_bytes=len(_MAGIC)) == _MAGIC


def _field_offset(data: bytes, table: int, index: int) -> int:
    """Return the position of a field of a FlatBuffers table; 0 if the field is absent."""
    vtable = table - struct.unpack_from("<i", data, table)[0]
    (vtable_bytes,) = struct.unpack_from("<H", data, vtable)
    entry = 4 + 2 * index
    if entry >= vtable_bytes:
        return 0
    (offset,) = struct.unpack_from("<H", data, vtable + entry)
    return table + offset if offset else 0


def _read_number(data: bytes, table: int, index: int, kind: str) -> int:
    """Return a number in a FlatBuffers table; 0 if the field is absent."""
    offset = _field_offset(data, table, index)
    return int(struct.unpack_from(kind, data, offset)[0]) if offset else 0


def _chunk(message: _Message, number: int, path: str) -> ChunkInfo:
    if message.num_bytes > _MAX_BYTES:
        raise _too_large(path, "a record batch is larger than 4 GiB")
    start, checksum = message.offset, zlib.crc32(message.metadata)
    end, num_rows = start + message.num_bytes, message.num_rows
    return ChunkInfo.between(number, start, end, checksum=checksum, num_records=num_rows)


class _Dictionaries:
    """Collects the dictionaries of a file for its header."""

    def __init__(self, file: InputFile, *, is_stream: bool) -> None:
        self._file = file
        self._is_stream = is_stream
        self._rows: list[tuple[int, int, bool, int]] = []
        self._contents: list[bytes] = []
        self._num_bytes = 0
        self._ids: set[int] = set()

    def add(self, message: _Message) -> None:
        is_replaced = message.dictionary_id in self._ids and not message.is_delta
        if is_replaced and not self._is_stream:
            problem = f"it replaces a dictionary at byte {message.offset}; only streams may do this"
            raise _damaged(self._file.path, problem)
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
    message = f"cannot be read in parts: {problem}."
    hint = "Write it in smaller batches, and text as text instead of categories."
    return file_error(path, message, hint)


def _damaged(path: str, problem: str) -> DataError:
    """Return the error for a damaged or truncated file."""
    return file_error(path, f"is damaged: {problem}.", hint="Copy or write it again.")
