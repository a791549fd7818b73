"""The index of a data set: maps record ids to chunks over many sorted files."""

import bisect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from edl_horovod.errors import ConfigError, DataError
from edl_horovod.records.chunks import ChunkInfo
from edl_horovod.records.files.input_file import FileState
from edl_horovod.records.files.remote import reconnect
from edl_horovod.records.index_store import load_or_scan, states_of
from edl_horovod.records.index_tables import IndexedFile, IndexInputs, Tables, locate
from edl_horovod.records.layout import Layout
from edl_horovod.records.record_format import ColumnFormat, RecordFormat
from edl_horovod.records.source import FormatSettings, ignore_message
from edl_horovod.records.sources.formats import format_of
from edl_horovod.records.sources.patterns import expand
from edl_horovod.records.sources.recordio_format import MAX_CHUNK_BYTES

_CHUNK_SETTINGS = ("damaged", "csv_header", "max_chunk_bytes")
_Integers = NDArray[np.int64]


@dataclass(frozen=True)
class _Settings:
    """The settings of files that are read outside a job."""

    damaged: str
    csv_header: bool
    max_chunk_bytes: int
    columns: Sequence[str]


@dataclass(frozen=True, kw_only=True, eq=False)
class Index:
    """All records of a data set, numbered from 0 in the order of the sorted files.

    Chunks are numbered over all files, not counting damaged chunks. The arrays are read-only. Two
    indexes with the same fingerprint number the same records in the same way.
    """

    record_format: RecordFormat
    """How chunks become records."""
    tables: Tables
    versions: NDArray[Any] | None = None
    """`FileState.changed` of each file, for formats without checksums; else None."""
    layout: Layout | None = None
    """The columns of a record; None where records are bytes."""

    @classmethod
    def open(
        cls,
        paths: str | Sequence[str],
        *,
        damaged: str = "raise",
        csv_header: bool = True,
        max_chunk_bytes: int = MAX_CHUNK_BYTES,
        columns: Sequence[str] = (),
        folder: Path | None = None,
        tell: Callable[[str], None] = ignore_message,
    ) -> Self:
        """Index files: map a stored index of them, or scan them and store an index.

        Args:
            paths: A pattern for `expand`, or paths in any order; files of one format.
            damaged: `raise` at a damaged chunk, or `skip` damaged chunks: with `skip` all data is
                read and checked here, so that every rank numbers the same records.
            csv_header: Whether the first line of each CSV file names the columns.
            max_chunk_bytes: Most bytes of a RecordIO chunk before compression.
            columns: The columns to read, of a format that has columns; empty for all.
            folder: The job's folder, created if needed: the index is stored beside the files, or
                there and in the user's cache. None to store no index; an existing one is used.
            tell: Called with messages for the user: that files have changed since they were
                indexed, and every few seconds the progress of a scan.

        Raises:
            DataError: A file cannot be read or is damaged, formats or CSV headers differ, or there
                are no records at all.
        """
        if isinstance(paths, str):
            sorted_paths = expand(paths)
        else:
            sorted_paths = sorted(paths)
            if duplicates := {path for path, other in pairwise(sorted_paths) if path == other}:
                names = ", ".join(sorted(duplicates))
                problem = "A file is given twice."
                raise DataError(problem, received=names, hint="Give each file once.")
            reconnect()  # As in `expand`: sizes that were listed earlier may be outdated.
        settings = _Settings(damaged, csv_header, max_chunk_bytes, columns)
        return cls.of(sorted_paths, settings, folder=folder, tell=tell)

    @classmethod
    def of(
        cls,
        paths: Sequence[str],
        settings: FormatSettings,
        *,
        folder: Path | None = None,
        tell: Callable[[str], None] = ignore_message,
    ) -> Self:
        """Index files, given by the sorted paths that `expand` has just returned; see `open`.

        Raises:
            DataError: A file cannot be read or is damaged, formats or CSV headers differ, or there
                are no records at all.
        """
        file_format = format_of(paths)
        if file_format.make is None:
            problem = f"{file_format.name} files cannot be indexed, because they have no chunks."
            hint = "Open them with edl_horovod.records.job_data.open_source."
            raise DataError(problem, received={"path": paths[0]}, hint=hint)
        record_format = file_format.make(settings)
        facts = {"format": record_format.name}
        facts |= {name: getattr(settings, name) for name in _CHUNK_SETTINGS}
        if record_format.change_detection == "samples":
            facts["content"] = record_format.change_detection
        states = states_of(paths)
        inputs = IndexInputs(tuple(paths), states, facts)
        tables = load_or_scan(inputs, record_format, folder=folder, tell=tell)
        versions = None
        if states and record_format.change_detection != "checksums":
            # An array instead of the FileStates, which take 100 MB for a million pictures.
            changed = [state.changed for state in states]
            are_times = all(isinstance(version, int) for version in changed)
            # Checking a remote picture would cost a request for each read.
            if are_times or record_format.change_detection == "samples":
                versions = np.array(changed, dtype=np.int64 if are_times else object)
        decode = record_format.decode
        if isinstance(decode, ColumnFormat):
            layout = decode.layout(tables.files, settings.columns)
            return cls(record_format=record_format, tables=tables, versions=versions, layout=layout)
        if settings.columns:
            raise ConfigError(
                f"{record_format.name} files have no columns to select.",
                received={"data_plan.columns": ",".join(settings.columns)},
                hint="Remove the setting, and parse the records in create_dataset.",
            )
        _check_headers(tables.files)
        return cls(record_format=record_format, tables=tables, versions=versions)

    @property
    def files(self) -> tuple[IndexedFile, ...]:
        """The files, sorted by path."""
        return self.tables.files

    @property
    def num_records(self) -> int:
        """Number of records; ids go from 0 to `num_records - 1`."""
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
        """Hex digest of names, sizes, counts and checksums, independent of folder and times."""
        return self.tables.fingerprint

    @property
    def num_chunks(self) -> int:
        """Number of chunks of all files."""
        return len(self.tables.chunks)

    def chunk(self, chunk_number: int) -> ChunkInfo:
        """Return the location of a chunk in its file."""
        return self.tables.chunk(chunk_number)

    def locate(self, ids: Sequence[int] | NDArray[np.integer]) -> tuple[_Integers, _Integers]:
        """Return the chunk numbers of records, and their positions in those chunks.

        Raises:
            IndexError: A record id is out of range.
        """
        return locate(ids, self.tables.chunk_starts, self.num_records)

    def file_of_chunk(self, chunk_number: int) -> IndexedFile:
        """Return the file that holds a chunk."""
        return self.files[self._file_number(chunk_number)]

    def expected_state(self, chunk_number: int) -> FileState | None:
        """Return the state that a chunk's file must have when it is read; None if not checked."""
        if self.versions is None:
            return None
        number = self._file_number(chunk_number)
        return FileState(self.files[number].size_bytes, self.versions[number])

    def _file_number(self, chunk_number: int) -> int:
        return bisect.bisect_right(self.tables.file_ends, chunk_number)


def _check_headers(files: Sequence[IndexedFile]) -> None:
    # An empty file has no header; it has no records either.
    with_header = [file for file in files if file.header]
    for file in with_header:
        if file.header != with_header[0].header:
            raise DataError(
                "The CSV files have different headers, so their columns would be confused.",
                received=f"{with_header[0].path} starts with {with_header[0].header[:80]!r},"
                f" {file.path} with {file.header[:80]!r}",
                hint="Give them the same columns in the same order, or set"
                " data_plan.csv_header=false if the files have no header line.",
            )
