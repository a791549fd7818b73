"""The bytes of a RecordIO chunk: pure functions between records and one chunk of a file.

A file is zero or more chunks back to back. A chunk is a header of five little-endian uint32
(magic, checksum, codec, compressed bytes, number of records) and a payload. The checksum is the
CRC-32 of the compressed payload. The payload holds each record after its length, a uint32.
"""

import gzip
import struct
import threading
import zlib

import cramjam
import numpy as np

from edl_horovod.data.chunks import ChunkInfo, Codec
from edl_horovod.errors import DataError

__all__ = [
    "HEADER_BYTES",
    "MAGIC_BYTES",
    "MAX_PAYLOAD_BYTES",
    "MAX_RECORD_BYTES",
    "DamagedChunkError",
    "Scratch",
    "decode_chunk",
    "encode_chunk",
    "parse_header",
]

HEADER_BYTES = 20
MAGIC_BYTES = b"\x04\x03\x02\x01"
MAX_RECORD_BYTES = 32 << 20
"""A record must be smaller than this: the limit of the format's first implementation."""
MAX_PAYLOAD_BYTES = 1 << 30
"""A chunk whose payload is larger, compressed or not, is refused rather than held in memory."""

_HEADER = struct.Struct("<4sIIII")
_LENGTH = struct.Struct("<I")


# The most that a codec can shrink a payload: a snappy copy turns 3 bytes into 64, a deflate stream
# reaches 1032 to 1. More records than such a payload has room for cannot be true.
_MAX_EXPANSION = {Codec.NONE: 1, Codec.SNAPPY: 22, Codec.GZIP: 1032}


class DamagedChunkError(DataError):
    """A chunk cannot be read. `lost_records` is how many its header promised, 0 if unknown."""

    def __init__(
        self, problem: str, *, path: str, number: int, offset: int, lost_records: int = 0
    ) -> None:
        """Say what is wrong with which chunk.

        Args:
            problem: What was found and what was expected.
            path: The file.
            number: Position of the chunk in the file.
            offset: First byte of the chunk.
            lost_records: Number of records by the chunk's header.
        """
        super().__init__(
            f"{path}: chunk {number} at byte {offset} is damaged: {problem}."
            " Make the file again from its source, or set data_plan.damaged=skip to leave damaged"
            " chunks out (all data is then checked once, when the job starts)."
        )
        self.problem = problem
        self.lost_records = lost_records


def encode_chunk(payload: bytes | bytearray, *, codec: Codec, num_records: int) -> bytes:
    """The chunk that holds a payload.

    Args:
        payload: Each record after its length.
        codec: How to compress it.
        num_records: Number of records in the payload.
    """
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
    """What a chunk's header says, once it is plausible.

    Args:
        header: 20 bytes, or fewer if the file ends within them.
        path: The file, for the error.
        number: Position of the chunk in the file.
        offset: First byte of the header.

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
    if compressed_bytes > MAX_PAYLOAD_BYTES:
        raise damaged(f"its payload of {compressed_bytes} bytes is above {MAX_PAYLOAD_BYTES}")
    most = min(compressed_bytes * _MAX_EXPANSION[codec], MAX_PAYLOAD_BYTES) // _LENGTH.size
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


class Scratch:
    """Memory to decompress into, used again by the same thread.

    The system hands out memory page by page, and for fresh pages that takes about as long as
    decompressing into them.
    """

    def __init__(self) -> None:
        """Hold nothing yet."""
        self._of_thread = threading.local()

    def room(self, num_bytes: int) -> memoryview:
        """Some memory, valid until this thread asks again.

        Args:
            num_bytes: At least so much. What is never written to costs nothing.
        """
        held: memoryview | None = getattr(self._of_thread, "held", None)
        if held is None or len(held) < num_bytes:
            held = self._of_thread.held = np.empty(num_bytes, dtype=np.uint8).data
        return held[:num_bytes]


def decode_chunk(
    payload: bytes,
    *,
    chunk: ChunkInfo,
    path: str,
    max_bytes: int = MAX_PAYLOAD_BYTES,
    scratch: Scratch | None = None,
) -> list[bytes]:
    """The records of a chunk, after its checksum was verified.

    Args:
        payload: As it is in the file.
        chunk: What the chunk's header says.
        path: The file, for the error.
        max_bytes: Largest decompressed payload that is accepted, in bytes.
        scratch: For who decodes many chunks.

    Raises:
        DamagedChunkError: The payload is not what the header promises.
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
            payload, codec=chunk.codec, max_bytes=max_bytes, scratch=scratch or Scratch()
        )
        return _split(framed, num_records=chunk.num_records)
    except _PayloadError as e:
        raise DamagedChunkError(
            str(e),
            path=path,
            number=chunk.number,
            offset=chunk.offset,
            lost_records=chunk.num_records,
        ) from e


class _PayloadError(Exception):
    """What is wrong with a payload; `decode_chunk` adds where it is."""


def _decompress(
    compressed: bytes, *, codec: Codec, max_bytes: int, scratch: Scratch
) -> bytes | memoryview:
    payload: bytes | memoryview
    match codec:
        case Codec.NONE:
            payload = compressed
        case Codec.SNAPPY:
            payload = _unsnap(compressed, max_bytes=max_bytes, scratch=scratch)
        case Codec.GZIP:
            payload = _gunzip(compressed, max_bytes=max_bytes)
    if len(payload) > max_bytes:
        raise _PayloadError(f"its payload decompresses to more than {max_bytes} bytes")
    return payload


def _unsnap(compressed: bytes, *, max_bytes: int, scratch: Scratch) -> memoryview:
    # The bound itself is the room: the size is known only by decompressing.
    room = scratch.room(min(len(compressed) * _MAX_EXPANSION[Codec.SNAPPY], max_bytes + 1))
    try:
        num_bytes = cramjam.snappy.decompress_into(compressed, room)
    except cramjam.DecompressionError as e:
        limit = f" (at most {max_bytes} bytes are accepted)" if len(room) > max_bytes else ""
        raise _PayloadError(f"its snappy payload cannot be decompressed: {e}{limit}") from e
    return room[:num_bytes]


def _gunzip(compressed: bytes, *, max_bytes: int) -> bytes:
    members: list[bytes] = []
    num_bytes = 0
    rest = compressed
    while rest:
        member = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
        try:
            members.append(member.decompress(rest, max_bytes + 1 - num_bytes))
        except zlib.error as e:
            raise _PayloadError(f"its gzip payload cannot be decompressed: {e}") from e
        num_bytes += len(members[-1])
        if num_bytes > max_bytes:
            break
        if not member.eof:
            raise _PayloadError("its gzip payload ends too early")
        rest = member.unused_data
    return b"".join(members)


def _split(payload: bytes | memoryview, *, num_records: int) -> list[bytes]:
    size = len(payload)
    if size < num_records * _LENGTH.size:
        raise _PayloadError(f"its {size} payload bytes cannot hold {num_records} records")
    (first,) = _LENGTH.unpack_from(payload)
    stride = first + _LENGTH.size
    if first and stride * num_records == size:
        framed = np.ndarray(
            num_records, dtype=[("length", "<u4"), ("record", f"V{first}")], buffer=payload
        )
        if (framed["length"] == first).all():
            alike: list[bytes] = framed["record"].tolist()
            return alike
    whole = bytes(payload)  # Slices of bytes are made in half the time that views of them take.
    records: list[bytes] = []
    end = 0
    for number in range(num_records):
        start = end + _LENGTH.size
        if start > size:
            raise _PayloadError(f"its payload ends before record {number} of {num_records}")
        end = start + _LENGTH.unpack_from(whole, end)[0]
        if end > size:
            raise _PayloadError(f"record {number} of {num_records} passes the end of the payload")
        records.append(whole[start:end])
    if end != size:
        raise _PayloadError(f"{size - end} bytes are left after its {num_records} records")
    return records
