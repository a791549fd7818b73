"""The CSV file format."""

import functools

from edl_horovod.records.record_format import FileFormat, FormatSettings, RecordFormat

__all__ = ["FORMAT"]


def _make(settings: FormatSettings) -> RecordFormat:
    # Imported here: commands that only check the settings do not need NumPy.
    from edl_horovod.records.sources.csv_format import decode_chunk, holds_chunk, read_chunks

    scan = functools.partial(read_chunks, damaged=settings.damaged, has_header=settings.csv_header)
    return RecordFormat(FORMAT.name, scan, decode_chunk, holds_chunk)


FORMAT = FileFormat(name="CSV", make=_make)
