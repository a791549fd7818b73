"""The interface of record formats: how files become chunks, and chunks become records."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from edl_horovod.records.chunks import ChunkInfo, FileChunks
from edl_horovod.records.files.input_file import InputFile
from edl_horovod.records.layout import Layout
from edl_horovod.records.source import FormatSettings, RecordSource, SourceRequest

if TYPE_CHECKING:
    from edl_horovod.records.columns import ColumnChunk, FlatRecords
    from edl_horovod.records.index_tables import IndexedFile

__all__ = ["ChunkFormat", "ColumnFormat", "FileFormat", "FormatSettings", "RecordFormat"]


ChangeDetection = Literal["checksums", "samples", "time"]
"""How a change of a file's content is detected: by the checksums of its chunks; by samples of the
file and the time of its last change; or by that time alone."""


class Decode(Protocol):
    """Decodes the bytes of a chunk into its records."""

    def __call__(self, payload: bytes, *, chunk: ChunkInfo, path: str) -> "FlatRecords":
        """Return the records of a chunk.

        Raises:
            DataError: The chunk is damaged; names the file and the place.
        """


class DecodeColumns(Protocol):
    """Decodes the bytes of a chunk into its columns."""

    def __call__(
        self, payload: bytes, *, chunk: ChunkInfo, file: "IndexedFile", layout: Layout
    ) -> "ColumnChunk":
        """Return the columns of a layout.

        Raises:
            DataError: The chunk is damaged or does not fit the layout; names the file.
        """


@dataclass(frozen=True)
class ColumnFormat:
    """Reads the columns of a file format."""

    layout: Callable[[Sequence["IndexedFile"], Sequence[str]], Layout]
    """Returns the columns of files that `data_plan.columns` selects; raises DataError where files
    differ or cannot be read."""
    decode: DecodeColumns


class ChunkFormat(Protocol):
    """The part of a record format that an index needs."""

    @property
    def scan(self) -> Callable[[str], FileChunks]:
        """Returns the chunks of the file with a path."""

    @property
    def holds(self) -> Callable[[InputFile, ChunkInfo], bool]:
        """Returns whether a file still holds a chunk with this checksum; reads the minimum."""

    @property
    def change_detection(self) -> ChangeDetection:
        """How a change of a file's content is detected."""


@dataclass(frozen=True)
class RecordFormat:
    """A record format with the settings of a job applied."""

    name: str
    """The format's display name."""
    scan: Callable[[str], FileChunks]
    """Returns the chunks of the file with a path."""
    decode: Decode | ColumnFormat
    """Decodes chunks into records of bytes or into columns."""
    holds: Callable[[InputFile, ChunkInfo], bool]
    """Returns whether a file still holds a chunk with this checksum; reads the minimum."""
    change_detection: ChangeDetection = "checksums"
    """How a change of a file's content is detected."""


@dataclass(frozen=True, kw_only=True)
class FileFormat:
    """The description of a record format; importing it imports nothing heavy.

    Exactly one of `make` and `open_source` is set.
    """

    name: str
    """The format's display name."""
    make: Callable[[FormatSettings], RecordFormat] | None = None
    """Creates the record format for some settings; imports the libraries that read it, and raises
    MissingDependency if an extra is not installed."""
    open_source: Callable[[Sequence[str], SourceRequest], RecordSource] | None = None
    """Opens files, given by their sorted paths, whose records are not chunks of one file; raises
    DataError if they cannot be read, or cannot be read together."""
    why_not_skippable: str = ""
    """A clause that says why damaged records cannot be skipped; "" where they can."""
    has_compression: bool = False
    """Whether the format itself compresses; other compressed files allow no random access."""
