"""Text files: a record is one line without its line end; empty lines are records, too.

Chunks are runs of whole lines, found by one scan of the file.
"""

import functools
from collections.abc import Iterator

import numpy as np

from edl_horovod.errors import DataError
from edl_horovod.records.chunks import ChunkInfo, FileChunks, holds_bytes
from edl_horovod.records.columns import FlatRecords
from edl_horovod.records.files.input_file import InputFile, file_error
from edl_horovod.records.files.pool import open_input
from edl_horovod.records.record_format import RecordFormat
from edl_horovod.records.source import FormatSettings

CHUNK_BYTES = 1 << 20
"""Maximum size of a chunk; only a chunk of a single line is larger."""
MAX_LINE_BYTES = 32 << 20
"""A file with a longer line is treated as not text."""
_LF, _CR = b"\n"[0], b"\r"[0]

_UTF8_MARK = b"\xef\xbb\xbf"
_FOREIGN_STARTS = {
    b"\xff\xfe": "UTF-16 text",
    b"\xfe\xff": "UTF-16 text",
    b"\x1f\x8b": "gzip-compressed",
    b"PK\x03\x04": "a zip archive or a spreadsheet",
}


def make(name: str, _: FormatSettings) -> RecordFormat:
    """The format with the settings of a job."""
    scan = functools.partial(read_chunks, name=name)
    return RecordFormat(name, scan, decode_chunk, holds_bytes)


def read_chunks(path: str, *, name: str) -> FileChunks:
    """Find the chunks of a text file; reads the whole file once.

    Args:
        path: Text in UTF-8 or another extension of ASCII; lines end in LF or CRLF.
        name: The name of the format in messages.

    Raises:
        DataError: The file cannot be opened, is compressed or is not text.
    """
    with open_input(path) as file:
        chunks: list[ChunkInfo] = []
        for offset, payload in line_chunks(file, name):
            num_lines = payload.count(b"\n") + (not payload.endswith(b"\n"))
            chunks.append(ChunkInfo.of(payload, len(chunks), offset=offset, num_records=num_lines))
        return FileChunks(path, file.size_bytes, tuple(chunks))


def decode_chunk(payload: bytes, *, chunk: ChunkInfo, path: str) -> FlatRecords:
    """Decode the lines of a chunk, without line ends.

    Raises:
        DataError: The file has changed since it was scanned.
    """
    chunk.check(payload, path)
    text = np.frombuffer(payload, dtype=np.uint8)
    ends = np.flatnonzero(text == _LF).astype(np.int64)
    if not payload.endswith(b"\n"):
        ends = np.append(ends, len(payload))
    starts = np.concatenate([[0], ends[:-1] + 1]).astype(np.int64)
    has_cr = (ends > starts) & (text[ends - 1] == _CR)
    return FlatRecords(payload, starts, ends - has_cr)


def line_chunks(file: InputFile, name: str) -> Iterator[tuple[int, bytes]]:
    """Yield runs of whole lines with their offsets in the file.

    Raises:
        DataError: The file cannot be read, is compressed or is not text.
    """
    offset = text_start(file, name)
    num_bytes = CHUNK_BYTES
    while offset < file.size_bytes:
        data = file.read_at(offset, num_bytes=num_bytes)
        is_end = offset + len(data) >= file.size_bytes
        end = len(data) if is_end else data.rfind(b"\n") + 1
        if end:
            yield offset, data[:end]
            offset, num_bytes = offset + end, CHUNK_BYTES
        elif len(data) > MAX_LINE_BYTES:
            raise file_error(
                file.path,
                f"is not a {name} file: the line that starts at byte {offset} is longer"
                f" than {MAX_LINE_BYTES} bytes.",
                hint="Rename the file after its format, or split its lines.",
            )
        else:
            num_bytes = min(MAX_LINE_BYTES + 1, num_bytes * 4)


def text_start(file: InputFile, name: str) -> int:
    """Return the offset after the byte order mark; 0 if the file has none.

    Args:
        file: Plain text in UTF-8 or another extension of ASCII.
        name: The name of its format in messages.

    Raises:
        DataError: The file is compressed or has another encoding.
    """
    start = file.read_at(0, num_bytes=4) if file.size_bytes else b""
    for mark, kind in _FOREIGN_STARTS.items():
        if start.startswith(mark):
            raise DataError(
                f"{file.path} is {kind}, not plain {name}.",
                received={"path": file.path, "first_bytes": start.hex(" ")},
                hint=f"Unpack it, or save it as {name} in UTF-8.",
            )
    return len(_UTF8_MARK) if start.startswith(_UTF8_MARK) else 0
