"""Write RecordIO files, and read their records by id.

with Writer("train.recordio") as writer:
    writer.write(b"a record")
with Reader.open("train-*.recordio") as reader:
    records = reader.read_batch([7, 0, 3])
"""

import contextlib
import os
import struct
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import Self

import numpy as np
from numpy.typing import NDArray

from edl_horovod.errors import ConfigError, DataError, OutputError, cure_of
from edl_horovod.records.chunks import ChunkInfo, Codec
from edl_horovod.records.files.input_file import Closeable
from edl_horovod.records.files.local import FilePool
from edl_horovod.records.index import Index
from edl_horovod.records.sources.recordio_format import (
    MAX_CHUNK_BYTES,
    MAX_RECORD_BYTES,
    decode_chunk,
    encode_chunk,
    max_chunk_records,
)
from edl_horovod.records.sources.recordio_scan import read_chunks

__all__ = [
    "ChunkInfo",
    "Codec",
    "Reader",
    "Writer",
    "decode_chunk",
    "memory_bytes",
    "read_chunks",
]

_LENGTH = struct.Struct("<I")
_MAX_RECORDS = max_chunk_records(MAX_CHUNK_BYTES)
# What CPython needs for a bytes object and its place in a list.
_OVERHEAD_BYTES = 41


class Writer:
    """Writes a file that appears under its name only when it is complete.

    Leaving the `with` by an exception leaves nothing behind and an older file untouched.
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
            path: The file to make or to replace; its folder must be there.
            codec: How chunks are compressed.
            chunk_bytes: Largest chunk before compression, in bytes; only a chunk of one record is
                larger. Small chunks make reading in shuffled order cheap.

        Raises:
            ConfigError: `chunk_bytes` is out of bounds.
            OutputError: The file cannot be made.
        """
        if not 1 <= chunk_bytes <= MAX_RECORD_BYTES:
            raise ConfigError(
                f"chunk_bytes must be 1 to {MAX_RECORD_BYTES}. Received: chunk_bytes={chunk_bytes}."
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
        """Add a record; an empty one is legal.

        Raises:
            DataError: The record is too large for the format.
            OutputError: The disk is full or gone.
        """
        if len(record) >= MAX_RECORD_BYTES:
            raise DataError(
                f"A RecordIO record must be smaller than {MAX_RECORD_BYTES} bytes."
                f" Received: {len(record)} bytes for {self.path}."
                " Store large data in several records."
            )
        if self._file.closed:
            raise ValueError(f"{self.path} is written to after it was closed.")
        framed = _LENGTH.pack(len(record)) + record
        is_full = len(self._payload) + len(framed) > self._chunk_bytes
        if self._num_records and (is_full or self._num_records == _MAX_RECORDS):
            self._write_chunk()
        self._payload += framed
        self._num_records += 1

    def close(self) -> None:
        """Complete the file and give it its name; a second call does nothing.

        Raises:
            OutputError: The disk is full or gone, or the name cannot be taken. Nothing is left.
        """
        if self._file.closed:
            return
        with contextlib.ExitStack() as if_it_fails:
            if_it_fails.callback(self._discard)
            if self._num_records:
                self._write_chunk()
            try:
                self._file.flush()
                os.fsync(self._file.fileno())
                self._file.close()
                os.replace(self._partial, self.path)
            except OSError as e:
                raise self._cannot_write(e) from e
            if_it_fails.pop_all()

    def abort(self) -> None:
        """Give up: nothing is left behind. Does nothing after `close`."""
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
        # A full disk fails once more on what is still buffered; the file goes anyway.
        with contextlib.suppress(OSError):
            self._file.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._partial)

    def _cannot_write(self, cause: OSError) -> OutputError:
        return OutputError(
            f"{self.path} cannot be written: {cause.strerror}. Received: path={self.path!r}."
            f" {cure_of(cause)}"
        )


class Reader(Closeable):
    """Reads records by id, one chunk at a time; for use by several threads.

    A chunk is read and decoded when one of its records is first asked for, then kept while there
    is room. Reading ids that are near each other is therefore cheap, in any order.
    """

    def __init__(self, index: Index, *, cache_bytes: int = 64 << 20) -> None:
        """Open no file yet.

        Args:
            index: The records.
            cache_bytes: Memory for decoded chunks, in bytes. The latest chunk is always kept.
        """
        self.index = index
        self._files = FilePool()
        self._cache = _ChunkCache(max_bytes=cache_bytes)

    @classmethod
    def open(
        cls,
        paths: str | Sequence[str],
        *,
        damaged: str = "raise",
        cache_bytes: int = 64 << 20,
        max_chunk_bytes: int = MAX_CHUNK_BYTES,
    ) -> Self:
        """Index files and read them.

        Args:
            paths: A pattern for `expand`, or paths.
            damaged: `raise` at a damaged chunk, or `skip` it.
            cache_bytes: Memory for decoded chunks, in bytes.
            max_chunk_bytes: Most bytes of a RecordIO chunk before compression.

        Raises:
            DataError: A file cannot be read or is damaged, or there are no records at all.
        """
        index = Index.open(paths, damaged=damaged, max_chunk_bytes=max_chunk_bytes)
        return cls(index, cache_bytes=cache_bytes)

    @property
    def num_records(self) -> int:
        """Number of records; ids go from 0 to one less."""
        return self.index.num_records

    @property
    def skipped_chunks(self) -> int:
        """Damaged chunks left out, with `damaged="skip"`."""
        return self.index.skipped_chunks

    @property
    def skipped_records(self) -> int:
        """Records left out with the damaged chunks, as far as their headers tell."""
        return self.index.skipped_records

    def read(self, record_id: int) -> bytes:
        """One record. Many are read faster by `read_batch`.

        Raises:
            DataError: The record's chunk cannot be read or is damaged.
            IndexError: There is no such record.
        """
        return self.read_batch([record_id])[0]

    def read_batch(self, ids: Sequence[int] | NDArray[np.integer]) -> list[bytes]:
        """The records with these ids, in this order; an id may be asked for twice.

        Raises:
            DataError: A chunk cannot be read or is damaged.
            IndexError: There is no such record.
        """
        chunk_numbers, slots = self.index.locate_batch(ids)
        held: dict[int, list[bytes]] = {}
        batch = []
        for chunk_number, slot in zip(chunk_numbers.tolist(), slots.tolist(), strict=True):
            records = held.get(chunk_number)
            if records is None:
                records = held[chunk_number] = self.read_chunk(chunk_number)
            batch.append(records[slot])
        return batch

    def read_chunk(self, chunk_number: int) -> list[bytes]:
        """The records of one chunk, known by its number over all files.

        Raises:
            DataError: It cannot be read or is damaged.
        """
        return self._cache.get(chunk_number, load=self._load_chunk)

    def __len__(self) -> int:
        return self.num_records

    def __iter__(self) -> Iterator[bytes]:
        for chunk_number in range(len(self.index.chunks)):
            yield from self.read_chunk(chunk_number)

    def close(self) -> None:
        """Close the files and free the cache; a second call does nothing."""
        self._files.close()
        self._cache.clear()

    def _load_chunk(self, chunk_number: int) -> list[bytes]:
        chunk = self.index.chunks[chunk_number]
        path = self.index.path_of_chunk(chunk_number)
        payload = self._files.read_at(
            path, offset=chunk.payload_offset, num_bytes=chunk.compressed_bytes
        )
        return self.index.record_format.decode(payload, chunk=chunk, path=path)


class _ChunkCache:
    """Least recently used chunks go first. A chunk that two threads want is loaded once."""

    def __init__(self, *, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._lock = threading.Lock()
        self._kept: OrderedDict[int, list[bytes]] = OrderedDict()
        self._loading: dict[int, Future[list[bytes]]] = {}

    def get(self, chunk_number: int, *, load: Callable[[int], list[bytes]]) -> list[bytes]:
        with self._lock:
            kept = self._kept.get(chunk_number)
            if kept is not None:
                self._kept.move_to_end(chunk_number)
                return kept
            loading = self._loading.get(chunk_number)
            if loading is None:
                mine = self._loading[chunk_number] = Future()
        if loading is not None:
            return loading.result()
        try:
            records = load(chunk_number)
        except BaseException as e:  # Handed to every thread that waits for this chunk, and raised.
            with self._lock:
                del self._loading[chunk_number]
            mine.set_exception(e)
            raise
        with self._lock:
            del self._loading[chunk_number]
            self._keep(chunk_number, records)
        mine.set_result(records)
        return records

    def clear(self) -> None:
        with self._lock:
            self._kept.clear()
            self._num_bytes = 0

    def _keep(self, chunk_number: int, records: list[bytes]) -> None:
        self._kept[chunk_number] = records
        self._num_bytes += memory_bytes(records)
        while self._num_bytes > self._max_bytes and len(self._kept) > 1:
            _, oldest = self._kept.popitem(last=False)
            self._num_bytes -= memory_bytes(oldest)


def memory_bytes(records: list[bytes]) -> int:
    """What records take in memory, in bytes."""
    return sum(map(len, records)) + _OVERHEAD_BYTES * len(records)
