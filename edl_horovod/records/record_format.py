"""The seam between files and records: how a file is cut into chunks, a chunk into records."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from edl_horovod.records.chunks import ChunkInfo, FileChunks
from edl_horovod.records.formats import FormatName
from edl_horovod.records.sources import csv_format
from edl_horovod.records.sources.recordio_format import Scratch, decode_chunk
from edl_horovod.records.sources.recordio_scan import read_chunks

__all__ = ["RecordFormat", "make_record_format"]


class Decode(Protocol):
    """From the bytes of a chunk to its records."""

    def __call__(self, payload: bytes, *, chunk: ChunkInfo, path: str) -> list[bytes]:
        """The records of a chunk; a DataError names the file and the place of what is damaged."""


@dataclass(frozen=True)
class RecordFormat:
    """One record format, as a job was told to read it."""

    name: FormatName
    scan: Callable[[str], FileChunks]
    """The chunks of the file with this path."""
    decode: Decode


def make_record_format(
    name: FormatName, *, damaged: str, csv_header: bool, max_chunk_bytes: int
) -> RecordFormat:
    """The functions of a format.

    Args:
        name: Which.
        damaged: `raise` at damage, or `skip` it.
        csv_header: Whether the first line of a CSV file names the columns.
        max_chunk_bytes: Most bytes of a RecordIO chunk before compression.
    """
    if name is FormatName.RECORDIO:
        scan = functools.partial(read_chunks, damaged=damaged, max_chunk_bytes=max_chunk_bytes)
        decode = functools.partial(decode_chunk, max_chunk_bytes=max_chunk_bytes, scratch=Scratch())
        return RecordFormat(name, scan, decode)
    scan_csv = functools.partial(csv_format.read_chunks, damaged=damaged, has_header=csv_header)
    return RecordFormat(name, scan_csv, csv_format.decode_chunk)
