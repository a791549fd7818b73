"""The index of a data set: which record is where, over many sorted files."""

import hashlib
import json
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from edl_horovod.errors import DataError
from edl_horovod.records.chunks import ChunkInfo, FileChunks
from edl_horovod.records.files.local import expand
from edl_horovod.records.files.remote import is_remote, reconnect
from edl_horovod.records.record_format import RecordFormat
from edl_horovod.records.sources.files import format_of
from edl_horovod.records.sources.recordio_format import MAX_CHUNK_BYTES

__all__ = ["MAX_BLOCK_RECORDS", "Index", "Location"]

MAX_BLOCK_RECORDS = 4096
"""A chunk with more records is several blocks."""

_FILES_AT_ONCE = 16
"""Remote files that are scanned side by side: a scan mostly waits for answers."""

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

    record_format: RecordFormat
    """How chunks become records."""
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
    def open(
        cls,
        paths: str | Sequence[str],
        *,
        damaged: str = "raise",
        csv_header: bool = True,
        max_chunk_bytes: int = MAX_CHUNK_BYTES,
    ) -> Self:
        """Index files.

        Args:
            paths: A pattern for `expand`, or paths in any order; RecordIO files or CSV files.
            damaged: `raise` at a damaged chunk, or `skip` damaged chunks: then all data is read
                and checked here, so that every rank numbers the same records.
            csv_header: Whether the first line of each CSV file names the columns.
            max_chunk_bytes: Most bytes of a RecordIO chunk before compression.

        Raises:
            DataError: A file cannot be read or is damaged, formats or CSV headers differ, or there
                are no records at all.
        """
        if isinstance(paths, str):
            sorted_paths = expand(paths)
        else:
            sorted_paths = _sorted_once(paths)
            reconnect()  # As `expand` does: sizes that were listed long ago may be wrong by now.
        record_format = format_of(sorted_paths).make(
            damaged=damaged, csv_header=csv_header, max_chunk_bytes=max_chunk_bytes
        )
        files = _scan_all(sorted_paths, record_format)
        _check_headers(files)
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
            record_format=record_format,
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


def _scan_all(paths: Sequence[str], record_format: RecordFormat) -> tuple[FileChunks, ...]:
    if not any(map(is_remote, paths)):
        return tuple(map(record_format.scan, paths))
    with ThreadPoolExecutor(_FILES_AT_ONCE, thread_name_prefix="index") as pool:
        return tuple(pool.map(record_format.scan, paths))


def _check_headers(files: Sequence[FileChunks]) -> None:
    # A file without a line has no header, and no records that it could be wrong for.
    headed = [file for file in files if file.header]
    for file in headed:
        if file.header != headed[0].header:
            raise DataError(
                "The CSV files have different headers, so their columns would be mixed up."
                f" Received: {headed[0].path} starts with {headed[0].header[:80]!r}, {file.path}"
                f" with {file.header[:80]!r}. Give them the same columns in the same order, or set"
                " data_plan.csv_header=false if the files have no header line."
            )


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
    places = [_place(file.path) for file in files]
    above = os.path.commonpath([os.path.dirname(place) for place in places])
    digest = hashlib.sha256()
    for file, place in zip(files, places, strict=True):
        name = os.path.relpath(place, above)
        digest.update(json.dumps([name, file.size_bytes, len(file.chunks)]).encode())
        numbers = [(chunk.offset, chunk.checksum, chunk.num_records) for chunk in file.chunks]
        digest.update(np.array(numbers, dtype="<i8").tobytes())
        digest.update(file.header)
    return digest.hexdigest()[:32]


def _place(path: str) -> str:
    return os.path.abspath(f"/{path}" if is_remote(path) else path)
