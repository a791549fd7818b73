"""Detection of the record format of files by their names."""

from collections.abc import Sequence
from urllib.parse import urlsplit

from edl_horovod.errors import DataError
from edl_horovod.records.files.remote import is_remote
from edl_horovod.records.record_format import FileFormat
from edl_horovod.records.sources.table import file_format

__all__ = ["format_of"]

_COMPRESSED = (".gz", ".bz2", ".xz", ".zip", ".zst")


def format_of(paths: Sequence[str]) -> FileFormat:
    """Return the common format of files, at least one, by their names.

    Raises:
        DataError: The formats differ, or a file is compressed in a way that prevents random access.
    """
    by_name: dict[str, tuple[str, FileFormat]] = {}
    for path in paths:
        path_format = _format_of_path(path)
        by_name.setdefault(path_format.name, (path, path_format))
    if len(by_name) > 1:
        received = ", ".join(f"{path} ({name})" for name, (path, _) in sorted(by_name.items()))
        raise DataError(
            "A job reads files of only one record format.",
            received=received,
            hint="Select files of one format, as in data='folder/*.csv'.",
        )
    ((_, common),) = by_name.values()
    return common


def _format_of_path(path: str) -> FileFormat:
    name = (urlsplit(path).path if is_remote(path) else path).lower()
    for suffix in _COMPRESSED:
        if not name.endswith(suffix):
            continue
        inner_format = file_format(name.removesuffix(suffix))
        if not inner_format.has_compression:
            raise DataError(
                f"{path} is a compressed {inner_format.name} file, which does not allow random"
                " access to its records.",
                received={"path": path},
                hint="Decompress it, or convert it with edl prepare to RecordIO files, which are"
                " compressed chunk by chunk.",
            )
    return file_format(name)
