"""The seam between files and records: how a file is cut into chunks, a chunk into records."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from edl_horovod.records.chunks import ChunkInfo, FileChunks
from edl_horovod.records.files.input_file import InputFile

if TYPE_CHECKING:
    from edl_horovod.records.flat_records import FlatRecords

__all__ = ["FileFormat", "RecordFormat"]


class Decode(Protocol):
    """From the bytes of a chunk to its records."""

    def __call__(self, payload: bytes, *, chunk: ChunkInfo, path: str) -> "FlatRecords":
        """The records of a chunk; a DataError names the file and the place of what is damaged."""


@dataclass(frozen=True)
class RecordFormat:
    """One record format, as a job was told to read it."""

    name: str
    """What people call the format."""
    scan: Callable[[str], FileChunks]
    """The chunks of the file with this path."""
    decode: Decode
    holds: Callable[[InputFile, ChunkInfo], bool]
    """Whether a chunk with this checksum is still there, by the least that must be read for it."""


class MakeFormat(Protocol):
    """Imports what reads a format."""

    def __call__(self, *, damaged: str, csv_header: bool, max_chunk_bytes: int) -> RecordFormat:
        """The functions of a format; the arguments are the settings of `data_plan`."""


@dataclass(frozen=True, kw_only=True)
class FileFormat:
    """What is known of a record format before any file is read; imports nothing heavy."""

    name: str
    """What people call the format."""
    make: MakeFormat
    is_text: bool = False
    """Whether a file is plain text, whose rows cannot be reached where it is compressed."""
