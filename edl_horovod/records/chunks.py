"""Chunks, which all record formats share: parts of a file that can be read independently."""

import enum
import logging
import zlib
from dataclasses import dataclass
from typing import Self

from edl_horovod.errors import ConfigError, DataError, did_you_mean
from edl_horovod.records.files.input_file import InputFile, changed_since_index

__all__ = [
    "ChunkInfo",
    "Codec",
    "FileChunks",
    "holds_bytes",
    "is_skipping",
    "sampled_checksum",
    "warn_skipped",
]

log = logging.getLogger(__name__)

_POLICIES = ("raise", "skip")
_NUM_SAMPLES = 16
_SAMPLE_BYTES = 1 << 16


class Codec(enum.IntEnum):
    """The compression of a chunk's payload; the values are those of RecordIO files."""

    NONE = 0
    SNAPPY = 1
    GZIP = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class ChunkInfo:
    """The location of a chunk, and its properties that are known before it is read."""

    number: int
    """Position of the chunk in its file, damaged chunks included."""
    offset: int
    """First byte of the chunk in the file."""
    checksum: int
    """CRC-32 of the payload as stored in the file."""
    compressed_bytes: int
    """Size of the payload as stored in the file."""
    num_records: int
    codec: Codec = Codec.NONE
    header_bytes: int = 0
    """Bytes before the payload; 0 if the format has no chunk headers."""

    @classmethod
    def between(cls, number: int, start: int, end: int, *, checksum: int, num_records: int) -> Self:
        """Describe a run of bytes that a file stores without a header and uncompressed."""
        return cls(
            number=number,
            offset=start,
            checksum=checksum,
            compressed_bytes=end - start,
            num_records=num_records,
        )

    @classmethod
    def of(cls, payload: bytes, number: int, *, offset: int, num_records: int) -> Self:
        """Describe a run of bytes, as `between`, with the checksum of the bytes themselves."""
        end, checksum = offset + len(payload), zlib.crc32(payload)
        return cls.between(number, offset, end, checksum=checksum, num_records=num_records)

    @property
    def payload_offset(self) -> int:
        """First byte of the payload in the file."""
        return self.offset + self.header_bytes

    @property
    def end_offset(self) -> int:
        """First byte after the chunk."""
        return self.payload_offset + self.compressed_bytes

    def is_of(self, payload: bytes) -> bool:
        """Whether a payload has the size and the checksum from the scan."""
        return len(payload) == self.compressed_bytes and zlib.crc32(payload) == self.checksum

    def check(self, payload: bytes, path: str) -> None:
        """Refuse a payload that has changed since the scan.

        Raises:
            DataError: The payload has changed.
        """
        if not self.is_of(payload):
            raise self.changed(path)

    def changed(self, path: str) -> DataError:
        """Return the error for a chunk that has changed since the scan."""
        return changed_since_index(path, f"different content at byte {self.offset}")


@dataclass(frozen=True)
class FileChunks:
    """The chunks of a file that can be read, and the amount of data that was skipped."""

    path: str
    size_bytes: int
    chunks: tuple[ChunkInfo, ...]
    skipped_chunks: int = 0
    """Number of damaged ranges skipped; a range without an intact header counts as one chunk."""
    skipped_records: int = 0
    """Number of records skipped, as far as it is known."""
    header: bytes = b""
    """Data that applies to all chunks: the first line of a CSV file, the schema of others."""


def is_skipping(damaged: str) -> bool:
    """Whether damaged chunks are skipped, according to the setting for them.

    Raises:
        ConfigError: It is neither `raise` nor `skip`.
    """
    if damaged not in _POLICIES:
        problem = "data_plan.damaged must be raise or skip."
        hint = did_you_mean(damaged, _POLICIES)
        raise ConfigError(problem, received={"data_plan.damaged": damaged}, hint=hint)
    return damaged == "skip"


def warn_skipped(path: str, part: str, problem: str) -> None:
    """Log that a damaged part of a file was skipped."""
    log.warning("%s: skipped %s: %s (data_plan.damaged=skip)", path, part, problem)


def holds_bytes(file: InputFile, chunk: ChunkInfo) -> bool:
    """Whether the payload of a chunk is unchanged; reads the whole chunk.

    Raises:
        DataError: The file cannot be read.
    """
    payload = file.read_at(chunk.payload_offset, num_bytes=chunk.compressed_bytes)
    return chunk.is_of(payload)


def sampled_checksum(file: InputFile) -> int:
    """Return the CRC-32 of a file up to 1 MiB; of 16 evenly spaced runs of 64 KiB if it is larger.

    Raises:
        DataError: The file cannot be read.
    """
    size = file.size_bytes
    if size <= _NUM_SAMPLES * _SAMPLE_BYTES:
        return zlib.crc32(file.read_at(0, num_bytes=size))
    checksum = 0
    for number in range(_NUM_SAMPLES):
        offset = (size - _SAMPLE_BYTES) * number // (_NUM_SAMPLES - 1)
        checksum = zlib.crc32(file.read_at(offset, num_bytes=_SAMPLE_BYTES), checksum)
    return checksum
