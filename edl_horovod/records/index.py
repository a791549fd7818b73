"""The index of a data set: which record is where, over many sorted files."""

import bisect
import operator
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from edl_horovod.errors import DataError
from edl_horovod.records import index_file
from edl_horovod.records.chunks import ChunkInfo, Codec, FileChunks
from edl_horovod.records.files.remote import is_remote, reconnect
from edl_horovod.records.record_format import RecordFormat
from edl_horovod.records.sources.files import format_of
from edl_horovod.records.sources.finding import expand
from edl_horovod.records.sources.recordio_format import MAX_CHUNK_BYTES
from edl_horovod.records.tables import CHUNK, IndexedFile, Tables

__all__ = ["Index"]

_FILES_AT_ONCE = 16
"""Remote files that are scanned side by side: a scan mostly waits for answers."""

_ROW = operator.attrgetter(*(CHUNK.names or ()))
_Integers = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, eq=False)
class Index:
    """All records of a data set, numbered from 0 in the order of the sorted files.

    A chunk is known by its number over all files, damaged chunks not counted. The arrays are
    read-only. Two indexes with the same fingerprint number the same records in the same way.
    """

    record_format: RecordFormat
    """How chunks become records."""
    tables: Tables

    @classmethod
    def open(
        cls,
        paths: str | Sequence[str],
        *,
        damaged: str = "raise",
        csv_header: bool = True,
        max_chunk_bytes: int = MAX_CHUNK_BYTES,
        folder: Path | None = None,
    ) -> Self:
        """Index files: map an index that was written for them as they are, or scan them.

        Args:
            paths: A pattern for `expand`, or paths in any order; RecordIO files or CSV files.
            damaged: `raise` at a damaged chunk, or `skip` damaged chunks: then all data is read
                and checked here, so that every rank numbers the same records.
            csv_header: Whether the first line of each CSV file names the columns.
            max_chunk_bytes: Most bytes of a RecordIO chunk before compression.
            folder: Where an index is kept for all processes that read these files; it is made if
                it is needed. None for no such place.

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
        settings = {
            "format": record_format.name,
            "damaged": damaged,
            "csv_header": csv_header,
            "max_chunk_bytes": max_chunk_bytes,
        }
        state = index_file.state_of(sorted_paths, settings)
        if state is None:  # They are few bytes, or not of this host.
            return cls(record_format=record_format, tables=_scan(sorted_paths, record_format))
        # Where `edl prepare` made the files, their index lies beside them.
        beside = Path(sorted_paths[0]).parent
        tables = index_file.load(state, beside)
        if tables is None and folder is not None:
            tables = index_file.load(state, folder) or _build(state, record_format, folder)
        if tables is None:
            tables = _scan(sorted_paths, record_format)
        return cls(record_format=record_format, tables=tables)

    @property
    def files(self) -> tuple[IndexedFile, ...]:
        """The files, sorted by path."""
        return self.tables.files

    @property
    def num_records(self) -> int:
        """Number of records; ids go from 0 to one less."""
        return int(self.block_starts[-1] + self.block_counts[-1])

    @property
    def block_starts(self) -> _Integers:
        """First record id of each block: a chunk, or a part of a chunk with very many records."""
        return self.tables.block_starts

    @property
    def block_counts(self) -> _Integers:
        """Number of records of each block."""
        return self.tables.block_counts

    @property
    def fingerprint(self) -> str:
        """Hex digest of names, sizes, counts and checksums, wherever the files are."""
        return self.tables.fingerprint

    @property
    def num_chunks(self) -> int:
        """Number of chunks of all files."""
        return len(self.tables.chunks)

    def chunk(self, chunk_number: int) -> ChunkInfo:
        """Where a chunk is in its file."""
        # One conversion of the whole row: this is done for each chunk that is read.
        offset, checksum, num_bytes, num_records, number, codec, header_bytes = self.tables.chunks[
            chunk_number
        ].item()
        return ChunkInfo(
            number=number,
            offset=offset,
            checksum=checksum,
            codec=Codec(codec),
            compressed_bytes=num_bytes,
            num_records=num_records,
            header_bytes=header_bytes,
        )

    def locate(
        self, record_ids: Sequence[int] | NDArray[np.integer]
    ) -> tuple[_Integers, _Integers]:
        """The chunk numbers of records, and their positions in those chunks.

        Raises:
            IndexError: There is no such record.
        """
        asked = np.asarray(record_ids)
        if asked.ndim != 1 or (asked.size and asked.dtype.kind not in "iu"):
            raise TypeError(
                "Record ids must be a flat sequence of integers, not an array of shape"
                f" {asked.shape} and dtype {asked.dtype}."
            )
        if asked.size and not 0 <= asked.min() <= asked.max() < self.num_records:
            raise IndexError(
                f"Record ids go from 0 to {self.num_records - 1}; these go from {asked.min()} to"
                f" {asked.max()}."
            )
        ids = asked.astype(np.int64)
        chunk_starts = self.tables.chunk_starts
        chunk_numbers = np.searchsorted(chunk_starts, ids, side="right") - 1
        return chunk_numbers, ids - chunk_starts[chunk_numbers]

    def path_of_chunk(self, chunk_number: int) -> str:
        """The file that holds a chunk."""
        return self.files[bisect.bisect_right(self.tables.file_ends, chunk_number)].path


def _sorted_once(paths: Sequence[str]) -> list[str]:
    twice = sorted({path for path in paths if paths.count(path) > 1})
    if twice:
        raise DataError("A file is given twice.", received=", ".join(twice), cure="Name it once.")
    return sorted(paths)


def _build(state: index_file.State, record_format: RecordFormat, folder: Path) -> Tables:
    """Scan files and keep their index, or take that of another process that did so meanwhile."""
    with index_file.building(folder):
        tables = index_file.load(state, folder)
        if tables is None:
            tables = _scan(state.paths, record_format)
            index_file.save(state, tables, folder)
        return tables


def _scan(paths: Sequence[str], record_format: RecordFormat) -> Tables:
    """The tables of files, made from the files themselves."""
    files: list[IndexedFile] = []
    parts: list[NDArray[Any]] = []
    for found in _scanned(paths, record_format):
        # A row of a table takes a tenth of the memory that a chunk's object takes.
        parts.append(np.array([_ROW(chunk) for chunk in found.chunks], dtype=CHUNK))
        files.append(
            IndexedFile(
                path=found.path,
                size_bytes=found.size_bytes,
                num_chunks=len(found.chunks),
                skipped_chunks=found.skipped_chunks,
                skipped_records=found.skipped_records,
                header=found.header,
            )
        )
    _check_headers(files)
    chunks = np.concatenate(parts)
    if not len(chunks):
        shown = ", ".join(paths[:3]) + (", ..." if len(paths) > 3 else "")
        skipped = sum(file.skipped_chunks for file in files)
        raise DataError(
            "There are no records in the data.",
            received=f"{len(paths)} files ({shown}), of which {skipped} damaged chunks were left"
            " out",
            cure="Check how they were made.",
        )
    return Tables.of(files, chunks)


def _scanned(paths: Sequence[str], record_format: RecordFormat) -> Iterator[FileChunks]:
    if not any(map(is_remote, paths)):
        yield from map(record_format.scan, paths)
        return
    with ThreadPoolExecutor(_FILES_AT_ONCE, thread_name_prefix="index") as pool:
        yield from pool.map(record_format.scan, paths)


def _check_headers(files: Sequence[IndexedFile]) -> None:
    # A file without a line has no header, and no records that it could be wrong for.
    headed = [file for file in files if file.header]
    for file in headed:
        if file.header != headed[0].header:
            raise DataError(
                "The CSV files have different headers, so their columns would be mixed up.",
                received=f"{headed[0].path} starts with {headed[0].header[:80]!r}, {file.path}"
                f" with {file.header[:80]!r}",
                cure="Give them the same columns in the same order, or set"
                " data_plan.csv_header=false if the files have no header line.",
            )
