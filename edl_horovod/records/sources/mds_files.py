"""MDS shards of MosaicML's Streaming as a format of record files."""

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
    from edl_horovod.records.sources import mds_shards

    layout = functools.partial(mds_shards.layout, wanted=settings.columns)
    decode = ColumnFormat(layout, mds_shards.decode_chunk)
    return RecordFormat(
        FORMAT.name, mds_shards.read_chunks, decode, mds_shards.holds_chunk, content="samples"
    )


FORMAT = FileFormat(name="MDS", make=_make, no_skipping="they hold no checksums")
