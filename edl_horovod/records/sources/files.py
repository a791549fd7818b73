"""The record format of files, by their names."""

from collections.abc import Sequence
from urllib.parse import urlsplit

from edl_horovod.errors import DataError
from edl_horovod.records.files.remote import is_remote
from edl_horovod.records.record_format import FileFormat
from edl_horovod.records.sources.table import file_format

__all__ = ["format_of"]

_COMPRESSED = (".gz", ".bz2", ".xz", ".zip", ".zst")


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
        if not name.endswith(suffix):
            continue
        inside = file_format(name.removesuffix(suffix))
        if not inside.has_compression:
            raise DataError(
                f"{path} is a compressed {inside.name} file, in which no record can be reached"
                " without reading all before it.",
                received={"path": path},
                cure="Unpack it, or make RecordIO files of it by edl prepare, which are"
                " compressed chunk by chunk.",
            )
    return file_format(name)
