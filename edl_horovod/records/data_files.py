"""Files of records, as paths, folders, globs and URLs name them."""

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple

from edl_horovod.errors import DataError
from edl_horovod.records.files.local import file_state
from edl_horovod.records.files.remote import is_remote
from edl_horovod.records.record_format import FileFormat, FormatSettings
from edl_horovod.records.source import (
    DataSettings,
    JobFolders,
    RecordSource,
    SourceKind,
    refuse_skipping,
)
from edl_horovod.records.sources.files import format_of
from edl_horovod.records.sources.finding import expand, parts_of

__all__ = ["KIND"]


class _Files(SourceKind):
    """Files of one record format."""

    def open(
        self,
        data: str,
        settings: DataSettings,
        *,
        folders: JobFolders | None,
        cache_bytes: int,
        tell: Callable[[str], None] | None,
    ) -> RecordSource:
        """Index the files and open a reader of them."""
        paths = expand(data)
        folder = folders.index if folders is not None else None
        open_source = _format_of(paths, settings).open_source
        if open_source is not None:
            return open_source(
                paths,
                columns=settings.columns,
                folder=folder,
                cache_bytes=cache_bytes,
                tell=tell or _nobody,
            )
        # Imported here: NumPy is for those who read.
        from edl_horovod.records.index import Index
        from edl_horovod.records.reader import Reader

        how = FormatSettings(
            damaged=settings.damaged,
            csv_header=settings.csv_header,
            max_chunk_bytes=settings.max_chunk_bytes,
            columns=tuple(settings.columns),
        )
        return Reader(Index.of(paths, how, folder=folder, tell=tell), cache_bytes=cache_bytes)

    def check(self, given: Sequence[str], settings: DataSettings) -> None:
        """Find the files, all of one format."""
        sets = [expand(pattern) for pattern in given]
        found = _format_of([path for paths in sets for path in paths], settings)
        if found.check_together is not None:
            found.check_together(sets)

    def state(self, data: str) -> str:
        """A digest of the paths of the files, their sizes, and their times or ETags."""
        try:
            states = [[path, *astuple(file_state(path))] for path in expand(data)]
        except (DataError, OSError):
            return ""  # There are no such files.
        return hashlib.sha256(json.dumps(states).encode()).hexdigest()

    def absolute(self, data: str, make_absolute: Callable[[str], str]) -> str:
        """Make each path of a list absolute."""
        parts = (part.strip() for part in data.split(","))
        return ",".join(make_absolute(part) for part in parts if part)

    def local_patterns(self, data: str) -> Iterator[str]:
        """The parts of a list that are not URLs."""
        return (part for part in parts_of(data) if not is_remote(part))


def _format_of(paths: Sequence[str], settings: DataSettings) -> FileFormat:
    """The one format of some files, which can follow the settings."""
    found = format_of(paths)
    if found.no_skipping:
        refuse_skipping(f"{found.name} files", settings, why=found.no_skipping)
    return found


def _nobody(_: str) -> None:
    """Told what is in the log alone."""


KIND = _Files()
