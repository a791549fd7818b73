"""The JSON lines file format."""

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
    from edl_horovod.records.sources import json_lines
    from edl_horovod.records.sources.text_lines import holds_chunk

    layout = functools.partial(json_lines.layout, selected=settings.columns)
    decode = ColumnFormat(layout, json_lines.decode_chunk)
    scan = functools.partial(json_lines.read_chunks, damaged=settings.damaged)
    return RecordFormat(FORMAT.name, scan, decode, holds_chunk)


FORMAT = FileFormat(name="JSON lines", make=_make)
