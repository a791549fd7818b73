"""TFRecord files: a record is any bytes, such as a serialized `tf.Example`.

A file is a sequence of records without a header or an index. Each record is its length (uint64),
the masked CRC-32C of these 8 bytes, the data, and the masked CRC-32C of the data; all little-endian
(TensorFlow: `tensorflow/core/lib/io/record_writer.h`). Chunks are runs of whole records.
"""

import functools
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field

import google_crc32c
import numpy as np

from edl_horovod.errors import DataError
from edl_horovod.records.chunks import ChunkInfo, FileChunks, is_skipping, warn_skipped
from edl_horovod.records.columns import FlatRecords
from edl_horovod.records.files.input_file import InputFile, ReadAhead, file_error
from edl_horovod.records.files.pool import open_input
from edl_horovod.records.record_format import RecordFormat
from edl_horovod.records.source import FormatSettings

CHUNK_BYTES = 1 << 20
"""Maximum size of a chunk; only a chunk of a single record is larger."""
_HEADER = struct.Struct("<QI")
_CHECKSUM = struct.Struct("<I")
_GZIP = b"\x1f\x8b"
_ZLIB = b"\x78"


def make(name: str, settings: FormatSettings) -> RecordFormat:
    """The format with the settings of a job."""
    scan = functools.partial(read_chunks, damaged=settings.damaged)
    return RecordFormat(name, scan, decode_chunk, holds_chunk)


def read_chunks(path: str, *, damaged: str = "raise") -> FileChunks:
    """Find the chunks of a TFRecord file.

    By default only the bytes between the records' data are read: that detects a truncated tail and
    a damaged length, but damaged data is detected only when it is read. With `skip` all data is
    verified. A file that was truncated exactly between two records looks like a shorter file.

    Args:
        path: A TFRecord file, not compressed; an empty one is valid.
        damaged: `raise` at the first damaged record, or `skip` damaged records. After a damaged
            length the rest of the file is skipped.

    Raises:
        DataError: The file cannot be opened, is damaged, or has another format.
    """
    with ReadAhead(open_input(path)) as file:
        scan = _Scan(file, is_skipping(damaged))
        scan.run()
        chunks, num_skipped = tuple(scan.chunks), scan.num_skipped
        return FileChunks(path, file.size_bytes, chunks, num_skipped, num_skipped)


def decode_chunk(payload: bytes, *, chunk: ChunkInfo, path: str) -> FlatRecords:
    """Decode the records of a chunk.

    Raises:
        DataError: A record is damaged, or the file has changed since it was scanned.
    """
    bounds = list(_record_bounds(payload))
    if _checksum(payload, bounds) != chunk.checksum or len(payload) != chunk.compressed_bytes:
        raise chunk.changed(path)
    for start, end in bounds:
        (expected,) = _CHECKSUM.unpack_from(payload, end)
        if _masked_crc(payload[start:end]) != expected:
            raise _damaged(path, chunk.offset + start - _HEADER.size, _BAD_DATA)
    bounds_array = np.array(bounds, dtype=np.int64).reshape(-1, 2)
    return FlatRecords(payload, bounds_array[:, 0].copy(), bounds_array[:, 1].copy())


def holds_chunk(file: InputFile, chunk: ChunkInfo) -> bool:
    """Whether the lengths and checksums of a chunk's records are unchanged; reads the whole chunk.

    Raises:
        DataError: The file cannot be read.
    """
    payload = file.read_at(chunk.offset, num_bytes=chunk.compressed_bytes)
    return _checksum(payload, list(_record_bounds(payload))) == chunk.checksum


def is_tfrecord(file: InputFile) -> bool:
    """Whether a file begins with a record length and its checksum."""
    start = file.read_at(0, num_bytes=_HEADER.size)
    return len(start) == _HEADER.size and _length(start) is not None


_BAD_LENGTH = "the checksum of its length does not match"
_BAD_DATA = "the checksum of its data does not match"


@dataclass
class _Scan:
    """One pass over a file."""

    file: InputFile
    is_skipping: bool
    chunks: list[ChunkInfo] = field(default_factory=list)
    num_skipped: int = 0
    _start: int = 0
    """Offset of the chunk that is being filled."""
    _num_records: int = 0
    _crc: int = 0

    def run(self) -> None:
        file = self.file
        offset = 0
        while offset < file.size_bytes:
            header = file.read_at(offset, num_bytes=_HEADER.size)
            length = _length(header)
            if length is None and offset == 0 and not self.is_skipping:
                self._refuse_foreign(header)
            end = file.size_bytes if length is None else offset + 16 + length
            problem = _BAD_LENGTH if length is None and len(header) == _HEADER.size else ""
            if not problem and (length is None or end > file.size_bytes):
                end = file.size_bytes
                problem = f"the file ends after {end - offset} of its bytes"
            if not problem and self.is_skipping:
                problem = self._data_problem(offset, end)
            if problem:
                self._skip(offset, end, problem)
            else:
                self._add(offset, end, header)
            offset = end
        self._end_chunk(offset)

    def _add(self, offset: int, end: int, header: bytes) -> None:
        if end - self._start > CHUNK_BYTES:
            self._end_chunk(offset)
        footer = self.file.read_at(end - _CHECKSUM.size, num_bytes=_CHECKSUM.size)
        self._crc = zlib.crc32(footer, zlib.crc32(header, self._crc))
        self._num_records += 1

    def _end_chunk(self, offset: int) -> None:
        """End the current chunk, if it has records, and begin the next one."""
        if num_records := self._num_records:
            chunk = ChunkInfo.between(
                len(self.chunks), self._start, offset, checksum=self._crc, num_records=num_records
            )
            if chunk.compressed_bytes >= 1 << 32:
                raise _damaged(self.file.path, self._start, "it is larger than 4 GiB")
            self.chunks.append(chunk)
        self._start, self._num_records, self._crc = offset, 0, 0

    def _skip(self, offset: int, end: int, problem: str) -> None:
        if not self.is_skipping:
            raise _damaged(self.file.path, offset, problem)
        self._end_chunk(offset)
        self._start = end
        self.num_skipped += 1
        warn_skipped(self.file.path, f"bytes {offset} to {end}", problem)

    def _data_problem(self, offset: int, end: int) -> str:
        start = offset + _HEADER.size
        data = self.file.read_at(start, num_bytes=end - start)
        (expected,) = _CHECKSUM.unpack_from(data, len(data) - _CHECKSUM.size)
        is_good = _masked_crc(data[: -_CHECKSUM.size]) == expected
        return "" if is_good else _BAD_DATA

    def _refuse_foreign(self, start: bytes) -> None:
        path = self.file.path
        if start.startswith((_GZIP, _ZLIB)):
            raise file_error(
                path,
                "is a compressed TFRecord file, which does not allow random access to its records.",
                hint="Write it without compression, or convert it with edl prepare to RecordIO"
                " files, which are compressed chunk by chunk.",
            )
        if len(start) == _HEADER.size:
            raise DataError(
                f"{path} is not a TFRecord file: its first 12 bytes are not a length and its"
                " checksum.",
                received={"path": path, "first_bytes": start.hex(" ")},
                hint="Rename it after its format, or set data_plan.damaged=skip if it is damaged.",
            )


def _record_bounds(payload: bytes) -> Iterator[tuple[int, int]]:
    """Yield the start and end of the data of each record of a chunk, up to the first damage."""
    offset = 0
    while offset < len(payload):
        header = payload[offset : offset + _HEADER.size]
        length = _length(header)
        if length is None or offset + 16 + length > len(payload):
            return
        start = offset + _HEADER.size
        yield start, start + length
        offset = start + length + _CHECKSUM.size


def _checksum(payload: bytes, bounds: list[tuple[int, int]]) -> int:
    crc = 0
    for start, end in bounds:
        crc = zlib.crc32(payload[start - _HEADER.size : start], crc)
        crc = zlib.crc32(payload[end : end + _CHECKSUM.size], crc)
    return crc


def _length(header: bytes) -> int | None:
    """Return the length in a record's header; None if its checksum does not match."""
    if len(header) < _HEADER.size:
        return None
    length, checksum = _HEADER.unpack(header)
    return length if _masked_crc(header[:8]) == checksum else None


def _masked_crc(data: bytes) -> int:
    crc: int = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _damaged(path: str, offset: int, problem: str) -> DataError:
    message = f"is damaged: the record at byte {offset} cannot be read: {problem}."
    hint = "Copy or write it again, or set data_plan.damaged=skip to skip damaged records."
    return file_error(path, message, hint)
