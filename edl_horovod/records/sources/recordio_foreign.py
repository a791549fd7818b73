"""Say what a file is whose first chunk cannot be read, if it is none that is read here."""

import struct

from edl_horovod.errors import DataError
from edl_horovod.records.files.input_file import InputFile
from edl_horovod.records.sources.recordio_format import HEADER_BYTES, MAGIC_BYTES
from edl_horovod.records.sources.tfrecord_format import is_tfrecord

__all__ = ["refuse_foreign_file", "refuse_unknown_file"]

_HEADER = struct.Struct("<4sIIII")
_CODECS = (1, 2, 3)


def refuse_foreign_file(file: InputFile) -> None:
    """Raise if a file whose first chunk cannot be read is of a known format.

    Raises:
        DataError: It is a TFRecord file, or one that an old pyrecordio wrote.
    """
    if is_tfrecord(file):
        raise DataError(
            f"{file.path} is a TFRecord file, by whose name it should be a RecordIO file.",
            received={"path": file.path},
            cure="Let its name end in .tfrecord, or in .tfrecord-00000-of-00008 where it is one of"
            " several.",
        )
    if _has_old_layout(file):
        raise DataError(
            f"{file.path} was written by pyrecordio 0.0.1 to 0.0.4. Its chunks have the same magic"
            " number but another layout (header order, CRC-32C, raw snappy) that is not read here.",
            received={"path": file.path},
            cure="Read it with the pyrecordio that wrote it, and write the records again with"
            " edl_horovod.records.sources.recordio.Writer or pyrecordio>=0.0.6.",
        )


def refuse_unknown_file(file: InputFile) -> None:
    """Raise if a file whose first chunk cannot be read does not start as RecordIO files do.

    Raises:
        DataError: It starts with other bytes.
    """
    start = file.read_at(0, num_bytes=len(MAGIC_BYTES))
    if start != MAGIC_BYTES[: len(start)]:
        raise DataError(
            f"{file.path} is no RecordIO file: it starts with {start.hex(' ')}, expected"
            f" {MAGIC_BYTES.hex(' ')}.",
            received={"path": file.path},
            cure="Make RecordIO files of your own by edl prepare; the name of a CSV file ends in"
            " .csv. If this was a RecordIO file whose beginning is damaged,"
            " data_plan.damaged=skip leaves out what is damaged.",
        )


def _has_old_layout(file: InputFile) -> bool:
    """Whether it is of pyrecordio 0.0.1 to 0.0.4: same magic number, other header order."""
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
    # Two headers in a row are proof enough where the file is cut off.
    return offset == file.size_bytes or num_chunks > 1
