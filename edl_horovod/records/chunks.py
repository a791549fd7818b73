"""What all record formats share: a file is chunks, and a chunk can be read without the others."""

import enum
import zlib
from dataclasses import dataclass

from edl_horovod.errors import ConfigError, DataError, did_you_mean
from edl_horovod.records.files.input_file import InputFile

__all__ = [
    "ChunkInfo",
    "Codec",
    "FileChunks",
    "changed",
    "check_policy",
    "check_unchanged",
    "is_unchanged",
    "sampled_checksum",
]

_POLICIES = ("raise", "skip")
_NUM_SAMPLES = 16
_SAMPLE_BYTES = 1 << 16


class Codec(enum.IntEnum):
    """How the payload of a chunk is compressed, by its number in a RecordIO file."""

    NONE = 0
    SNAPPY = 1
    GZIP = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class ChunkInfo:
    """Where a chunk is and what is known of it before it is read."""

    number: int
    """Position of the chunk in its file, damaged chunks included."""
    offset: int
    """First byte of the chunk in the file."""
    checksum: int
    """CRC-32 of the payload as it is in the file."""
    codec: Codec
    compressed_bytes: int
    """Size of the payload as it is in the file."""
    num_records: int
    header_bytes: int = 0
    """Bytes before the payload; 0 where the format has no headers."""

    @property
    def payload_offset(self) -> int:
        """First byte of the payload in the file."""
        return self.offset + self.header_bytes

    @property
    def end_offset(self) -> int:
        """First byte after the chunk."""
        return self.payload_offset + self.compressed_bytes


@dataclass(frozen=True, kw_only=True)
class FileChunks:
    """The chunks of a file that can be read, and what had to be left out."""

    path: str
    size_bytes: int
    chunks: tuple[ChunkInfo, ...]
    skipped_chunks: int = 0
    """Damaged stretches left out; one without any sound header counts as one chunk."""
    skipped_records: int = 0
    """Records left out, as far as it can be told."""
    header: bytes = b""
    """What a file says of all its chunks: the first line of a CSV file, the schema of others."""


def check_policy(damaged: str) -> None:
    """Refuse what is no way to treat damaged chunks.

    Raises:
        ConfigError: Neither `raise` nor `skip`.
    """
    if damaged not in _POLICIES:
        raise ConfigError(
            "data_plan.damaged must be raise or skip.",
            received={"data_plan.damaged": damaged},
            cure=did_you_mean(damaged, _POLICIES),
        )


def is_unchanged(payload: bytes, chunk: ChunkInfo) -> bool:
    """Whether a payload has the size and the checksum that were found when it was scanned."""
    return len(payload) == chunk.compressed_bytes and zlib.crc32(payload) == chunk.checksum


def check_unchanged(payload: bytes, *, chunk: ChunkInfo, path: str) -> None:
    """Refuse a payload that is not as it was scanned.

    Raises:
        DataError: It differs.
    """
    if not is_unchanged(payload, chunk):
        raise changed(path, chunk)


def changed(path: str, chunk: ChunkInfo) -> DataError:
    """What is said of a chunk that is not as it was scanned."""
    return DataError(
        f"{path} has changed since the job indexed it.",
        received=f"other bytes at byte {chunk.offset}",
        cure="Start the job again, and leave its data alone meanwhile.",
    )


def sampled_checksum(file: InputFile) -> int:
    """CRC-32 of a file of up to 1 MiB; of a larger one that of 16 runs of 64 KiB, spread evenly.

    Raises:
        DataError: It cannot be read.
    """
    size = file.size_bytes
    if size <= _NUM_SAMPLES * _SAMPLE_BYTES:
        return zlib.crc32(file.read_at(0, num_bytes=size))
    checksum = 0
    for number in range(_NUM_SAMPLES):
        offset = (size - _SAMPLE_BYTES) * number // (_NUM_SAMPLES - 1)
        checksum = zlib.crc32(file.read_at(offset, num_bytes=_SAMPLE_BYTES), checksum)
    return checksum
