"""Files of records, as paths, folders, globs and URLs name them."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from edl_horovod.errors import DataError
from edl_horovod.records.files.local import expand, parts_of
from edl_horovod.records.files.remote import is_remote
from edl_horovod.records.record_format import FileFormat
from edl_horovod.records.source import DataSettings, RecordSource, SourceKind
from edl_horovod.records.sources.table import file_format

__all__ = ["KIND", "format_of"]

_COMPRESSED = (".gz", ".bz2", ".xz", ".zip", ".zst")


class _Files(SourceKind):
    """Files of one record format."""

    def open(
        self, data: str, settings: DataSettings, *, folder: Path | None, cache_bytes: int
    ) -> RecordSource:
        """Index the files and open a reader of them."""
        # Imported here: NumPy is for those who read.
        from edl_horovod.records.reader import Reader

        return Reader.open(
            data,
            damaged=settings.damaged,
            csv_header=settings.csv_header,
            max_chunk_bytes=settings.max_chunk_bytes,
            folder=folder,
            cache_bytes=cache_bytes,
        )

    def check(self, given: Sequence[str]) -> None:
        """Find the files, all of one format."""
        format_of([path for pattern in given for path in expand(pattern)])

    def absolute(self, data: str, make_absolute: Callable[[str], str]) -> str:
        """Make each path of a list absolute."""
        parts = (part.strip() for part in data.split(","))
        return ",".join(make_absolute(part) for part in parts if part)

    def local_patterns(self, data: str) -> Iterator[str]:
        """The parts of a list that are not URLs."""
        return (part for part in parts_of(data) if not is_remote(part))


KIND = _Files()


def format_of(paths: Sequence[str]) -> FileFormat:
    """The one format of some files, at least one, by their names.

    Raises:
        DataError: Their formats differ, or a file is compressed and its format has no chunks.
    """
    by_name: dict[str, tuple[str, FileFormat]] = {}
    for path in paths:
        found = _format_of_one(path)
        by_name.setdefault(found.name, (path, found))
    if len(by_name) > 1:
        received = ", ".join(f"{path} ({name})" for name, (path, _) in sorted(by_name.items()))
        raise DataError(
            "A job reads files of one record format only.",
            received=received,
            cure="Name files of one format, as in data='folder/*.csv'.",
        )
    ((_, only),) = by_name.values()
    return only


def _format_of_one(path: str) -> FileFormat:
    name = (urlsplit(path).path if is_remote(path) else path).lower()
    for suffix in _COMPRESSED:
        if name.endswith(suffix) and (inside := file_format(name.removesuffix(suffix))).is_text:
            raise DataError(
                f"{path} is a compressed {inside.name} file, in which no row can be reached"
                " without reading all before it.",
                received={"path": path},
                cure="Unpack it, or make RecordIO files of it by edl prepare, which are"
                " compressed chunk by chunk.",
            )
    return file_format(name)
