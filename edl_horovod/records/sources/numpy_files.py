"""The file format of saved NumPy arrays."""

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
    # Imported here: commands that only check the settings do not need NumPy.
    from edl_horovod.records.sources.numpy_source import ArraySource

    return ArraySource(paths, columns=columns, folder=folder, cache_bytes=cache_bytes, tell=tell)


FORMAT = FileFormat(
    name="NumPy",
    open_source=_open,
    no_skipping="an array has at most one checksum, so its damaged records cannot be identified",
    has_compression=True,
)
