"""The messages of an Arrow IPC stream, listed without reading their bodies.

A message is the continuation mark 0xFFFFFFFF, the length of its metadata (int32), the metadata (a
FlatBuffers table `Message` padded to 8 bytes), and its body, whose length is in the metadata. A
file is the magic `ARROW1`, padded to 8 bytes, such a stream, and a footer with the offsets of the
messages (https://arrow.apache.org/docs/format/Columnar.html#serialization-and-interprocess-communication-ipc).
"""

import enum
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from edl_horovod.errors import DataError
from edl_horovod.records.files.input_file import InputFile

__all__ = ["Kind", "Message", "damaged_file", "is_file", "messages"]

_MAGIC = b"ARROW1"
_FEATHER_1 = b"FEA1"
_START = struct.Struct("<II")
_MARK = 0xFFFFFFFF
_MAX_METADATA_BYTES = 64 << 20
# Indexes of the fields of `Message`, `RecordBatch` and `DictionaryBatch` in their tables
# (format/Message.fbs).
_HEADER_TYPE, _HEADER, _BODY_LENGTH, _NUM_ROWS, _DICTIONARY_ID, _IS_DELTA = 1, 2, 3, 0, 0, 2


class Kind(enum.IntEnum):
    """The content of a message; the values are those of `MessageHeader`."""

    SCHEMA = 1
    DICTIONARY = 2
    RECORDS = 3


@dataclass(frozen=True)
class Message:
    """The location of a message in its file, and its properties."""

    kind: Kind
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


def is_file(file: InputFile) -> bool:
    """Whether the input is an Arrow file, which has a footer, and not a stream."""
    return file.read_at(0, num_bytes=len(_MAGIC)) == _MAGIC


def messages(file: InputFile) -> Iterator[Message]:
    """Yield the messages of a stream or a file, up to the end mark.

    Raises:
        DataError: The input is damaged, truncated, or not an Arrow file or stream.
    """
    start = file.read_at(0, num_bytes=8)
    has_footer = is_file(file)
    if not has_footer and start[:4] != b"\xff\xff\xff\xff":
        problem = (
            "is a Feather version 1 file" if start[:4] == _FEATHER_1 else "is not an Arrow file"
        )
        raise DataError(
            f"{file.path} {problem}: it starts with {start.hex(' ') or 'nothing'}.",
            received={"path": file.path},
            hint="Write it with pyarrow.feather.write_feather or pyarrow.ipc, or rename it after"
            " its format.",
        )
    size = file.size_bytes
    if has_footer and (size < 16 or file.read_at(size - 6, num_bytes=6) != _MAGIC):
        raise damaged_file(file.path, "its footer is missing; it may be truncated")
    offset = 8 if has_footer else 0
    while offset < size:
        message = _message(file, offset)
        if message is None:
            return
        yield message
        offset += message.num_bytes


def damaged_file(path: str, problem: str) -> DataError:
    """Return the error for a damaged or truncated file."""
    return DataError(
        f"{path} is damaged: {problem}.",
        received={"path": path},
        hint="Copy or write it again.",
    )


def _message(file: InputFile, offset: int) -> Message | None:
    """Parse the message at an offset; None at the end mark."""
    start = file.read_at(offset, num_bytes=_START.size)
    if len(start) < _START.size:
        raise damaged_file(file.path, f"it ends within the message at byte {offset}")
    mark, length = _START.unpack(start)
    if mark != _MARK or length > _MAX_METADATA_BYTES:
        raise damaged_file(file.path, f"there is no message at byte {offset}")
    if not length:
        return None
    metadata = file.read_at(offset + _START.size, num_bytes=length)
    try:
        root = struct.unpack_from("<I", metadata)[0]
        kind = Kind(_number(metadata, root, _HEADER_TYPE, "<B"))
        body = _number(metadata, root, _BODY_LENGTH, "<q")
        field_offset = _field(metadata, root, _HEADER)
        table = field_offset + struct.unpack_from("<I", metadata, field_offset)[0]
        num_rows = dictionary_id = is_delta = 0
        if kind is Kind.RECORDS:
            num_rows = _number(metadata, table, _NUM_ROWS, "<q")
        elif kind is Kind.DICTIONARY:
            dictionary_id = _number(metadata, table, _DICTIONARY_ID, "<q")
            is_delta = _number(metadata, table, _IS_DELTA, "<B")
    except (struct.error, ValueError) as e:
        raise damaged_file(file.path, f"the message at byte {offset} cannot be read") from e
    num_bytes = _START.size + length + body
    if body < 0 or num_rows < 0 or offset + num_bytes > file.size_bytes:
        raise damaged_file(file.path, f"it ends within the message at byte {offset}")
    return Message(kind, offset, num_bytes, metadata, num_rows, dictionary_id, bool(is_delta))


def _field(data: bytes, table: int, index: int) -> int:
    """Return the position of a field of a FlatBuffers table; 0 if the field is absent."""
    vtable = table - struct.unpack_from("<i", data, table)[0]
    (vtable_bytes,) = struct.unpack_from("<H", data, vtable)
    entry = 4 + 2 * index
    if entry >= vtable_bytes:
        return 0
    (offset,) = struct.unpack_from("<H", data, vtable + entry)
    return table + offset if offset else 0


def _number(data: bytes, table: int, index: int, kind: str) -> int:
    """Return a number in a FlatBuffers table; 0 if the field is absent."""
    offset = _field(data, table, index)
    return int(struct.unpack_from(kind, data, offset)[0]) if offset else 0
