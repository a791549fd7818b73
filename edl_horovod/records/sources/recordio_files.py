"""RecordIO as a format of record files."""

import functools

from edl_horovod.records.record_format import FileFormat, RecordFormat

__all__ = ["FORMAT"]


def _make(*, damaged: str, csv_header: bool, max_chunk_bytes: int) -> RecordFormat:
    # Imported here: NumPy and the codecs are for those who read.
    from edl_horovod.records.sources.recordio_format import Scratch, decode_chunk
    from edl_horovod.records.sources.recordio_scan import holds_chunk, read_chunks

    scan = functools.partial(read_chunks, damaged=damaged, max_chunk_bytes=max_chunk_bytes)
    decode = functools.partial(decode_chunk, max_chunk_bytes=max_chunk_bytes, scratch=Scratch())
    return RecordFormat(FORMAT.name, scan, decode, holds_chunk)


FORMAT = FileFormat(name="RecordIO", make=_make)
