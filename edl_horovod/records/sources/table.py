"""The tables of source modules by scheme and by file ending; a new source needs an entry here."""

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
"""Modules with a `KIND`, by the scheme before the first colon of `data`.

The empty scheme is for paths, and for URLs of file systems.
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
"""Modules with a `FORMAT`, by the ending of file names. The first is for all other names."""

PICTURE_ENDINGS = (".jpg", ".jpeg", ".png", ".gif", ".bmp")
"""Endings of image files, which a folder without other data files stands for."""

FORMATS |= dict.fromkeys(PICTURE_ENDINGS, "edl_horovod.records.sources.image_files")

FOLDER_ENDINGS = tuple(ending for ending in FORMATS if ending not in (".txt", *PICTURE_ENDINGS))
"""Endings of the data files that a folder stands for; text files often describe other files."""


def kind_of(data: str) -> "SourceKind":
    """Return the kind of source of a job's `data` or `validation_data` setting."""
    scheme = data[: data.find(":")] if ":" in data else ""
    kind: SourceKind = importlib.import_module(SCHEMES.get(scheme, SCHEMES[""])).KIND
    return kind


def check_sources(datasets: Sequence[str], settings: "DataSettings") -> None:
    """Check a job's `data` and `validation_data` quickly; "" is ignored.

    Raises:
        ConfigError: A setting does not apply to the data.
        DataError: Data is missing, or cannot be read together.
    """
    by_kind: dict[SourceKind, list[str]] = {}
    for data in filter(None, datasets):
        by_kind.setdefault(kind_of(data), []).append(data)
    for kind, kind_datasets in by_kind.items():
        kind.check(kind_datasets, settings)


def file_format(name: str) -> "FileFormat":
    """Return the format of a file, given its path in lower case."""
    base_name = without_part(name)
    suffix = next((ending for ending in FORMATS if base_name.endswith(ending)), next(iter(FORMATS)))
    result: FileFormat = importlib.import_module(FORMATS[suffix]).FORMAT
    return result
