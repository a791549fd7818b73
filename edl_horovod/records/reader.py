"""Read records of files by their ids.

with Reader.open("train-*.recordio") as reader:
    records = reader.read([7, 0, 3])
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from edl_horovod.records.files.local import FilePool
from edl_horovod.records.flat_records import FlatRecords
from edl_horovod.records.index import Index
from edl_horovod.records.source import RecordSource

__all__ = ["Reader"]

_CHUNKS_AT_ONCE = 4
"""Chunks that are read and decoded side by side: a window of the shuffle begins with many."""


class Reader(RecordSource):
    """Reads records by id; for use by several threads.

    A chunk is read and decoded when one of its records is first asked for, then kept while there
    is room: `cache_bytes`, but always for the latest chunk. Reading ids that are near each other
    is therefore cheap, in any order.
    """

    def __init__(self, index: Index, *, cache_bytes: int = 64 << 20) -> None:
        self.index = index
        self.block_starts = index.block_starts
        self.block_counts = index.block_counts
        self.fingerprint = index.fingerprint
        self._files = FilePool()
        self._cache = _ChunkCache(max_bytes=cache_bytes)
        # Reading, verifying and decompressing leave the interpreter to others.
        self._threads = ThreadPoolExecutor(_CHUNKS_AT_ONCE, thread_name_prefix="read")

    @classmethod
    def open(
        cls, paths: str | Sequence[str], *, cache_bytes: int = 64 << 20, **how_to_read: Any
    ) -> Self:
        """Index files and read them; `how_to_read` are further arguments of `Index.open`.

        Raises:
            DataError: A file cannot be read or is damaged, or there are no records at all.
        """
        return cls(Index.open(paths, **how_to_read), cache_bytes=cache_bytes)

    def read(self, ids: Sequence[int] | NDArray[np.integer]) -> list[bytes]:
        """The records with these ids, in this order; an id may be asked for twice.

        Raises:
            DataError: A chunk cannot be read or is damaged.
            IndexError: There is no such record.
        """
        found, slots = self.index.locate(ids)
        chunk_numbers = found.tolist()
        chunks = self._read_chunks(list(dict.fromkeys(chunk_numbers)))
        return [
            chunks[chunk_number][slot]
            for chunk_number, slot in zip(chunk_numbers, slots.tolist(), strict=True)
        ]

    def record_bytes(self) -> float:
        """What a record takes in memory on average, told by how far the largest chunk unpacks."""
        packed = self.index.tables.chunks["compressed_bytes"]
        largest = int(packed.argmax())
        unpacked = self.read_chunk(largest).object_bytes
        ratio = unpacked / int(packed[largest])
        return int(packed.sum(dtype=np.int64)) * ratio / len(self)

    def describe(self) -> str:
        """Numbers of files, records and chunks."""
        index = self.index
        name = index.record_format.name
        return (
            f"{len(index.files):,} {name} files, {index.num_records:,} records in"
            f" {index.num_chunks:,} chunks"
        )

    def read_chunk(self, chunk_number: int) -> FlatRecords:
        """The records of one chunk, known by its number over all files.

        Raises:
            DataError: It cannot be read or is damaged.
        """
        return self._cache.get(chunk_number, load=self._load_chunk)

    def __len__(self) -> int:
        return self.index.num_records

    def __iter__(self) -> Iterator[bytes]:
        for chunk_number in range(self.index.num_chunks):
            yield from self.read_chunk(chunk_number)

    def close(self) -> None:
        """Close the files and free the cache; a second call does nothing."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._files.close()
        self._cache.clear()

    def _read_chunks(self, chunk_numbers: list[int]) -> dict[int, FlatRecords]:
        """The records of some chunks; what is not in memory is read and decoded side by side."""
        chunks = self._cache.held(chunk_numbers)
        missing = [number for number in chunk_numbers if number not in chunks]
        if len(missing) > 1:
            chunks.update(zip(missing, self._threads.map(self.read_chunk, missing), strict=True))
        elif missing:
            chunks[missing[0]] = self.read_chunk(missing[0])
        return chunks

    def _load_chunk(self, chunk_number: int) -> FlatRecords:
        chunk = self.index.chunk(chunk_number)
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
        self._chunks: OrderedDict[int, FlatRecords] = OrderedDict()
        self._loading: dict[int, Future[FlatRecords]] = {}

    def held(self, chunk_numbers: Iterable[int]) -> dict[int, FlatRecords]:
        """Those of some chunks that are in memory."""
        chunks = {}
        with self._lock:
            for chunk_number in chunk_numbers:
                records = self._chunks.get(chunk_number)
                if records is not None:
                    self._chunks.move_to_end(chunk_number)
                    chunks[chunk_number] = records
        return chunks

    def get(self, chunk_number: int, *, load: Callable[[int], FlatRecords]) -> FlatRecords:
        with self._lock:
            records = self._chunks.get(chunk_number)
            if records is not None:
                self._chunks.move_to_end(chunk_number)
                return records
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
            self._chunks.clear()
            self._num_bytes = 0

    def _keep(self, chunk_number: int, records: FlatRecords) -> None:
        self._chunks[chunk_number] = records
        self._num_bytes += records.held_bytes
        while self._num_bytes > self._max_bytes and len(self._chunks) > 1:
            _, oldest = self._chunks.popitem(last=False)
            self._num_bytes -= oldest.held_bytes
