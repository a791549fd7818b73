"""The bytes of a RecordIO chunk: pure functions between records and one chunk of a file.

A file is zero or more chunks back to back. A chunk is a header of five little-endian uint32
(magic, checksum, codec, compressed bytes, number of records) and a payload. The checksum is the
CRC-32 of the compressed payload. The payload holds each record after its length, a uint32.

A few bytes can promise very many records, so a chunk is held against what may be in one before
and while it is unpacked. A file from somewhere else costs no more memory than one of ours.
"""

import gzip
import struct
import threading
import zlib
from collections.abc import Mapping

import cramjam
import numpy as np
from numpy.typing import NDArray

from edl_horovod.errors import DataError
from edl_horovod.records.chunks import ChunkInfo, Codec
from edl_horovod.records.flat_records import FlatRecords

__all__ = [
    "HEADER_BYTES",
    "MAGIC_BYTES",
    "MAX_CHUNK_BYTES",
    "MAX_RECORD_BYTES",
    "ChunkTooLargeError",
    "DamagedChunkError",
    "Scratch",
    "check_size",
    "decode_chunk",
    "encode_chunk",
    "max_chunk_records",
    "parse_header",
]

HEADER_BYTES = 20
MAGIC_BYTES = b"\x04\x03\x02\x01"
MAX_RECORD_BYTES = 32 << 20
"""A record must be smaller than this: the limit of the format's first implementation."""

_HEADER = struct.Struct("<4sIIII")
_LENGTH = struct.Struct("<I")

MAX_CHUNK_BYTES = MAX_RECORD_BYTES - 1 + _LENGTH.size
"""The largest chunk that the writer makes, before compression: one with a record of the largest
size. By default nothing larger is read."""

# A record takes some 50 bytes of memory beside its own, even an empty one.
_LEAST_RECORD_BYTES = 32

# The most that a codec can shrink a payload: a snappy copy turns 3 bytes into 64, a deflate stream
# reaches 1032 to 1. More records than such a payload has room for cannot be true.
_MAX_EXPANSION = {Codec.NONE: 1, Codec.SNAPPY: 22, Codec.GZIP: 1032}

_DECOMPRESS_INTO = {
    Codec.SNAPPY: cramjam.snappy.decompress_into,
    Codec.GZIP: cramjam.gzip.decompress_into,
}
# How cramjam says that a payload does not end where the room for it does.
_NO_ROOM = "failed to write whole buffer"


class DamagedChunkError(DataError):
    """A chunk, known by its number and its first byte in a file, cannot be read.

    `problem` is a clause; `lost_records` is how many its header promised, 0 if unknown.
    """

    kind = "damaged"
    _advice = (
        "Make the file again from its source, or set data_plan.damaged=skip to leave damaged"
        " chunks out (all data is then checked once, when the job starts)."
    )

    def __init__(
        self,
        problem: str,
        *,
        path: str,
        number: int,
        offset: int,
        lost_records: int = 0,
        received: Mapping[str, object] | str = "",
    ) -> None:
        super().__init__(
            f"{path}: chunk {number} at byte {offset} is {self.kind}: {problem}.",
            received=received,
            cure=self._advice,
        )
        self.problem = problem
        self.lost_records = lost_records


class ChunkTooLargeError(DamagedChunkError):
    """A chunk holds more than is accepted; what edl_horovod writes never does."""

    kind = "too large"
    _advice = (
        "edl_horovod writes no such chunks. If you trust whoever made the file, set"
        " data_plan.max_chunk_bytes to a larger number, or write its records again in smaller"
        " chunks. data_plan.damaged=skip leaves the chunk out."
    )


def max_chunk_records(max_chunk_bytes: int) -> int:
    """Most records of a chunk: each takes memory of its own, even an empty one."""
    return max_chunk_bytes // _LEAST_RECORD_BYTES


def encode_chunk(payload: bytes | bytearray, *, codec: Codec, num_records: int) -> bytes:
    """The chunk that holds a payload: records, each after its length."""
    match codec:
        case Codec.NONE:
            compressed = bytes(payload)
        case Codec.SNAPPY:
            compressed = bytes(cramjam.snappy.compress(payload))
        case Codec.GZIP:
            # A fixed time stamp: the same records always make the same file.
            compressed = gzip.compress(payload, compresslevel=6, mtime=0)
    checksum = zlib.crc32(compressed)
    return _HEADER.pack(MAGIC_BYTES, checksum, codec, len(compressed), num_records) + compressed


def parse_header(header: bytes, *, path: str, number: int, offset: int) -> ChunkInfo:
    """What a chunk's header says, once it is plausible; it is short where the file ends in it.

    Raises:
        DamagedChunkError: The header cannot be one of a chunk.
    """

    def damaged(problem: str) -> DamagedChunkError:
        return DamagedChunkError(problem, path=path, number=number, offset=offset)

    if len(header) < HEADER_BYTES:
        raise damaged(f"the file ends after {len(header)} of the {HEADER_BYTES} header bytes")
    magic, checksum, codec_number, compressed_bytes, num_records = _HEADER.unpack(header)
    if magic != MAGIC_BYTES:
        before = f", or chunk {number - 1} does not end where its header says" if number else ""
        raise damaged(f"it starts with {magic.hex(' ')}, expected {MAGIC_BYTES.hex(' ')}{before}")
    try:
        codec = Codec(codec_number)
    except ValueError as e:
        allowed = ", ".join(f"{c.value} ({c.name.lower()})" for c in Codec)
        raise damaged(f"its codec is {codec_number}, expected one of {allowed}") from e
    most = compressed_bytes * _MAX_EXPANSION[codec] // _LENGTH.size
    if not 0 < num_records <= most:
        raise damaged(f"its header says {num_records} records, expected 1 to {most}")
    return ChunkInfo(
        number=number,
        offset=offset,
        checksum=checksum,
        codec=codec,
        compressed_bytes=compressed_bytes,
        num_records=num_records,
        header_bytes=HEADER_BYTES,
    )


def check_size(chunk: ChunkInfo, *, max_chunk_bytes: int, path: str) -> None:
    """Refuse a chunk that holds too much by what its header says, before its payload is read.

    Raises:
        ChunkTooLargeError: There are too many bytes or records.
    """
    # What does not compress becomes larger by little, and no chunk becomes twice as large.
    most_bytes = max_chunk_bytes * (1 if chunk.codec is Codec.NONE else 2)
    most_records = max_chunk_records(max_chunk_bytes)
    if chunk.compressed_bytes > most_bytes:
        problem = f"its payload has {chunk.compressed_bytes} bytes, accepted are {most_bytes}"
    elif chunk.num_records > most_records:
        problem = (
            f"it has {chunk.num_records} records, accepted are {most_records}, one for each"
            f" {_LEAST_RECORD_BYTES} bytes of the setting"
        )
    else:
        return
    raise ChunkTooLargeError(
        problem,
        received={"data_plan.max_chunk_bytes": max_chunk_bytes},
        path=path,
        number=chunk.number,
        offset=chunk.offset,
        lost_records=chunk.num_records,
    )


class Scratch:
    """Memory to decompress into, used again by the same thread.

    The system hands out memory page by page, and for fresh pages that takes about as long as
    decompressing into them.
    """

    def __init__(self) -> None:
        self._of_thread = threading.local()

    def room(self, num_bytes: int) -> memoryview:
        """At least so much memory, valid until this thread asks again."""
        held: memoryview | None = getattr(self._of_thread, "held", None)
        if held is None or len(held) < num_bytes:
            held = self._of_thread.held = np.empty(num_bytes, dtype=np.uint8).data
        return held[:num_bytes]


def decode_chunk(
    payload: bytes,
    *,
    chunk: ChunkInfo,
    path: str,
    max_chunk_bytes: int = MAX_CHUNK_BYTES,
    scratch: Scratch | None = None,
) -> FlatRecords:
    """The records of a chunk, after its checksum was verified.

    Decompressing stops at `max_chunk_bytes`. Who decodes many chunks gives a `scratch`.

    Raises:
        DamagedChunkError: The payload is not what the header promises, or is too large.
    """
    try:
        if len(payload) != chunk.compressed_bytes:
            raise _PayloadError(
                f"the file ends after {len(payload)} of its {chunk.compressed_bytes} payload bytes"
            )
        found = zlib.crc32(payload)
        if found != chunk.checksum:
            raise _PayloadError(
                f"the checksum of its payload is {found:#010x}, expected {chunk.checksum:#010x}"
            )
        framed = _decompress(
            payload, codec=chunk.codec, max_bytes=max_chunk_bytes, scratch=scratch or Scratch()
        )
        return _split(framed, num_records=chunk.num_records)
    except _PayloadError as e:
        is_large = isinstance(e, _TooLarge)
        kind = ChunkTooLargeError if is_large else DamagedChunkError
        raise kind(
            str(e),
            received={"data_plan.max_chunk_bytes": max_chunk_bytes} if is_large else "",
            path=path,
            number=chunk.number,
            offset=chunk.offset,
            lost_records=chunk.num_records,
        ) from e


class _PayloadError(Exception):
    """What is wrong with a payload; `decode_chunk` adds where it is."""


class _TooLarge(_PayloadError):
    """The payload is larger than is accepted."""


def _decompress(compressed: bytes, *, codec: Codec, max_bytes: int, scratch: Scratch) -> bytes:
    if codec is Codec.NONE:
        return compressed
    decompress_into = _DECOMPRESS_INTO[codec]
    # The bound itself is the room: the size is known only by decompressing.
    room = scratch.room(min(len(compressed) * _MAX_EXPANSION[codec], max_bytes))
    try:
        num_bytes = decompress_into(compressed, room)
    except cramjam.DecompressionError as e:
        if len(room) == max_bytes and _NO_ROOM in str(e):
            raise _TooLarge(
                f"its payload of {len(compressed)} bytes decompresses to more than {max_bytes}"
                f" bytes (data_plan.max_chunk_bytes={max_bytes})"
            ) from e
        name = codec.name.lower()
        raise _PayloadError(f"its {name} payload cannot be decompressed: {e}") from e
    return bytes(room[:num_bytes])


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
    # Each length says where the next one is, which is nothing for whole arrays.
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
        raise _passes(number - 1, num_records) from e
    if end > size:
        raise _passes(num_records - 1, num_records)
    if end != size:
        raise _PayloadError(f"{size - end} bytes are left after its {num_records} records")
    return _flat(payload, np.array(ends))


def _flat(payload: bytes, ends: NDArray[np.int64]) -> FlatRecords:
    starts = np.empty_like(ends)
    starts[0] = _LENGTH.size
    np.add(ends[:-1], _LENGTH.size, out=starts[1:])
    return FlatRecords(payload, starts, ends)


def _passes(number: int, num_records: int) -> _PayloadError:
    return _PayloadError(f"record {number} of {num_records} passes the end of the payload")
