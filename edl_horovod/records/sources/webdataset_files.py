"""The file format of WebDataset tar shards."""

import functools

from edl_horovod.records.record_format import (
    ColumnFormat,
    FileFormat,
    FormatSettings,
    RecordFormat,
)

__all__ = ["FORMAT"]


def _make(settings: FormatSettings) -> RecordFormat:
    # Imported here: commands that only check the settings do not need NumPy.
    from edl_horovod.records.sources import webdataset

    layout = functools.partial(webdataset.layout, selected=settings.columns)
    decode = ColumnFormat(layout, webdataset.decode_chunk)
    return RecordFormat(
        FORMAT.name, webdataset.read_chunks, decode, webdataset.holds_chunk, content="samples"
    )


FORMAT = FileFormat(
    name="WebDataset", make=_make, no_skipping="they have no checksums of their records"
)
