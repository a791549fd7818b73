"""A file format: a record is a line of a file whose name ends in `.pairs`."""

import functools

from edl_horovod.records.chunks import holds_bytes
from edl_horovod.records.record_format import FileFormat, RecordFormat
from edl_horovod.records.sources import text_lines

PAIRS = FileFormat(
    name="pairs",
    make=lambda settings: RecordFormat(
        "pairs",
        functools.partial(text_lines.read_chunks, name="pairs"),
        text_lines.decode_chunk,
        holds_bytes,
    ),
)
