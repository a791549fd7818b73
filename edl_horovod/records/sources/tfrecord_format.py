"""TFRecord files: a record is the bytes that were written, a serialized `tf.Example` or others.

A file is records back to back, without a header or an index. Each is its length (uint64), the
masked CRC-32C of these 8 bytes, the data, and the masked CRC-32C of the data; all little-endian
(TensorFlow: `tensorflow/core/lib/io/record_writer.h`). Chunks are runs of whole records.
"""

import logging
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field

import google_crc32c
import numpy as np

from edl_horovod.errors import DataError
from edl_horovod.records.chunks import ChunkInfo, Codec, FileChunks, changed, check_policy
from edl_horovod.records.files.input_file import InputFile
from edl_horovod.records.files.local import open_input
from edl_horovod.records.flat_records import FlatRecords
from edl_horovod.records.read_ahead import ReadAhead

__all__ = ["CHUNK_BYTES", "decode_chunk", "holds_chunk", "is_tfrecord", "read_chunks"]

log = logging.getLogger(__name__)

CHUNK_BYTES = 1 << 20
"""Size of a chunk; only one of a single record is larger."""
_HEADER = struct.Struct("<QI")
_CHECKSUM = struct.Struct("<I")
_GZIP = b"\x1f\x8b"
_ZLIB = b"\x78"


def read_chunks(path: str, *, damaged: str = "raise") -> FileChunks:
    """The chunks of a TFRecord file.

    By default only what lies between the records is read: that finds a truncated tail and a
    damaged length, but damaged data is found when it is read. With `skip` all data is verified. A
    file that was cut off exactly between two records cannot be told from a shorter one.

    Args:
        path: A TFRecord file, not compressed; an empty one is valid.
        damaged: `raise` at the first damaged record, or `skip` damaged records. After a damaged
            length no further record of the file can be found.

    Raises:
        DataError: The file cannot be opened, is damaged, or has another format.
    """
    check_policy(damaged)
    with ReadAhead(open_input(path)) as file:
        scan = _Scan(file, is_skipping=damaged == "skip")
        scan.run()
        return FileChunks(
            path=path,
            size_bytes=file.size_bytes,
            chunks=tuple(scan.chunks),
            skipped_chunks=scan.num_skipped,
            skipped_records=scan.num_skipped,
        )


def decode_chunk(payload: bytes, *, chunk: ChunkInfo, path: str) -> FlatRecords:
    """The records of a chunk.

    Raises:
        DataError: A record is damaged, or the file has changed since it was scanned.
    """
    places = list(_places(payload))
    if _checksum(payload, places) != chunk.checksum or len(payload) != chunk.compressed_bytes:
        raise changed(path, chunk)
    for start, end in places:
        (expected,) = _CHECKSUM.unpack_from(payload, end)
        if _masked_crc(payload[start:end]) != expected:
            raise _damaged(path, chunk.offset + start - _HEADER.size, _BAD_DATA)
    bounds = np.array(places, dtype=np.int64).reshape(-1, 2)
    return FlatRecords(payload, bounds[:, 0].copy(), bounds[:, 1].copy())


def holds_chunk(file: InputFile, chunk: ChunkInfo) -> bool:
    """Whether records of the same lengths and checksums are still there; all of it is read.

    Raises:
        DataError: The file cannot be read.
    """
    payload = file.read_at(chunk.offset, num_bytes=chunk.compressed_bytes)
    return _checksum(payload, list(_places(payload))) == chunk.checksum


def is_tfrecord(file: InputFile) -> bool:
    """Whether a file begins with a length and its checksum."""
    start = file.read_at(0, num_bytes=_HEADER.size)
    return len(start) == _HEADER.size and _length(start) is not None


_BAD_LENGTH = "the checksum of its length does not fit"
_BAD_DATA = "the checksum of its data does not fit"


@dataclass
class _Scan:
    """One pass over a file."""

    file: InputFile
    is_skipping: bool
    chunks: list[ChunkInfo] = field(default_factory=list)
    num_skipped: int = 0
    _start: int = 0
    """Where the chunk begins that is being filled."""
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
        """Let a chunk end here, if one has begun, and another begin."""
        if self._num_records:
            chunk = ChunkInfo(
                number=len(self.chunks),
                offset=self._start,
                checksum=self._crc,
                codec=Codec.NONE,
                compressed_bytes=offset - self._start,
                num_records=self._num_records,
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
        log.warning(
            "%s: left out bytes %d to %d: %s (data_plan.damaged=skip)",
            self.file.path,
            offset,
            end,
            problem,
        )

    def _data_problem(self, offset: int, end: int) -> str:
        start = offset + _HEADER.size
        data = self.file.read_at(start, num_bytes=end - start)
        (expected,) = _CHECKSUM.unpack_from(data, len(data) - _CHECKSUM.size)
        is_good = _masked_crc(data[: -_CHECKSUM.size]) == expected
        return "" if is_good else _BAD_DATA

    def _refuse_foreign(self, start: bytes) -> None:
        path = self.file.path
        if start.startswith((_GZIP, _ZLIB)):
            raise DataError(
                f"{path} is a compressed TFRecord file, in which no record can be reached without"
                " reading all before it.",
                received={"path": path},
                cure="Write it without compression, or make RecordIO files of it by edl prepare,"
                " which are compressed chunk by chunk.",
            )
        if len(start) == _HEADER.size:
            raise DataError(
                f"{path} is no TFRecord file: its first 12 bytes are no length with its checksum.",
                received={"path": path, "first_bytes": start.hex(" ")},
                cure="Name it as what it is; data_plan.damaged=skip passes over a damaged file.",
            )


def _places(payload: bytes) -> Iterator[tuple[int, int]]:
    """Where the data of each record of a chunk begins and ends, up to the first damage."""
    offset = 0
    while offset < len(payload):
        header = payload[offset : offset + _HEADER.size]
        length = _length(header)
        if length is None or offset + 16 + length > len(payload):
            return
        start = offset + _HEADER.size
        yield start, start + length
        offset = start + length + _CHECKSUM.size


def _checksum(payload: bytes, places: list[tuple[int, int]]) -> int:
    crc = 0
    for start, end in places:
        crc = zlib.crc32(payload[start - _HEADER.size : start], crc)
        crc = zlib.crc32(payload[end : end + _CHECKSUM.size], crc)
    return crc


def _length(header: bytes) -> int | None:
    """The length that a record's header gives; None where its checksum does not fit."""
    if len(header) < _HEADER.size:
        return None
    length, checksum = _HEADER.unpack(header)
    return length if _masked_crc(header[:8]) == checksum else None


def _masked_crc(data: bytes) -> int:
    crc: int = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _damaged(path: str, offset: int, problem: str) -> DataError:
    return DataError(
        f"{path} is damaged: the record at byte {offset} cannot be read: {problem}.",
        received={"path": path},
        cure="Copy or write it again, or set data_plan.damaged=skip to leave damaged records out.",
    )
