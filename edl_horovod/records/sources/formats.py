"""The formats of data files, by the endings of their names; a new format needs an entry here.

The libraries that read a format are imported when its files are opened, so commands that only check
the settings need neither NumPy nor PyArrow.
"""

import functools
import importlib
import re
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from edl_horovod.errors import DataError, MissingDependency, how_to_install
from edl_horovod.extensions import Table
from edl_horovod.records.files.input_file import file_error
from edl_horovod.records.files.remote import is_remote
from edl_horovod.records.record_format import FileFormat, RecordFormat
from edl_horovod.records.source import FormatSettings

__all__ = [
    "FORMATS",
    "PICTURE_ENDINGS",
    "file_format",
    "folder_endings",
    "format_of",
    "has_ending",
    "without_compression",
]

PICTURE_ENDINGS = (".jpg", ".jpeg", ".png", ".gif", ".bmp")
"""Endings of image files, which a folder without other data files stands for."""
_COMPRESSED = (".gz", ".bz2", ".xz", ".zip", ".zst")
_PART_NUMBER = re.compile(r"-\d+-of-\d+$")
"""What programs add to the names of the parts of a file, as in `train.tfrecord-00000-of-00008`."""


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
        problem = "A job reads files of only one record format."
        hint = "Select files of one format, as in data='folder/*.csv'."
        raise DataError(problem, received=received, hint=hint)
    ((_, common),) = by_name.values()
    return common


def file_format(name: str) -> FileFormat:
    """Return the format of a file, given its path in lower case."""
    matching = (FORMATS[ending] for ending in FORMATS if has_ending(name, ending))
    return next(matching, _RECORDIO)


@functools.cache
def folder_endings() -> tuple[str, ...]:
    """Endings of the data files that a folder stands for; text files often describe other files."""
    return tuple(ending for ending in FORMATS if ending not in (".txt", *PICTURE_ENDINGS))


def has_ending(name: str, endings: str | tuple[str, ...]) -> bool:
    """Whether a file has one of the endings, before the number of a part and in any case."""
    return _PART_NUMBER.sub("", name).lower().endswith(endings)


def without_compression(name: str) -> str:
    """Return a file's name without the ending of a program that compresses files."""
    return name.rpartition(".")[0] if name.lower().endswith(_COMPRESSED) else name


def _format_of_path(path: str) -> FileFormat:
    name = (urlsplit(path).path if is_remote(path) else path).lower()
    if (inner_name := without_compression(name)) != name:
        inner_format = file_format(inner_name)
        if not inner_format.has_compression:
            raise file_error(
                path,
                f"is a compressed {inner_format.name} file, which does not allow random"
                " access to its records.",
                hint="Decompress it, or convert it with edl prepare to RecordIO files, which are"
                " compressed chunk by chunk.",
            )
    return file_format(name)


def _built_in(name: str, module: str, *, needs_pyarrow: bool = False, **facts: Any) -> FileFormat:
    """A format that the function `make` of a module beside this one creates."""

    def make(settings: FormatSettings) -> RecordFormat:
        try:
            if needs_pyarrow:
                importlib.import_module("pyarrow")
        except ImportError as e:
            problem = f"Reading {name} files needs a package that is not installed: {e}."
            hint = f"To install it where the job runs, {how_to_install('arrow')}"
            raise MissingDependency(problem, received={"format": name}, hint=hint) from e
        record_format: RecordFormat = _module(module).make(name, settings)
        return record_format

    return FileFormat(name=name, make=make, **facts)


def _module(name: str) -> Any:
    return importlib.import_module(f"{__package__}.{name}")


_RECORDIO = _built_in("RecordIO", "recordio", has_compression=True)
_TFRECORD = _built_in("TFRecord", "tfrecord_format")
_UNCHECKED = "they have no checksums"
_ARROW = _built_in(
    "Arrow", "arrow_format", needs_pyarrow=True, has_compression=True, why_not_skippable=_UNCHECKED
)
_PARQUET = _built_in("Parquet", "parquet_format", needs_pyarrow=True, has_compression=True)
_TAR_REASON = "they have no checksums of their records"
_JSON_LINES = _built_in("JSON lines", "json_lines", needs_pyarrow=True)
_NUMPY = FileFormat(
    name="NumPy",
    open_source=lambda paths, request: _module("numpy_source").ArraySource(paths, request),
    why_not_skippable="an array has at most one checksum, so its damaged records cannot be"
    " identified",
    has_compression=True,
)
_PICTURES = _built_in("picture", "image_folders", has_compression=True)

FORMATS: Table[FileFormat] = Table(
    "formats",
    {
        ".recordio": _RECORDIO,
        ".csv": _built_in("CSV", "csv_format"),
        ".tfrecord": _TFRECORD,
        ".tfrecords": _TFRECORD,
        ".parquet": _PARQUET,
        ".arrow": _ARROW,
        ".feather": _ARROW,
        ".jsonl": _JSON_LINES,
        ".ndjson": _JSON_LINES,
        ".tar": _built_in("WebDataset", "webdataset", why_not_skippable=_TAR_REASON),
        ".mds": _built_in("MDS", "mds_shards", why_not_skippable=_UNCHECKED),
        ".npy": _NUMPY,
        ".npz": _NUMPY,
        ".txt": _built_in("text", "text_lines", why_not_skippable="every line is a valid record"),
        **dict.fromkeys(PICTURE_ENDINGS, _PICTURES),
    },
)
"""The formats by the ending of file names; all other files are RecordIO."""
