"""RecordIO as a format of record files."""

import functools

from edl_horovod.records.record_format import FileFormat, FormatSettings, RecordFormat

__all__ = ["FORMAT"]


def _make(settings: FormatSettings) -> RecordFormat:
    # Imported here: NumPy and the codecs are for those who read.
    from edl_horovod.records.sources.recordio_format import Scratch, decode_chunk
    from edl_horovod.records.sources.recordio_scan import holds_chunk, read_chunks

    most = settings.max_chunk_bytes
    scan = functools.partial(read_chunks, damaged=settings.damaged, max_chunk_bytes=most)
    decode = functools.partial(decode_chunk, max_chunk_bytes=most, scratch=Scratch())
    return RecordFormat(FORMAT.name, scan, decode, holds_chunk)


FORMAT = FileFormat(name="RecordIO", make=_make, has_compression=True)
