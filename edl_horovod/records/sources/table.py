"""Which module reads what the setting `data` names. A new source is a module and a line here."""

import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from edl_horovod.records.files.names import without_part

if TYPE_CHECKING:
    from edl_horovod.records.record_format import FileFormat
    from edl_horovod.records.source import DataSettings, SourceKind

__all__ = [
    "FOLDER_ENDINGS",
    "FORMATS",
    "PICTURE_ENDINGS",
    "SCHEMES",
    "check_sources",
    "file_format",
    "kind_of",
]

SCHEMES = {
    "": "edl_horovod.records.data_files",
    "dataset": "edl_horovod.records.own_dataset",
}
"""Modules with a `KIND` by what stands before the first colon of `data`.

The empty one is for paths, and for URLs of file systems.
"""

FORMATS = {
    ".recordio": "edl_horovod.records.sources.recordio_files",
    ".csv": "edl_horovod.records.sources.csv_files",
    ".tfrecord": "edl_horovod.records.sources.tfrecord_files",
    ".tfrecords": "edl_horovod.records.sources.tfrecord_files",
    ".parquet": "edl_horovod.records.sources.parquet_files",
    ".arrow": "edl_horovod.records.sources.arrow_files",
    ".feather": "edl_horovod.records.sources.arrow_files",
    ".jsonl": "edl_horovod.records.sources.json_files",
    ".ndjson": "edl_horovod.records.sources.json_files",
    ".tar": "edl_horovod.records.sources.webdataset_files",
    ".mds": "edl_horovod.records.sources.mds_files",
    ".npy": "edl_horovod.records.sources.numpy_files",
    ".npz": "edl_horovod.records.sources.numpy_files",
    ".txt": "edl_horovod.records.sources.text_files",
}
"""Modules with a `FORMAT` by how the names of files end. Files of other names have the first."""

PICTURE_ENDINGS = (".jpg", ".jpeg", ".png", ".gif", ".bmp")
"""How the names of pictures end, which a folder without other data stands for."""

FORMATS |= dict.fromkeys(PICTURE_ENDINGS, "edl_horovod.records.sources.image_files")

FOLDER_ENDINGS = tuple(ending for ending in FORMATS if ending not in (".txt", *PICTURE_ENDINGS))
"""How the names of files end that a folder stands for: a text file may say what the others are."""


def kind_of(data: str) -> "SourceKind":
    """The kind of source that a job's `data` or `validation_data` names."""
    scheme = data[: data.find(":")] if ":" in data else ""
    kind: SourceKind = importlib.import_module(SCHEMES.get(scheme, SCHEMES[""])).KIND
    return kind


def check_sources(given: Sequence[str], settings: "DataSettings") -> None:
    """Find quickly what is wrong with a job's `data` and `validation_data`; "" is passed over.

    Raises:
        ConfigError: A setting means nothing for it.
        DataError: Something is not there, or cannot be read together.
    """
    by_kind: dict[SourceKind, list[str]] = {}
    for data in filter(None, given):
        by_kind.setdefault(kind_of(data), []).append(data)
    for kind, all_of_it in by_kind.items():
        kind.check(all_of_it, settings)


def file_format(name: str) -> "FileFormat":
    """The format of a file by its path in lower case."""
    whole = without_part(name)
    suffix = next((end for end in FORMATS if whole.endswith(end)), next(iter(FORMATS)))
    found: FileFormat = importlib.import_module(FORMATS[suffix]).FORMAT
    return found
