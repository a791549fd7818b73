"""A source whose records are stored in chunks, which are decoded on demand and cached."""

import abc
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edl_horovod.records.columns import ColumnChunk, FlatRecords, Values, empty, join
from edl_horovod.records.index_tables import locate
from edl_horovod.records.layout import Layout
from edl_horovod.records.source import RecordSource

Chunk = FlatRecords | ColumnChunk

_CHUNKS_AT_ONCE = 4
"""Chunks that are read and decoded concurrently; the start of a shuffle window needs many."""
_Integers = NDArray[np.int64]


class ChunkSource(RecordSource):
    """Reads records by id; thread-safe.

    A chunk is read and decoded when one of its records is first requested, then cached in up to
    `cache_bytes` of memory; the latest chunk is always cached. Reading nearby ids is therefore
    cheap, in any order.
    """

    chunk_starts: _Integers
    """First record id of each chunk, shape (chunks,)."""

    def __init__(self, *, layout: Layout | None, num_records: int, cache_bytes: int) -> None:
        self.layout = layout
        self._num_records = num_records
        self._cache = _ChunkCache(max_bytes=cache_bytes)
        # Threads help because reading, checksums and decompression release the interpreter lock.
        self._threads = ThreadPoolExecutor(_CHUNKS_AT_ONCE, thread_name_prefix="read")

    @abc.abstractmethod
    def load_chunk(self, number: int) -> Chunk:
        """Read and decode a chunk; thread-safe.

        Raises:
            DataError: The chunk cannot be read or is damaged.
        """

    def read(self, ids: Sequence[int] | NDArray[np.integer]) -> Any:
        """Return the records with these ids, in this order; ids may repeat.

        Returns:
            A list of the records' bytes; for files with columns, a list of each column's values.

        Raises:
            DataError: A chunk cannot be read or is damaged.
            IndexError: A record id is out of range.
        """
        chunk_of_record, slots = locate(ids, self.chunk_starts, self._num_records)
        chunk_numbers = chunk_of_record.tolist()
        chunks = self._read_chunks(list(dict.fromkeys(chunk_numbers)))
        if self.layout is not None:
            return _columns_of(chunks, chunk_of_record, slots) if chunks else empty(self.layout)
        return [
            chunks[chunk_number][slot]
            for chunk_number, slot in zip(chunk_numbers, slots.tolist(), strict=True)
        ]

    def read_chunk(self, number: int) -> Any:
        """Return the records of one chunk, from the cache if possible.

        Returns:
            `FlatRecords`, or a `ColumnChunk` for files with columns.

        Raises:
            DataError: The chunk cannot be read or is damaged.
        """
        return self._cache.get(number, load=self.load_chunk)

    def __len__(self) -> int:
        return self._num_records

    def __iter__(self) -> Iterator[bytes]:
        for number in range(len(self.chunk_starts)):
            yield from self.read_chunk(number)

    def close(self) -> None:
        """Free the cache; a second call does nothing."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._cache.clear()

    def _read_chunks(self, numbers: list[int]) -> dict[int, Any]:
        """Return the records of some chunks; read and decode missing ones concurrently."""
        chunks: dict[int, Any] = dict(self._cache.cached(numbers))
        missing = [number for number in numbers if number not in chunks]
        read_all = self._threads.map if len(missing) > 1 else map
        chunks.update(zip(missing, read_all(self.read_chunk, missing), strict=True))
        return chunks


def _columns_of(chunks: dict[int, Any], numbers: _Integers, slots: _Integers) -> list[Values]:
    """Return the columns of records, given the chunk and the slot of each."""
    positions = {number: np.flatnonzero(numbers == number) for number in chunks}
    parts = [chunks[number].take(slots[indexes]) for number, indexes in positions.items()]
    return join(parts, np.argsort(np.concatenate(list(positions.values()))))


class _ChunkCache:
    """A least-recently-used cache of chunks. Threads that request the same chunk load it once."""

    def __init__(self, *, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._lock = threading.Lock()
        self._chunks: OrderedDict[int, Chunk] = OrderedDict()
        self._loading: dict[int, Future[Chunk]] = {}

    def cached(self, chunk_numbers: Iterable[int]) -> dict[int, Chunk]:
        """Return the requested chunks that are in the cache."""
        with self._lock:
            present = [number for number in chunk_numbers if number in self._chunks]
            for chunk_number in present:
                self._chunks.move_to_end(chunk_number)
            return {number: self._chunks[number] for number in present}

    def get(self, chunk_number: int, *, load: Callable[[int], Chunk]) -> Chunk:
        with self._lock:
            if chunk_number in self._chunks:
                self._chunks.move_to_end(chunk_number)
                return self._chunks[chunk_number]
            loading = self._loading.get(chunk_number)
            if loading is None:
                future = self._loading[chunk_number] = Future()
        if loading is not None:
            return loading.result()
        try:
            future.set_result(load(chunk_number))
        except BaseException as e:  # Also raised in every thread that waits for this chunk.
            future.set_exception(e)
        with self._lock:
            del self._loading[chunk_number]
            if future.exception() is None:
                self._add(chunk_number, future.result())
        return future.result()

    def clear(self) -> None:
        with self._lock:
            self._chunks.clear()
            self._num_bytes = 0

    def _add(self, chunk_number: int, records: Chunk) -> None:
        self._chunks[chunk_number] = records
        self._num_bytes += records.held_bytes
        while self._num_bytes > self._max_bytes and len(self._chunks) > 1:
            _, oldest = self._chunks.popitem(last=False)
            self._num_bytes -= oldest.held_bytes
