"""The file format of MDS shards of MosaicML's Streaming."""

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
    from edl_horovod.records.sources import mds_shards

    layout = functools.partial(mds_shards.layout, selected=settings.columns)
    decode = ColumnFormat(layout, mds_shards.decode_chunk)
    return RecordFormat(
        FORMAT.name, mds_shards.read_chunks, decode, mds_shards.holds_chunk, content="samples"
    )


FORMAT = FileFormat(name="MDS", make=_make, no_skipping="they have no checksums")
