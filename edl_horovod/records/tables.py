"""The tables of an index: the chunks of all files, and what follows from them."""

import hashlib
import itertools
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from edl_horovod.records.files.remote import is_remote

__all__ = ["CHUNK", "MAX_BLOCK_RECORDS", "IndexedFile", "Tables"]

MAX_BLOCK_RECORDS = 4096
"""A chunk with more records is several blocks."""

_CHUNKS_AT_ONCE = 1 << 14
"""A digest is taken of so many chunks at a time, which fit into a processor's cache."""

_Integers = NDArray[np.int64]

CHUNK = np.dtype(
    [
        ("offset", "<i8"),
        ("checksum", "<u4"),
        ("compressed_bytes", "<u4"),
        ("num_records", "<u4"),
        ("number", "<u4"),
        ("codec", "<u4"),
        ("header_bytes", "<u4"),
    ]
)
"""A row for each chunk; the columns are those of `ChunkInfo`."""


@dataclass(frozen=True, kw_only=True)
class IndexedFile:
    """A file of an index."""

    path: str
    size_bytes: int
    num_chunks: int
    """Chunks that can be read."""
    skipped_chunks: int
    """Damaged chunks left out, with `damaged="skip"`."""
    skipped_records: int
    """Records left out with the damaged chunks, as far as their headers tell."""
    header: bytes
    """The first line of a CSV file that has one; not a record."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Tables:
    """What an index holds; the arrays are read-only."""

    files: tuple[IndexedFile, ...]
    """The files, sorted by path."""
    chunks: NDArray[Any]
    """The chunks of all files, of type `CHUNK`."""
    chunk_starts: NDArray[np.int64]
    """First record id of each chunk."""
    block_starts: NDArray[np.int64]
    """First record id of each block: a chunk, or a part of a chunk with very many records."""
    block_counts: NDArray[np.int64]
    """Number of records of each block."""
    fingerprint: str
    """Differs where the records or their numbers do."""

    @classmethod
    def of(cls, files: Sequence[IndexedFile], chunks: NDArray[Any]) -> Self:
        """The tables of files, sorted by path, that have at least one chunk between them."""
        counts = chunks["num_records"].astype(np.int64)
        chunk_starts = np.cumsum(counts) - counts
        block_starts, block_counts = _blocks(chunk_starts, counts)
        for array in (chunks, chunk_starts, block_starts, block_counts):
            array.flags.writeable = False
        return cls(
            files=tuple(files),
            chunks=chunks,
            chunk_starts=chunk_starts,
            block_starts=block_starts,
            block_counts=block_counts,
            fingerprint=_fingerprint(files, chunks),
        )

    def check(self) -> None:
        """Refuse tables that no scan of files of these sizes can give.

        Raises:
            ValueError: What contradicts itself.
        """
        per_file = [file.num_chunks for file in self.files]
        if not all(isinstance(count, int) and count >= 0 for count in per_file):
            raise ValueError("a file has no valid number of chunks")
        if not len(self.chunks) or sum(per_file) != len(self.chunks):
            raise ValueError("its files and its chunks differ in number")
        if not self.chunks["num_records"].all():
            raise ValueError("a chunk has no records")
        self._check_places()
        again = type(self).of(self.files, self.chunks)
        for name in ("chunk_starts", "block_starts", "block_counts"):
            if not np.array_equal(getattr(self, name), getattr(again, name)):
                raise ValueError(f"its {name} do not fit its chunks")
        if self.fingerprint != again.fingerprint:
            raise ValueError("its fingerprint does not fit its chunks")

    def _check_places(self) -> None:
        offsets = self.chunks["offset"]
        sizes = self.chunks["header_bytes"].astype(np.int64)
        sizes += self.chunks["compressed_bytes"]
        if offsets.min() < 0 or not sizes.all():
            raise ValueError("a chunk begins before its file, or is empty")
        # Room up to the next chunk, or to the end of the file.
        room = np.empty_like(sizes)
        np.subtract(offsets[1:], offsets[:-1], out=room[:-1])
        for file, end in zip(self.files, self.file_ends, strict=True):
            if file.num_chunks:
                room[end - 1] = file.size_bytes - offsets[end - 1]
        if (room < sizes).any():
            raise ValueError("its chunks overlap or pass the end of a file")

    @cached_property
    def file_ends(self) -> list[int]:
        """For each file the number of the chunk after its last."""
        return list(itertools.accumulate(file.num_chunks for file in self.files))


def _blocks(chunk_starts: _Integers, chunk_counts: _Integers) -> tuple[_Integers, _Integers]:
    if chunk_counts.max() <= MAX_BLOCK_RECORDS:
        return chunk_starts, chunk_counts
    num_blocks = -(-chunk_counts // MAX_BLOCK_RECORDS)
    chunk_of = np.repeat(np.arange(len(chunk_counts)), num_blocks)
    first_block = np.cumsum(num_blocks) - num_blocks
    skipped = (np.arange(len(chunk_of)) - first_block[chunk_of]) * MAX_BLOCK_RECORDS
    counts = np.minimum(MAX_BLOCK_RECORDS, chunk_counts[chunk_of] - skipped)
    return chunk_starts[chunk_of] + skipped, counts


def _fingerprint(files: Sequence[IndexedFile], chunks: NDArray[Any]) -> str:
    """Digest of names, sizes, counts and checksums; the folder above all files is not in it."""
    places = [
        os.path.abspath(f"/{file.path}" if is_remote(file.path) else file.path) for file in files
    ]
    above = os.path.commonpath([os.path.dirname(place) for place in places])
    digest = hashlib.sha256()
    start = 0
    for file, place in zip(files, places, strict=True):
        name = os.path.relpath(place, above)
        digest.update(json.dumps([name, file.size_bytes, file.num_chunks]).encode())
        end = start + file.num_chunks
        for first in range(start, end, _CHUNKS_AT_ONCE):
            digest.update(_columns(chunks[first : min(first + _CHUNKS_AT_ONCE, end)]))
        digest.update(file.header)
        start = end
    return digest.hexdigest()[:32]


def _columns(chunks: NDArray[Any]) -> memoryview:
    columns = np.empty((len(chunks), 3), dtype="<i8")
    for column, name in enumerate(("offset", "checksum", "num_records")):
        columns[:, column] = chunks[name]
    return columns.data
