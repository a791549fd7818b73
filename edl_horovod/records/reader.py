"""Reads records of files by their ids.

with Reader.open("train-*.recordio") as reader:
    records = reader.read([7, 0, 3])
"""

from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from edl_horovod.records.chunk_source import Chunk, ChunkSource
from edl_horovod.records.files.pool import FilePool
from edl_horovod.records.index import Index
from edl_horovod.records.record_format import ColumnFormat

__all__ = ["Reader"]


class Reader(ChunkSource):
    """Reads records of indexed files by id."""

    def __init__(self, index: Index, *, cache_bytes: int = 64 << 20) -> None:
        num_records = index.num_records
        super().__init__(layout=index.layout, num_records=num_records, cache_bytes=cache_bytes)
        self.index = index
        self.block_starts = index.block_starts
        self.block_counts = index.block_counts
        self.chunk_starts = index.tables.chunk_starts
        self.fingerprint = index.fingerprint
        self._files = FilePool()

    @classmethod
    def open(
        cls, paths: str | Sequence[str], *, cache_bytes: int = 64 << 20, **index_options: Any
    ) -> Self:
        """Index files and open them; `index_options` are further arguments of `Index.open`.

        Raises:
            DataError: A file cannot be read or is damaged, or there are no records at all.
        """
        return cls(Index.open(paths, **index_options), cache_bytes=cache_bytes)

    def record_bytes(self) -> float:
        """Estimate the average size in memory from the compression ratio of the largest chunk."""
        packed = self.index.tables.chunks["compressed_bytes"]
        largest = int(packed.argmax())
        unpacked = self.read_chunk(largest).object_bytes
        ratio: float = unpacked / int(packed[largest])
        return int(packed.sum(dtype=np.int64)) * ratio / len(self)

    def describe(self) -> str:
        """Return the numbers of files, records and chunks, for the log."""
        index = self.index
        records = f"{index.num_records:,} records in {index.num_chunks:,} chunks"
        return f"{len(index.files):,} {index.record_format.name} files, {records}"

    def load_chunk(self, number: int) -> Chunk:
        """Read and decode a chunk, numbered over all files."""
        chunk = self.index.chunk(number)
        file = self.index.file_of_chunk(number)
        offset, num_bytes = chunk.payload_offset, chunk.compressed_bytes
        state = self.index.expected_state(number)
        payload = self._files.read_at(file.path, offset=offset, num_bytes=num_bytes, expected=state)
        decode = self.index.record_format.decode
        if isinstance(decode, ColumnFormat):
            assert self.layout is not None
            return decode.decode(payload, chunk=chunk, file=file, layout=self.layout)
        return decode(payload, chunk=chunk, path=file.path)

    def close(self) -> None:
        """Close the files and free the cache; a second call does nothing."""
        super().close()
        self._files.close()
