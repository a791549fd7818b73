"""Encoding and decoding of RecordIO chunks, as pure functions.

A file is zero or more chunks back to back. A chunk is a header of five little-endian uint32
(magic, checksum, codec, compressed bytes, number of records) and a payload. The checksum is the
CRC-32 of the compressed payload. The payload holds each record after its length, a uint32.

A few bytes can claim to contain very many records, so a chunk is checked against limits before and
while it is decompressed. An untrusted file therefore cannot take more memory than our own files.
"""

import gzip
import struct
import threading
import zlib
from dataclasses import dataclass
from typing import Self

import cramjam
import numpy as np
from numpy.typing import NDArray

from edl_horovod.errors import DataError
from edl_horovod.records.chunks import ChunkInfo, Codec
from edl_horovod.records.columns import FlatRecords

HEADER_BYTES = 20
MAGIC_BYTES = b"\x04\x03\x02\x01"
MAX_RECORD_BYTES = 32 << 20
"""A record must be smaller than this: the limit of the format's first implementation."""

_HEADER = struct.Struct("<4sIIII")
_LENGTH = struct.Struct("<I")

MAX_CHUNK_BYTES = MAX_RECORD_BYTES - 1 + _LENGTH.size
"""The largest chunk that the writer creates, before compression: a chunk with one record of maximum
size. By default larger chunks are not read."""

# Even an empty record takes about 50 bytes of memory.
_MIN_RECORD_BYTES = 32

# The maximum compression ratio of each codec: a snappy copy turns 3 bytes into 64, a deflate stream
# reaches 1032 to 1. It limits the number of records that a payload can contain.
_MAX_EXPANSION = {Codec.NONE: 1, Codec.SNAPPY: 22, Codec.GZIP: 1032}

_COMPRESSIONS = {Codec.SNAPPY: cramjam.snappy, Codec.GZIP: cramjam.gzip}
# The message of cramjam if the output buffer is too small for the payload.
_BUFFER_TOO_SMALL = "failed to write whole buffer"


@dataclass(frozen=True)
class ChunkPlace:
    """The place of a chunk, for messages."""

    path: str
    number: int
    """Number of the chunk in the file."""
    offset: int
    """First byte of the chunk in the file."""


class DamagedChunkError(DataError):
    """A chunk cannot be read."""

    kind = "damaged"
    clause = ""
    """What is wrong, without the place."""
    lost_records = 0
    """The number of records in the chunk's header; 0 if unknown."""
    _advice = (
        "Create the file again from its source, or set data_plan.damaged=skip to skip damaged"
        " chunks (all data is then checked once, when the job starts)."
    )

    @classmethod
    def at(
        cls, place: ChunkPlace, clause: str, *, lost_records: int = 0, max_chunk_bytes: int = 0
    ) -> Self:
        """The error of a chunk."""
        error = cls(
            f"{place.path}: chunk {place.number} at byte {place.offset} is {cls.kind}: {clause}.",
            received={"data_plan.max_chunk_bytes": max_chunk_bytes} if max_chunk_bytes else "",
            hint=cls._advice,
        )
        error.clause, error.lost_records = clause, lost_records
        return error


class ChunkTooLargeError(DamagedChunkError):
    """A chunk exceeds the size limits, which files written by edl_horovod never do."""

    kind = "too large"
    _advice = (
        "edl_horovod does not write such chunks. If you trust the origin of the file, set"
        " data_plan.max_chunk_bytes to a larger number, or write its records again in smaller"
        " chunks. data_plan.damaged=skip skips the chunk."
    )


def max_chunk_records(max_chunk_bytes: int) -> int:
    """Return the maximum number of records of a chunk; even an empty record takes memory."""
    return max_chunk_bytes // _MIN_RECORD_BYTES


def encode_chunk(payload: bytes | bytearray, *, codec: Codec, num_records: int) -> bytes:
    """Encode a chunk from its payload, in which each record follows its length."""
    match codec:
        case Codec.NONE:
            compressed = bytes(payload)
        case Codec.SNAPPY:
            compressed = bytes(cramjam.snappy.compress(payload))
        case Codec.GZIP:
            # A fixed time stamp: the same records always result in the same file.
            compressed = gzip.compress(payload, compresslevel=6, mtime=0)
    checksum = zlib.crc32(compressed)
    return _HEADER.pack(MAGIC_BYTES, checksum, codec, len(compressed), num_records) + compressed


def parse_header(header: bytes, place: ChunkPlace) -> ChunkInfo:
    """Parse and check the header of a chunk; it has fewer bytes if the file ends within it.

    Raises:
        DamagedChunkError: The header is truncated or invalid.
    """
    if len(header) < HEADER_BYTES:
        problem = f"the file ends after {len(header)} of the {HEADER_BYTES} header bytes"
        raise DamagedChunkError.at(place, problem)
    magic, checksum, codec_number, compressed_bytes, num_records = _HEADER.unpack(header)
    if magic != MAGIC_BYTES:
        problem = f"it starts with {magic.hex(' ')}, expected {MAGIC_BYTES.hex(' ')}"
        if place.number:
            problem += f", or chunk {place.number - 1} does not end where its header says"
        raise DamagedChunkError.at(place, problem)
    try:
        codec = Codec(codec_number)
    except ValueError as e:
        allowed = ", ".join(f"{option.value} ({option.name.lower()})" for option in Codec)
        problem = f"its codec is {codec_number}, expected one of {allowed}"
        raise DamagedChunkError.at(place, problem) from e
    max_records = compressed_bytes * _MAX_EXPANSION[codec] // _LENGTH.size
    if not 0 < num_records <= max_records:
        problem = f"its header says {num_records} records, expected 1 to {max_records}"
        raise DamagedChunkError.at(place, problem)
    return ChunkInfo(
        number=place.number,
        offset=place.offset,
        checksum=checksum,
        codec=codec,
        compressed_bytes=compressed_bytes,
        num_records=num_records,
        header_bytes=HEADER_BYTES,
    )


def check_size(chunk: ChunkInfo, *, max_chunk_bytes: int, path: str) -> None:
    """Refuse a chunk whose header exceeds the limits, before its payload is read.

    Raises:
        ChunkTooLargeError: The chunk has too many bytes or records.
    """
    # Incompressible data grows a little when it is compressed, but never to twice its size.
    max_bytes = max_chunk_bytes * (1 if chunk.codec is Codec.NONE else 2)
    max_records = max_chunk_records(max_chunk_bytes)
    if chunk.compressed_bytes > max_bytes:
        problem = f"its payload has {chunk.compressed_bytes} bytes; the limit is {max_bytes}"
    elif chunk.num_records > max_records:
        limit = f"{max_records}, one for each {_MIN_RECORD_BYTES} bytes of the setting"
        problem = f"it has {chunk.num_records} records; the limit is {limit}"
    else:
        return
    place = ChunkPlace(path, chunk.number, chunk.offset)
    raise ChunkTooLargeError.at(
        place, problem, lost_records=chunk.num_records, max_chunk_bytes=max_chunk_bytes
    )


class Scratch:
    """A buffer for decompression that each thread reuses.

    The operating system allocates memory page by page, and allocating new pages takes about as long
    as decompressing into them.
    """

    def __init__(self) -> None:
        self._local = threading.local()

    def buffer(self, num_bytes: int) -> memoryview:
        """Return a buffer of this size, valid until the next call in this thread."""
        buffer: memoryview | None = getattr(self._local, "buffer", None)
        if buffer is None or len(buffer) < num_bytes:
            buffer = self._local.buffer = np.empty(num_bytes, dtype=np.uint8).data
        return buffer[:num_bytes]


def decode_chunk(
    payload: bytes,
    *,
    chunk: ChunkInfo,
    path: str,
    max_chunk_bytes: int = MAX_CHUNK_BYTES,
    scratch: Scratch | None = None,
) -> FlatRecords:
    """Verify the checksum of a chunk and decode its records.

    Decompression stops at `max_chunk_bytes`. Pass a `scratch` buffer to decode many chunks.

    Raises:
        DamagedChunkError: The payload does not match the header, or is too large.
    """
    try:
        if len(payload) != chunk.compressed_bytes:
            raise _PayloadError(
                f"the file ends after {len(payload)} of its {chunk.compressed_bytes} payload bytes"
            )
        checksum = zlib.crc32(payload)
        if checksum != chunk.checksum:
            raise _PayloadError(
                f"the checksum of its payload is {checksum:#010x}, expected {chunk.checksum:#010x}"
            )
        framed = _decompress(
            payload, codec=chunk.codec, max_bytes=max_chunk_bytes, scratch=scratch or Scratch()
        )
        return _split(framed, num_records=chunk.num_records)
    except _PayloadError as e:
        place, lost_records = ChunkPlace(path, chunk.number, chunk.offset), chunk.num_records
        if isinstance(e, _TooLarge):
            raise ChunkTooLargeError.at(
                place, str(e), lost_records=lost_records, max_chunk_bytes=max_chunk_bytes
            ) from e
        raise DamagedChunkError.at(place, str(e), lost_records=lost_records) from e


class _PayloadError(Exception):
    """A payload is invalid; the message is a clause, and `decode_chunk` adds the location."""


class _TooLarge(_PayloadError):
    """The decompressed payload exceeds the limit."""


def _decompress(compressed: bytes, *, codec: Codec, max_bytes: int, scratch: Scratch) -> bytes:
    if codec is Codec.NONE:
        return compressed
    # The buffer has the size of the limit: the actual size is unknown before decompression.
    buffer = scratch.buffer(min(len(compressed) * _MAX_EXPANSION[codec], max_bytes))
    try:
        num_bytes = _COMPRESSIONS[codec].decompress_into(compressed, buffer)
    except cramjam.DecompressionError as e:
        if len(buffer) == max_bytes and _BUFFER_TOO_SMALL in str(e):
            raise _TooLarge(
                f"its payload of {len(compressed)} bytes decompresses to more than {max_bytes}"
                f" bytes (data_plan.max_chunk_bytes={max_bytes})"
            ) from e
        name = codec.name.lower()
        raise _PayloadError(f"its {name} payload cannot be decompressed: {e}") from e
    return bytes(buffer[:num_bytes])


def _split(payload: bytes, *, num_records: int) -> FlatRecords:
    size = len(payload)
    if size < num_records * _LENGTH.size:
        raise _PayloadError(f"its {size} payload bytes cannot hold {num_records} records")
    (first,) = _LENGTH.unpack_from(payload)
    stride = first + _LENGTH.size
    if stride * num_records == size:
        lengths = np.ndarray(num_records, dtype="<u4", buffer=payload, strides=(stride,))
        if (lengths == first).all():
            return _flat(payload, np.arange(1, num_records + 1) * stride)
    # The position of each length depends on the one before, so arrays cannot be used.
    ends = []
    end = 0
    length_at = _LENGTH.unpack_from
    try:
        for _ in range(num_records):
            end += _LENGTH.size + length_at(payload, end)[0]
            ends.append(end)
    except struct.error as e:
        number = len(ends)
        if end <= size:
            raise _PayloadError(f"its payload ends before record {number} of {num_records}") from e
        raise _exceeds_payload(number - 1, num_records) from e
    if end > size:
        raise _exceeds_payload(num_records - 1, num_records)
    if end != size:
        raise _PayloadError(f"{size - end} bytes are left after its {num_records} records")
    return _flat(payload, np.array(ends))


def _flat(payload: bytes, ends: NDArray[np.int64]) -> FlatRecords:
    starts = np.empty_like(ends)
    starts[0] = _LENGTH.size
    np.add(ends[:-1], _LENGTH.size, out=starts[1:])
    return FlatRecords(payload, starts, ends)


def _exceeds_payload(number: int, num_records: int) -> _PayloadError:
    return _PayloadError(f"record {number} of {num_records} exceeds the end of the payload")
