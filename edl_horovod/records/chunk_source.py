"""A source whose records lie in chunks: each is decoded when it is first needed, and kept."""

import abc
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edl_horovod.records.columns import ColumnChunk, Values, empty, join
from edl_horovod.records.flat_records import FlatRecords
from edl_horovod.records.layout import Layout
from edl_horovod.records.source import RecordSource
from edl_horovod.records.tables import locate

__all__ = ["Chunk", "ChunkSource"]

Chunk = FlatRecords | ColumnChunk

_CHUNKS_AT_ONCE = 4
"""Chunks that are read and decoded side by side: a window of the shuffle begins with many."""
_Integers = NDArray[np.int64]


class ChunkSource(RecordSource):
    """Reads records by id; for use by several threads.

    A chunk is read and decoded when one of its records is first asked for, then kept while there
    is room: `cache_bytes`, but always for the latest chunk. Reading ids that are near each other
    is therefore cheap, in any order.
    """

    chunk_starts: _Integers
    """First record id of each chunk, shape (chunks,)."""

    def __init__(self, *, layout: Layout | None, num_records: int, cache_bytes: int) -> None:
        self.layout = layout
        self._num_records = num_records
        self._cache = _ChunkCache(max_bytes=cache_bytes)
        # Reading, verifying and decompressing leave the interpreter to others.
        self._threads = ThreadPoolExecutor(_CHUNKS_AT_ONCE, thread_name_prefix="read")

    @abc.abstractmethod
    def load_chunk(self, number: int) -> Chunk:
        """Read and decode a chunk; any thread may call it.

        Raises:
            DataError: It cannot be read or is damaged.
        """

    def read(self, ids: Sequence[int] | NDArray[np.integer]) -> Any:
        """The records with these ids, in this order; an id may be asked for twice.

        Returns:
            Their bytes in a list; of files with columns a list of each column's values.

        Raises:
            DataError: A chunk cannot be read or is damaged.
            IndexError: There is no such record.
        """
        found, slots = locate(ids, self.chunk_starts, self._num_records)
        chunk_numbers = found.tolist()
        chunks = self._read_chunks(list(dict.fromkeys(chunk_numbers)))
        if self.layout is not None:
            return _columns_of(chunks, found, slots) if chunks else empty(self.layout)
        return [
            chunks[chunk_number][slot]
            for chunk_number, slot in zip(chunk_numbers, slots.tolist(), strict=True)
        ]

    def read_chunk(self, number: int) -> Any:
        """The records of one chunk.

        Returns:
            `FlatRecords`, or a `ColumnChunk` of files with columns.

        Raises:
            DataError: It cannot be read or is damaged.
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
        """The records of some chunks; what is not in memory is read and decoded side by side."""
        chunks: dict[int, Any] = dict(self._cache.held(numbers))
        missing = [number for number in numbers if number not in chunks]
        if len(missing) > 1:
            chunks.update(zip(missing, self._threads.map(self.read_chunk, missing), strict=True))
        elif missing:
            chunks[missing[0]] = self.read_chunk(missing[0])
        return chunks


def _columns_of(chunks: dict[int, Any], numbers: _Integers, slots: _Integers) -> list[Values]:
    """The columns of records, each known by its chunk and its place in that."""
    places = {number: np.flatnonzero(numbers == number) for number in chunks}
    parts = [chunks[number].take(slots[at]) for number, at in places.items()]
    return join(parts, np.argsort(np.concatenate(list(places.values()))))


class _ChunkCache:
    """Least recently used chunks go first. A chunk that two threads want is loaded once."""

    def __init__(self, *, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._lock = threading.Lock()
        self._chunks: OrderedDict[int, Chunk] = OrderedDict()
        self._loading: dict[int, Future[Chunk]] = {}

    def held(self, chunk_numbers: Iterable[int]) -> dict[int, Chunk]:
        """Those of some chunks that are in memory."""
        chunks = {}
        with self._lock:
            for chunk_number in chunk_numbers:
                records = self._chunks.get(chunk_number)
                if records is not None:
                    self._chunks.move_to_end(chunk_number)
                    chunks[chunk_number] = records
        return chunks

    def get(self, chunk_number: int, *, load: Callable[[int], Chunk]) -> Chunk:
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

    def _keep(self, chunk_number: int, records: Chunk) -> None:
        self._chunks[chunk_number] = records
        self._num_bytes += records.held_bytes
        while self._num_bytes > self._max_bytes and len(self._chunks) > 1:
            _, oldest = self._chunks.popitem(last=False)
            self._num_bytes -= oldest.held_bytes
