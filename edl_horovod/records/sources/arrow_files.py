"""The Arrow IPC file format (Feather 2, Hugging Face's `datasets` on disk)."""

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
    from edl_horovod.records.sources import arrow_format as arrow

    layout = functools.partial(arrow.layout, selected=settings.columns)
    decode = ColumnFormat(layout, arrow.decode_chunk)
    return RecordFormat(
        FORMAT.name, arrow.read_chunks, decode, arrow.holds_chunk, content="samples"
    )


FORMAT = FileFormat(
    name="Arrow",
    make=_make,
    no_skipping="they have no checksums",
    has_compression=True,
)
