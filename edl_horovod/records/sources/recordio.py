"""Writing of RecordIO files.

with Writer("train.recordio") as writer:
    writer.write(b"a record")
"""

import contextlib
import os
import struct
from typing import Self

from edl_horovod.errors import ConfigError, DataError, OutputError, hint_of
from edl_horovod.records.chunks import ChunkInfo, Codec
from edl_horovod.records.sources.recordio_format import (
    MAX_CHUNK_BYTES,
    MAX_RECORD_BYTES,
    decode_chunk,
    encode_chunk,
    max_chunk_records,
)
from edl_horovod.records.sources.recordio_scan import read_chunks

__all__ = ["ChunkInfo", "Codec", "Writer", "decode_chunk", "read_chunks"]

_LENGTH = struct.Struct("<I")
_MAX_RECORDS = max_chunk_records(MAX_CHUNK_BYTES)


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
            raise ConfigError(
                f"chunk_bytes must be 1 to {MAX_RECORD_BYTES}.",
                received={"chunk_bytes": chunk_bytes},
            )
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
            raise DataError(
                f"A RecordIO record must be smaller than {MAX_RECORD_BYTES} bytes.",
                received=f"{len(record)} bytes for {self.path}",
                hint="Split large data into several records.",
            )
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
        return OutputError(
            f"{self.path} cannot be written: {cause.strerror}.",
            received={"path": self.path},
            hint=hint_of(cause),
        )
