"""The messages of an Arrow IPC stream, walked without reading what they carry.

A message is the continuation mark 0xFFFFFFFF, the length of its metadata (int32), the metadata, a
FlatBuffers table `Message` padded to 8 bytes, and its body, whose length the metadata gives. A
file is the magic `ARROW1`, padded to 8 bytes, such a stream, and a footer that repeats where the
messages are (https://arrow.apache.org/docs/format/Columnar.html#serialization-and-interprocess-communication-ipc).
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
_MOST_METADATA_BYTES = 64 << 20
# Places of the fields of `Message`, `RecordBatch` and `DictionaryBatch` in their tables
# (format/Message.fbs).
_HEADER_TYPE, _HEADER, _BODY_LENGTH, _NUM_ROWS, _DICTIONARY_ID, _IS_DELTA = 1, 2, 3, 0, 0, 2


class Kind(enum.IntEnum):
    """What a message carries, by its number in `MessageHeader`."""

    SCHEMA = 1
    DICTIONARY = 2
    RECORDS = 3


@dataclass(frozen=True)
class Message:
    """Where a message is in its file."""

    kind: Kind
    offset: int
    num_bytes: int
    """Of all of it."""
    metadata: bytes
    num_rows: int = 0
    """Of `RECORDS`."""
    dictionary_id: int = 0
    """Of `DICTIONARY`: which of the file's dictionaries it is."""
    is_delta: bool = False
    """Of `DICTIONARY`: whether it adds to what is known of it; else it replaces that."""


def is_file(file: InputFile) -> bool:
    """Whether it is a file, which has a footer; else a stream."""
    return file.read_at(0, num_bytes=len(_MAGIC)) == _MAGIC


def messages(file: InputFile) -> Iterator[Message]:
    """The messages of a stream or a file, up to its end mark.

    Raises:
        DataError: It is damaged, cut off, or no Arrow file.
    """
    start = file.read_at(0, num_bytes=8)
    has_footer = is_file(file)
    if not has_footer and start[:4] != b"\xff\xff\xff\xff":
        what = "is of Feather's first version" if start[:4] == _FEATHER_1 else "is no Arrow file"
        raise DataError(
            f"{file.path} {what}: it starts with {start.hex(' ') or 'nothing'}.",
            received={"path": file.path},
            cure="Write it with pyarrow.feather.write_feather or pyarrow.ipc, or name it as what it"
            " is.",
        )
    size = file.size_bytes
    if has_footer and (size < 16 or file.read_at(size - 6, num_bytes=6) != _MAGIC):
        raise damaged_file(file.path, "it does not end as Arrow files do, as if it were cut off")
    offset = 8 if has_footer else 0
    while offset < size:
        message = _message(file, offset)
        if message is None:
            return
        yield message
        offset += message.num_bytes


def damaged_file(path: str, problem: str) -> DataError:
    """What is said of a file that cannot be read to its end."""
    return DataError(
        f"{path} is damaged: {problem}.",
        received={"path": path},
        cure="Copy or write it again.",
    )


def _message(file: InputFile, offset: int) -> Message | None:
    """The message at an offset; None for the end mark."""
    start = file.read_at(offset, num_bytes=_START.size)
    if len(start) < _START.size:
        raise damaged_file(file.path, f"it ends within the message at byte {offset}")
    mark, length = _START.unpack(start)
    if mark != _MARK or length > _MOST_METADATA_BYTES:
        raise damaged_file(file.path, f"there is no message at byte {offset}")
    if not length:
        return None
    metadata = file.read_at(offset + _START.size, num_bytes=length)
    try:
        root = struct.unpack_from("<I", metadata)[0]
        kind = Kind(_number(metadata, root, _HEADER_TYPE, "<B"))
        body = _number(metadata, root, _BODY_LENGTH, "<q")
        at = _field(metadata, root, _HEADER)
        table = at + struct.unpack_from("<I", metadata, at)[0]
        rows = dictionary_id = is_delta = 0
        if kind is Kind.RECORDS:
            rows = _number(metadata, table, _NUM_ROWS, "<q")
        elif kind is Kind.DICTIONARY:
            dictionary_id = _number(metadata, table, _DICTIONARY_ID, "<q")
            is_delta = _number(metadata, table, _IS_DELTA, "<B")
    except (struct.error, ValueError) as e:
        raise damaged_file(file.path, f"the message at byte {offset} cannot be read") from e
    num_bytes = _START.size + length + body
    if body < 0 or rows < 0 or offset + num_bytes > file.size_bytes:
        raise damaged_file(file.path, f"it ends within the message at byte {offset}")
    return Message(kind, offset, num_bytes, metadata, rows, dictionary_id, bool(is_delta))


def _field(data: bytes, table: int, place: int) -> int:
    """Where a field of a FlatBuffers table is; 0 where the table leaves it out."""
    shape = table - struct.unpack_from("<i", data, table)[0]
    (shape_bytes,) = struct.unpack_from("<H", data, shape)
    entry = 4 + 2 * place
    if entry >= shape_bytes:
        return 0
    (moved,) = struct.unpack_from("<H", data, shape + entry)
    return table + moved if moved else 0


def _number(data: bytes, table: int, place: int, kind: str) -> int:
    """A number in a FlatBuffers table; 0 where the table leaves it out."""
    at = _field(data, table, place)
    return int(struct.unpack_from(kind, data, at)[0]) if at else 0
