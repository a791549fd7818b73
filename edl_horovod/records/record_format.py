"""The seam between files and records: how a file is cut into chunks, a chunk into records."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from edl_horovod.records.chunks import ChunkInfo, FileChunks
from edl_horovod.records.files.input_file import InputFile
from edl_horovod.records.layout import Layout

if TYPE_CHECKING:
    from edl_horovod.records.columns import ColumnChunk
    from edl_horovod.records.flat_records import FlatRecords
    from edl_horovod.records.source import RecordSource
    from edl_horovod.records.tables import IndexedFile

__all__ = ["ChunkFormat", "Content", "ColumnFormat", "FileFormat", "FormatSettings", "RecordFormat"]


Content = Literal["checksums", "samples", "time"]
"""What tells whether files hold what they held: the checksums of their chunks; samples of each file
and the time of its last change; or that time alone."""


class Decode(Protocol):
    """From the bytes of a chunk to its records."""

    def __call__(self, payload: bytes, *, chunk: ChunkInfo, path: str) -> "FlatRecords":
        """The records of a chunk; a DataError names the file and the place of what is damaged."""


class DecodeColumns(Protocol):
    """From the bytes of a chunk to its columns."""

    def __call__(
        self, payload: bytes, *, chunk: ChunkInfo, file: "IndexedFile", layout: Layout
    ) -> "ColumnChunk":
        """The columns of a layout; a DataError names the file and what is wrong in it."""


@dataclass(frozen=True)
class ColumnFormat:
    """How chunks become columns."""

    layout: Callable[[Sequence["IndexedFile"]], Layout]
    """The columns of some files; a DataError says where files differ, or what cannot be read."""
    decode: DecodeColumns


class ChunkFormat(Protocol):
    """What an index must know of a format."""

    @property
    def scan(self) -> Callable[[str], FileChunks]:
        """The chunks of the file with this path."""

    @property
    def holds(self) -> Callable[[InputFile, ChunkInfo], bool]:
        """Whether a chunk with this checksum is still there, by the least that must be read."""

    @property
    def content(self) -> Content:
        """What tells whether files hold what they held."""


@dataclass(frozen=True)
class RecordFormat:
    """One record format, as a job was told to read it."""

    name: str
    """What people call the format."""
    scan: Callable[[str], FileChunks]
    """The chunks of the file with this path."""
    decode: Decode | ColumnFormat
    """How chunks become records: bytes, or columns."""
    holds: Callable[[InputFile, ChunkInfo], bool]
    """Whether a chunk with this checksum is still there, by the least that must be read for it."""
    content: Content = "checksums"
    """What tells whether files hold what they held."""


@dataclass(frozen=True, kw_only=True)
class FormatSettings:
    """The settings of `data_plan` that formats follow."""

    damaged: str
    csv_header: bool
    max_chunk_bytes: int
    columns: tuple[str, ...]
    """The columns that are read, in this order; empty for all of the files'."""


class MakeFormat(Protocol):
    """Imports what reads a format."""

    def __call__(self, settings: FormatSettings) -> RecordFormat:
        """The functions of a format.

        Raises:
            MissingDependency: The extra that it needs is not installed.
        """


class OpenSource(Protocol):
    """Imports what reads a format whose records are not chunks of one file."""

    def __call__(
        self,
        paths: Sequence[str],
        *,
        columns: Sequence[str],
        folder: Path | None,
        cache_bytes: int,
        tell: Callable[[str], None],
    ) -> "RecordSource":
        """A source of files, given by their sorted paths.

        Args:
            paths: Sorted paths.
            columns: The columns that are read, in this order; empty for all.
            folder: Of the job, for an index; None to keep none.
            cache_bytes: Memory for what was read and may be asked for again.
            tell: Called with what people should know.

        Raises:
            DataError: They cannot be read, or not together.
        """


@dataclass(frozen=True, kw_only=True)
class FileFormat:
    """What is known of a record format before any file is read; imports nothing heavy.

    It has either of `make` and `open_source`.
    """

    name: str
    """What people call the format."""
    make: MakeFormat | None = None
    open_source: OpenSource | None = None
    check_together: Callable[[Sequence[Sequence[str]]], None] | None = None
    """Refuses by a DataError data and validation data, as paths, that do not fit each other."""
    no_skipping: str = ""
    """Why nothing damaged can be left out of its files, a clause; "" where that is possible."""
    has_compression: bool = False
    """Whether it compresses by itself; else no record of a compressed file can be reached."""
