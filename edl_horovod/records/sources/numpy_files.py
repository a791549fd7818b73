"""Arrays that NumPy saved as a format of files."""

from collections.abc import Callable, Sequence
from pathlib import Path

from edl_horovod.records.record_format import FileFormat
from edl_horovod.records.source import RecordSource

__all__ = ["FORMAT"]


def _open(
    paths: Sequence[str],
    *,
    columns: Sequence[str],
    folder: Path | None,
    cache_bytes: int,
    tell: Callable[[str], None],
) -> RecordSource:
    # Imported here: NumPy is for those who read.
    from edl_horovod.records.sources.numpy_source import ArraySource

    return ArraySource(paths, columns=columns, folder=folder, cache_bytes=cache_bytes, tell=tell)


FORMAT = FileFormat(
    name="NumPy",
    open_source=_open,
    no_skipping="an array has one checksum or none, so no damaged part of it can be told",
    has_compression=True,
)
