"""Tar shards of WebDataset as a format of record files."""

import functools

from edl_horovod.records.record_format import (
    ColumnFormat,
    FileFormat,
    FormatSettings,
    RecordFormat,
)

__all__ = ["FORMAT"]


def _make(settings: FormatSettings) -> RecordFormat:
    # Imported here: NumPy is for those who read.
    from edl_horovod.records.sources import webdataset

    layout = functools.partial(webdataset.layout, wanted=settings.columns)
    decode = ColumnFormat(layout, webdataset.decode_chunk)
    return RecordFormat(
        FORMAT.name, webdataset.read_chunks, decode, webdataset.holds_chunk, content="samples"
    )


FORMAT = FileFormat(
    name="WebDataset", make=_make, no_skipping="they hold no checksums of what is in a record"
)
