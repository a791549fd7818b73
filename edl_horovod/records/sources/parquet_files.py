"""The Parquet file format."""

import functools

from edl_horovod.records.record_format import (
    ColumnFormat,
    FileFormat,
    FormatSettings,
    RecordFormat,
)
from edl_horovod.records.sources.arrow_library import need_pyarrow

__all__ = ["FORMAT"]


def _make(settings: FormatSettings) -> RecordFormat:
    need_pyarrow(FORMAT.name)
    # Imported here: commands that only check the settings do not need PyArrow.
    from edl_horovod.records.sources import parquet_format as parquet

    scan = functools.partial(parquet.read_chunks, damaged=settings.damaged)
    layout = functools.partial(parquet.layout, selected=settings.columns)
    decode = ColumnFormat(layout, parquet.decode_chunk)
    return RecordFormat(FORMAT.name, scan, decode, parquet.holds_chunk, content="samples")


FORMAT = FileFormat(name="Parquet", make=_make, has_compression=True)
