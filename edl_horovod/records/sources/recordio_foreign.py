"""Explains why a file whose first chunk cannot be read is not a supported RecordIO file."""

import struct

from edl_horovod.errors import DataError
from edl_horovod.records.files.input_file import InputFile
from edl_horovod.records.sources.recordio_format import HEADER_BYTES, MAGIC_BYTES
from edl_horovod.records.sources.tfrecord_format import is_tfrecord

__all__ = ["refuse_foreign_file", "refuse_unknown_file"]

_HEADER = struct.Struct("<4sIIII")
_CODECS = (1, 2, 3)


def refuse_foreign_file(file: InputFile) -> None:
    """Refuse a file whose first chunk cannot be read if it has a known other format.

    Raises:
        DataError: It is a TFRecord file, or an old version of pyrecordio wrote it.
    """
    if is_tfrecord(file):
        raise DataError(
            f"{file.path} is a TFRecord file, but is named like a RecordIO file.",
            received={"path": file.path},
            hint="Rename it to end in .tfrecord, or in .tfrecord-00000-of-00008 if it is one of"
            " several shards.",
        )
    if _has_old_layout(file):
        raise DataError(
            f"{file.path} was written by pyrecordio 0.0.1 to 0.0.4. Its chunks have the same magic"
            " number but an unsupported layout (header order, CRC-32C, raw snappy).",
            received={"path": file.path},
            hint="Read it with the pyrecordio that wrote it, and write the records again with"
            " edl_horovod.records.sources.recordio.Writer or pyrecordio>=0.0.6.",
        )


def refuse_unknown_file(file: InputFile) -> None:
    """Refuse a file whose first chunk cannot be read if it does not begin like a RecordIO file.

    Raises:
        DataError: The file does not begin with the magic number.
    """
    start = file.read_at(0, num_bytes=len(MAGIC_BYTES))
    if start != MAGIC_BYTES[: len(start)]:
        raise DataError(
            f"{file.path} is not a RecordIO file: it starts with {start.hex(' ')}, expected"
            f" {MAGIC_BYTES.hex(' ')}.",
            received={"path": file.path},
            hint="Create RecordIO files with edl prepare, or rename a file of another format to its"
            " usual ending, such as .csv. If this is a RecordIO file whose start is damaged, set"
            " data_plan.damaged=skip to skip the damage.",
        )


def _has_old_layout(file: InputFile) -> bool:
    """Whether pyrecordio 0.0.1 to 0.0.4 wrote it: same magic number, different header order."""
    offset = num_chunks = 0
    while offset < file.size_bytes:
        header = file.read_at(offset, num_bytes=HEADER_BYTES)
        if len(header) < HEADER_BYTES:
            break
        magic, num_records, _, codec, compressed_bytes = _HEADER.unpack(header)
        if magic != MAGIC_BYTES or codec not in _CODECS or num_records == 0:
            break
        offset += HEADER_BYTES + compressed_bytes
        num_chunks += 1
    # Two valid headers in a row are sufficient evidence if the file is truncated.
    return offset == file.size_bytes or num_chunks > 1
