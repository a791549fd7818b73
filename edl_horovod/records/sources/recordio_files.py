"""The RecordIO file format."""

import functools

from edl_horovod.records.record_format import FileFormat, FormatSettings, RecordFormat

__all__ = ["FORMAT"]


def _make(settings: FormatSettings) -> RecordFormat:
    # Imported here: commands that only check the settings do not need NumPy or the codecs.
    from edl_horovod.records.sources.recordio_format import Scratch, decode_chunk
    from edl_horovod.records.sources.recordio_scan import holds_chunk, read_chunks

    max_bytes = settings.max_chunk_bytes
    scan = functools.partial(read_chunks, damaged=settings.damaged, max_chunk_bytes=max_bytes)
    decode = functools.partial(decode_chunk, max_chunk_bytes=max_bytes, scratch=Scratch())
    return RecordFormat(FORMAT.name, scan, decode, holds_chunk)


FORMAT = FileFormat(name="RecordIO", make=_make, has_compression=True)
