"""Lines of text as a format of record files."""

import functools

from edl_horovod.records.record_format import FileFormat, FormatSettings, RecordFormat

__all__ = ["FORMAT"]


def _make(settings: FormatSettings) -> RecordFormat:
    # Imported here: NumPy is for those who read.
    from edl_horovod.records.sources.text_lines import decode_chunk, holds_chunk, read_chunks

    scan = functools.partial(read_chunks, name=FORMAT.name)
    return RecordFormat(FORMAT.name, scan, decode_chunk, holds_chunk)


FORMAT = FileFormat(name="text", make=_make, no_skipping="any line is a record")
