"""The index of a data set: which record is where, over many sorted files."""

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from edl_horovod.data.files import expand
from edl_horovod.data.recordio_format import ChunkInfo
from edl_horovod.data.recordio_scan import FileChunks, read_chunks
from edl_horovod.errors import DataError

__all__ = ["MAX_BLOCK_RECORDS", "Index", "Location", "expand"]

MAX_BLOCK_RECORDS = 4096
"""A chunk with more records is several blocks."""

_Integers = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Location:
    """Where a record is."""

    path: str
    chunk: ChunkInfo
    slot: int
    """Position of the record in its chunk."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Index:
    """All records of a data set, numbered from 0 in the order of the sorted files.

    A chunk is known by its number over all files, damaged chunks not counted. The arrays are
    read-only. Two indexes with the same fingerprint number the same records in the same way.
    """

    files: tuple[FileChunks, ...]
    """The files, sorted by path."""
    file_starts: _Integers
    """First record id of each file, and the number of records at the end."""
    chunks: tuple[ChunkInfo, ...]
    """The chunks of all files."""
    chunk_files: _Integers
    """Position in `files` of each chunk's file."""
    chunk_starts: _Integers
    """First record id of each chunk."""
    block_starts: _Integers
    """First record id of each block: a chunk, or a part of a chunk with very many records."""
    block_counts: _Integers
    """Number of records of each block."""
    num_records: int
    skipped_chunks: int
    skipped_records: int
    fingerprint: str
    """Hex digest of names, sizes, counts and checksums; the folder above all files is not in it."""

    @classmethod
    def open(cls, paths: str | Sequence[str], *, damaged: str = "raise") -> Self:
        """Index files.

        Args:
            paths: A pattern for `expand`, or paths of RecordIO files in any order.
            damaged: `raise` at a damaged chunk, or `skip` damaged chunks: then all data is read
                and checked here, so that every rank numbers the same records.

        Raises:
            DataError: A file cannot be read or is damaged, or there are no records at all.
        """
        sorted_paths = expand(paths) if isinstance(paths, str) else _sorted_once(paths)
        files = tuple(read_chunks(path, damaged=damaged) for path in sorted_paths)
        file_counts = np.array([file.num_records for file in files], dtype=np.int64)
        chunks = tuple(chunk for file in files for chunk in file.chunks)
        chunk_counts = np.array([chunk.num_records for chunk in chunks], dtype=np.int64)
        chunk_starts = np.cumsum(chunk_counts) - chunk_counts
        num_records = int(chunk_counts.sum())
        skipped_chunks = sum(file.skipped_chunks for file in files)
        if num_records == 0:
            raise _no_records(sorted_paths, skipped_chunks=skipped_chunks)
        block_starts, block_counts = _blocks(chunk_starts, chunk_counts)
        return cls(
            files=files,
            file_starts=_read_only(np.concatenate([[0], np.cumsum(file_counts)])),
            chunks=chunks,
            chunk_files=_read_only(
                np.repeat(np.arange(len(files)), [len(f.chunks) for f in files])
            ),
            chunk_starts=_read_only(chunk_starts),
            block_starts=_read_only(block_starts),
            block_counts=_read_only(block_counts),
            num_records=num_records,
            skipped_chunks=skipped_chunks,
            skipped_records=sum(file.skipped_records for file in files),
            fingerprint=_fingerprint(files),
        )

    @property
    def paths(self) -> tuple[str, ...]:
        """The sorted paths."""
        return tuple(file.path for file in self.files)

    @property
    def file_counts(self) -> _Integers:
        """Number of records of each file."""
        return np.diff(self.file_starts)

    def locate(self, record_id: int) -> Location:
        """Where a record is.

        Raises:
            IndexError: There is no such record.
        """
        chunk_numbers, slots = self.locate_batch([record_id])
        chunk_number = int(chunk_numbers[0])
        return Location(
            path=self.path_of_chunk(chunk_number),
            chunk=self.chunks[chunk_number],
            slot=int(slots[0]),
        )

    def locate_batch(
        self, record_ids: Sequence[int] | NDArray[np.integer]
    ) -> tuple[_Integers, _Integers]:
        """The chunk numbers of records, and their positions in those chunks.

        Raises:
            IndexError: There is no such record.
        """
        asked = np.asarray(record_ids)
        if asked.ndim != 1 or (asked.size and asked.dtype.kind not in "iu"):
            raise TypeError(
                "Record ids must be a flat sequence of integers."
                f" Received: dtype={asked.dtype}, shape={asked.shape}."
            )
        if asked.size and not 0 <= asked.min() <= asked.max() < self.num_records:
            raise IndexError(
                f"Record ids go from 0 to {self.num_records - 1}."
                f" Received: ids from {asked.min()} to {asked.max()}."
            )
        ids = asked.astype(np.int64)
        chunk_numbers = np.searchsorted(self.chunk_starts, ids, side="right") - 1
        return chunk_numbers, ids - self.chunk_starts[chunk_numbers]

    def path_of_chunk(self, chunk_number: int) -> str:
        """The file that holds a chunk."""
        return self.files[int(self.chunk_files[chunk_number])].path


def _sorted_once(paths: Sequence[str]) -> list[str]:
    twice = sorted({path for path in paths if paths.count(path) > 1})
    if twice:
        raise DataError(f"A file is given twice. Received: {', '.join(twice)}. Name it once.")
    return sorted(paths)


def _no_records(paths: Sequence[str], *, skipped_chunks: int) -> DataError:
    shown = ", ".join(paths[:3]) + (", ..." if len(paths) > 3 else "")
    return DataError(
        f"There are no records in the data. Received: {len(paths)} files ({shown}),"
        f" of which {skipped_chunks} damaged chunks were left out. Check how they were made."
    )


def _read_only(array: NDArray[np.integer]) -> _Integers:
    own = np.array(array, dtype=np.int64)
    own.flags.writeable = False
    return own


def _blocks(chunk_starts: _Integers, chunk_counts: _Integers) -> tuple[_Integers, _Integers]:
    num_blocks = -(-chunk_counts // MAX_BLOCK_RECORDS)
    chunk_of = np.repeat(np.arange(len(chunk_counts)), num_blocks)
    first_block = np.cumsum(num_blocks) - num_blocks
    skipped = (np.arange(len(chunk_of)) - first_block[chunk_of]) * MAX_BLOCK_RECORDS
    counts = np.minimum(MAX_BLOCK_RECORDS, chunk_counts[chunk_of] - skipped)
    return chunk_starts[chunk_of] + skipped, counts


def _fingerprint(files: Sequence[FileChunks]) -> str:
    places = [os.path.abspath(file.path) for file in files]
    above = os.path.commonpath([os.path.dirname(place) for place in places])
    digest = hashlib.sha256()
    for file, place in zip(files, places, strict=True):
        name = os.path.relpath(place, above)
        digest.update(json.dumps([name, file.size_bytes, len(file.chunks)]).encode())
        numbers = [(chunk.offset, chunk.checksum, chunk.num_records) for chunk in file.chunks]
        digest.update(np.array(numbers, dtype="<i8").tobytes())
    return digest.hexdigest()[:32]
