"""Data in files, given as paths, folders, globs and URLs."""

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple

from edl_horovod.errors import DataError
from edl_horovod.records.files.pool import file_state
from edl_horovod.records.files.remote import is_remote
from edl_horovod.records.record_format import FileFormat
from edl_horovod.records.source import (
    DataSettings,
    RecordSource,
    SourceKind,
    SourceRequest,
    refuse_skipping,
)
from edl_horovod.records.sources.formats import format_of
from edl_horovod.records.sources.patterns import expand, parts_of


class _Files(SourceKind):
    """Files of one record format."""

    def open(self, request: SourceRequest) -> RecordSource:
        """Index the files and open them."""
        settings = request.settings
        paths = expand(request.data)
        open_source = _format_of(paths, settings).open_source
        if open_source is not None:
            return open_source(paths, request)
        # Imported here: commands that only check the settings do not need NumPy.
        from edl_horovod.records.index import Index
        from edl_horovod.records.reader import Reader

        index = Index.of(paths, settings, folder=request.index_folder, tell=request.tell)
        return Reader(index, cache_bytes=request.cache_bytes)

    def check(self, datasets: Sequence[str], settings: DataSettings) -> None:
        """Check that the files exist and have one format."""
        sets = [expand(pattern) for pattern in datasets]
        _format_of([path for paths in sets for path in paths], settings)

    def state(self, data: str) -> str:
        """Return a digest of the files' paths, sizes, and modification times or ETags."""
        try:
            states = [[path, *astuple(file_state(path))] for path in expand(data)]
        except (DataError, OSError):
            return ""  # The files do not exist or cannot be read.
        return hashlib.sha256(json.dumps(states).encode()).hexdigest()

    def absolute(self, data: str, make_absolute: Callable[[str], str]) -> str:
        """Make each path of a list absolute."""
        parts = (part.strip() for part in data.split(","))
        return ",".join(make_absolute(part) for part in parts if part)

    def local_patterns(self, data: str) -> Iterator[str]:
        """Return the parts of a list that are not URLs."""
        return (part for part in parts_of(data) if not is_remote(part))


def _format_of(paths: Sequence[str], settings: DataSettings) -> FileFormat:
    """Return the common format of some files, after checking that it supports the settings."""
    file_format = format_of(paths)
    if file_format.why_not_skippable:
        refuse_skipping(f"{file_format.name} files", settings, why=file_format.why_not_skippable)
    return file_format


KIND = _Files()
