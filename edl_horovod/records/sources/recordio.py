"""Files of RecordIO: written record by record, and scanned for their chunks.

with Writer("train.recordio") as writer:
    writer.write(b"a record")

A scan can skip damaged chunks. It refuses a file of another format, or of an old program, and gives
the reason.
"""

import contextlib
import functools
import os
import struct
from dataclasses import dataclass
from typing import Self

from edl_horovod.errors import ConfigError, DataError, OutputError, hint_of
from edl_horovod.records.chunks import ChunkInfo, Codec, FileChunks, is_skipping, warn_skipped
from edl_horovod.records.files.input_file import InputFile, ReadAhead, file_error
from edl_horovod.records.files.pool import open_input
from edl_horovod.records.files.remote import is_remote
from edl_horovod.records.record_format import RecordFormat
from edl_horovod.records.source import FormatSettings
from edl_horovod.records.sources.recordio_format import (
    HEADER_BYTES,
    MAGIC_BYTES,
    MAX_CHUNK_BYTES,
    MAX_RECORD_BYTES,
    ChunkPlace,
    DamagedChunkError,
    Scratch,
    check_size,
    decode_chunk,
    encode_chunk,
    max_chunk_records,
    parse_header,
)
from edl_horovod.records.sources.tfrecord_format import is_tfrecord

_SEARCH_BYTES = 1 << 20
# The chunks of pyrecordio 0.0.1 to 0.0.4.
_OLD_HEADER = struct.Struct("<4sIIII")
_OLD_CODECS = (1, 2, 3)
_LENGTH = struct.Struct("<I")
_MAX_RECORDS = max_chunk_records(MAX_CHUNK_BYTES)


def make(name: str, settings: FormatSettings) -> RecordFormat:
    """The format with the settings of a job."""
    max_bytes = settings.max_chunk_bytes
    scan = functools.partial(read_chunks, damaged=settings.damaged, max_chunk_bytes=max_bytes)
    decode = functools.partial(decode_chunk, max_chunk_bytes=max_bytes, scratch=Scratch())
    return RecordFormat(name, scan, decode, holds_chunk)


def read_chunks(
    path: str, *, damaged: str = "raise", max_chunk_bytes: int = MAX_CHUNK_BYTES
) -> FileChunks:
    """Find the chunks of a file.

    By default only the headers are read: that detects a truncated tail, but a damaged payload is
    detected only when it is read. With `skip` every chunk is decoded, so all returned chunks are
    intact. A file that was truncated exactly between two chunks looks like a shorter file.

    Args:
        path: A RecordIO file; an empty one is valid.
        damaged: `raise` at the first damaged chunk, or `skip` damaged chunks.
        max_chunk_bytes: Maximum size before compression; a larger chunk counts as damaged.

    Raises:
        DataError: The file cannot be opened, is damaged, or has another format.
    """
    skips_damage = is_skipping(damaged)
    with open_input(path) as input_file:
        file = ReadAhead(input_file) if is_remote(path) else input_file
        return _scan(_Source(file, max_chunk_bytes), skips_damage=skips_damage)


def holds_chunk(file: InputFile, chunk: ChunkInfo) -> bool:
    """Whether the header of a chunk, which includes the payload's checksum, is unchanged.

    Raises:
        DataError: The file cannot be read.
    """
    header = file.read_at(chunk.offset, num_bytes=HEADER_BYTES)
    try:
        return parse_header(header, ChunkPlace(file.path, chunk.number, chunk.offset)) == chunk
    except DamagedChunkError:
        return False


@dataclass(frozen=True)
class _Source:
    file: InputFile
    max_chunk_bytes: int

    def chunk_at(self, offset: int, *, number: int) -> ChunkInfo:
        """Parse the header of the chunk at an offset, without reading the payload."""
        file, place = self.file, ChunkPlace(self.file.path, number, offset)
        chunk = parse_header(file.read_at(offset, num_bytes=HEADER_BYTES), place)
        if chunk.end_offset > file.size_bytes:
            num_bytes = file.size_bytes - chunk.payload_offset
            part = f"{num_bytes} of its {chunk.compressed_bytes} payload bytes"
            problem = f"the file ends after {part}"
            raise DamagedChunkError.at(place, problem, lost_records=chunk.num_records)
        check_size(chunk, max_chunk_bytes=self.max_chunk_bytes, path=file.path)
        return chunk

    def verify(self, chunk: ChunkInfo) -> None:
        """Raise if the chunk's payload is damaged or too large."""
        payload = self.file.read_at(chunk.payload_offset, num_bytes=chunk.compressed_bytes)
        path, max_chunk_bytes = self.file.path, self.max_chunk_bytes
        decode_chunk(payload, chunk=chunk, path=path, max_chunk_bytes=max_chunk_bytes)


def _scan(source: _Source, *, skips_damage: bool) -> FileChunks:
    file = source.file
    chunks: list[ChunkInfo] = []
    skipped_chunks = skipped_records = offset = 0
    while offset < file.size_bytes:
        chunk: ChunkInfo | None = None
        try:
            chunk = source.chunk_at(offset, number=len(chunks) + skipped_chunks)
            if skips_damage:
                source.verify(chunk)
        except DamagedChunkError as e:
            if offset == 0:
                _refuse_other_format(file, skips_damage=skips_damage)
            if not skips_damage:
                raise
            end = _end_of_damage(source, offset, chunk=chunk)
            records = f"{e.lost_records or 'an unknown number of'} records"
            part = f"bytes {offset} to {end}, a {e.kind} chunk of {records}"
            warn_skipped(file.path, part, e.clause)
            skipped_chunks += 1
            skipped_records += e.lost_records
            offset = end
        else:
            chunks.append(chunk)
            offset = chunk.end_offset
    return FileChunks(file.path, file.size_bytes, tuple(chunks), skipped_chunks, skipped_records)


def _end_of_damage(source: _Source, offset: int, *, chunk: ChunkInfo | None) -> int:
    """Return the offset to continue at: the end in the damaged header, or the next intact chunk.

    The end in the header is tried first, because the payload of the damaged chunk may contain a
    whole RecordIO file, whose chunks are intact.
    """
    if chunk is not None:
        if chunk.end_offset == source.file.size_bytes:
            return chunk.end_offset
        try:
            return source.chunk_at(chunk.end_offset, number=chunk.number + 1).offset
        except DamagedChunkError:
            pass
    return _find_intact_chunk(source, offset + 1)


def _find_intact_chunk(source: _Source, offset: int) -> int:
    file = source.file
    while offset < file.size_bytes:
        block = file.read_at(offset, num_bytes=_SEARCH_BYTES)
        index = block.find(MAGIC_BYTES)
        while index >= 0:
            try:
                source.verify(source.chunk_at(offset + index, number=0))
            except DamagedChunkError:
                index = block.find(MAGIC_BYTES, index + 1)
            else:
                return offset + index
        if offset + len(block) >= file.size_bytes:
            break
        # A magic number may span two blocks.
        offset += len(block) - len(MAGIC_BYTES) + 1
    return file.size_bytes


def _refuse_other_format(file: InputFile, *, skips_damage: bool) -> None:
    """Refuse a file whose first chunk cannot be read if it has another format.

    Raises:
        DataError: It is a TFRecord file, or an old version of pyrecordio wrote it. Or damage is not
            skipped, and the file does not begin with the magic number.
    """
    if is_tfrecord(file):
        raise file_error(
            file.path,
            "is a TFRecord file, but is named like a RecordIO file.",
            hint="Rename it to end in .tfrecord, or in .tfrecord-00000-of-00008 if it is one of"
            " several shards.",
        )
    if _has_old_layout(file):
        raise file_error(
            file.path,
            "was written by pyrecordio 0.0.1 to 0.0.4. Its chunks have the same magic"
            " number but an unsupported layout (header order, CRC-32C, raw snappy).",
            hint="Read it with the pyrecordio that wrote it, and write the records again with"
            " edl_horovod.records.sources.recordio.Writer or pyrecordio>=0.0.6.",
        )

    start = file.read_at(0, num_bytes=len(MAGIC_BYTES))
    if not skips_damage and start != MAGIC_BYTES[: len(start)]:
        raise file_error(
            file.path,
            f"is not a RecordIO file: it starts with {start.hex(' ')}, expected"
            f" {MAGIC_BYTES.hex(' ')}.",
            hint="Create RecordIO files with edl prepare, or rename a file of another format to its"
            " usual ending, such as .csv. If this is a RecordIO file whose start is damaged, set"
            " data_plan.damaged=skip to skip the damage.",
        )


def _has_old_layout(file: InputFile) -> bool:
    """Whether pyrecordio 0.0.1 to 0.0.4 wrote it: same magic number, different header order."""
    offset = num_chunks = 0
    while offset < file.size_bytes:
        header = file.read_at(offset, num_bytes=HEADER_BYTES)
        if len(header) < HEADER_BYTES:
            break
        magic, num_records, _, codec, compressed_bytes = _OLD_HEADER.unpack(header)
        if magic != MAGIC_BYTES or codec not in _OLD_CODECS or num_records == 0:
            break
        offset += HEADER_BYTES + compressed_bytes
        num_chunks += 1
    # Two valid headers in a row are sufficient evidence if the file is truncated.
    return offset == file.size_bytes or num_chunks > 1


class Writer:
    """Writes a file that appears under its name only once it is complete.

    If an exception leaves the `with` block, no file is left and an older file is unchanged.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        codec: Codec = Codec.SNAPPY,
        chunk_bytes: int = 1 << 20,
    ) -> None:
        """Open a temporary file in the folder of `path`.

        Args:
            path: The file to create or to replace; its folder must exist.
            codec: Compression of the chunks.
            chunk_bytes: Maximum size of a chunk before compression, in bytes; only a chunk of a
                single record may be larger. Small chunks make reading in shuffled order cheap.

        Raises:
            ConfigError: `chunk_bytes` is out of range.
            OutputError: The file cannot be created.
        """
        if not 1 <= chunk_bytes <= MAX_RECORD_BYTES:
            problem = f"chunk_bytes must be 1 to {MAX_RECORD_BYTES}."
            raise ConfigError(problem, received={"chunk_bytes": chunk_bytes})
        self.path = os.fspath(path)
        self._codec = codec
        self._chunk_bytes = chunk_bytes
        self._payload = bytearray()
        self._num_records = 0
        folder, name = os.path.split(self.path)
        self._partial = os.path.join(folder, f".{name}.{os.getpid()}.partial")
        try:
            self._file = open(self._partial, "wb")  # noqa: SIM115 (closed by close and abort)
        except OSError as e:
            raise self._cannot_write(e) from e

    def write(self, record: bytes) -> None:
        """Add a record; it may be empty.

        Raises:
            DataError: The record is too large for the format.
            OutputError: The disk is full or unavailable.
        """
        if len(record) >= MAX_RECORD_BYTES:
            problem = f"A RecordIO record must be smaller than {MAX_RECORD_BYTES} bytes."
            hint = "Split large data into several records."
            raise DataError(problem, received=f"{len(record)} bytes for {self.path}", hint=hint)
        if self._file.closed:
            raise ValueError(f"{self.path} cannot be written after it was closed.")
        framed = _LENGTH.pack(len(record)) + record
        is_full = len(self._payload) + len(framed) > self._chunk_bytes
        if self._num_records and (is_full or self._num_records == _MAX_RECORDS):
            self._write_chunk()
        self._payload += framed
        self._num_records += 1

    def close(self) -> None:
        """Complete the file and rename it; a second call does nothing.

        Raises:
            OutputError: The disk is full or unavailable, or the file cannot be renamed. No file is
                left.
        """
        if self._file.closed:
            return
        with contextlib.ExitStack() as on_failure:
            on_failure.callback(self._discard)
            if self._num_records:
                self._write_chunk()
            try:
                self._file.flush()
                os.fsync(self._file.fileno())
                self._file.close()
                os.replace(self._partial, self.path)
            except OSError as e:
                raise self._cannot_write(e) from e
            on_failure.pop_all()

    def abort(self) -> None:
        """Discard the file; does nothing after `close`."""
        if not self._file.closed:
            self._discard()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            self.close()
        else:
            self.abort()

    def _write_chunk(self) -> None:
        chunk = encode_chunk(self._payload, codec=self._codec, num_records=self._num_records)
        try:
            self._file.write(chunk)
        except OSError as e:
            self._discard()
            raise self._cannot_write(e) from e
        self._payload.clear()
        self._num_records = 0

    def _discard(self) -> None:
        # On a full disk, flushing the buffer fails again; the file is removed anyway.
        with contextlib.suppress(OSError):
            self._file.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._partial)

    def _cannot_write(self, cause: OSError) -> OutputError:
        problem = f"{self.path} cannot be written: {cause.strerror}."
        return OutputError(problem, received={"path": self.path}, hint=hint_of(cause))
