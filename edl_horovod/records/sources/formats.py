"""The formats of data files, by the endings of their names; a new format needs an entry here.

The libraries that read a format are imported when its files are opened, so commands that only check
the settings need neither NumPy nor PyArrow.
"""

import functools
import importlib
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from edl_horovod.errors import DataError, MissingDependency, how_to_install
from edl_horovod.extensions import Table
from edl_horovod.records.files.input_file import folder_name
from edl_horovod.records.files.remote import is_remote
from edl_horovod.records.record_format import (
    ColumnFormat,
    FileFormat,
    FormatSettings,
    RecordFormat,
)
from edl_horovod.records.source import RecordSource

__all__ = [
    "FORMATS",
    "PICTURE_ENDINGS",
    "file_format",
    "folder_endings",
    "format_of",
    "has_ending",
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
        raise DataError(
            "A job reads files of only one record format.",
            received=received,
            hint="Select files of one format, as in data='folder/*.csv'.",
        )
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


def _require_pyarrow(format_name: str) -> None:
    """Check that PyArrow is installed, which the extra `arrow` provides."""
    try:
        importlib.import_module("pyarrow")
    except ImportError as e:
        raise MissingDependency(
            f"Reading {format_name} files needs a package that is not installed: {e}.",
            received={"format": format_name},
            hint=f"To install it where the job runs, {how_to_install('arrow')}",
        ) from e


def _check_same_classes(sets: Sequence[Sequence[str]]) -> None:
    """Refuse data and validation data with different classes, whose numbers would differ, too."""
    first, *others = [sorted({folder_name(path) for path in paths}) for paths in sets]
    for other in others:
        if other != first:
            differing = sorted(set(first) ^ set(other))
            raise DataError(
                "The folders of data and validation_data have different classes, so the same label"
                " would mean different classes.",
                received=f"only one of them has {', '.join(differing[:5])}",
                hint="Create a folder with at least one image for each class in both.",
            )


def _make_recordio(settings: FormatSettings) -> RecordFormat:
    from edl_horovod.records.sources.recordio import holds_chunk, read_chunks
    from edl_horovod.records.sources.recordio_format import Scratch, decode_chunk

    max_bytes = settings.max_chunk_bytes
    scan = functools.partial(read_chunks, damaged=settings.damaged, max_chunk_bytes=max_bytes)
    decode = functools.partial(decode_chunk, max_chunk_bytes=max_bytes, scratch=Scratch())
    return RecordFormat(_RECORDIO.name, scan, decode, holds_chunk)


def _make_csv(settings: FormatSettings) -> RecordFormat:
    from edl_horovod.records.sources.csv_format import decode_chunk, holds_chunk, read_chunks

    scan = functools.partial(read_chunks, damaged=settings.damaged, has_header=settings.csv_header)
    return RecordFormat(_CSV.name, scan, decode_chunk, holds_chunk)


def _make_tfrecord(settings: FormatSettings) -> RecordFormat:
    from edl_horovod.records.sources.tfrecord_format import decode_chunk, holds_chunk, read_chunks

    scan = functools.partial(read_chunks, damaged=settings.damaged)
    return RecordFormat(_TFRECORD.name, scan, decode_chunk, holds_chunk)


def _make_parquet(settings: FormatSettings) -> RecordFormat:
    _require_pyarrow(_PARQUET.name)
    from edl_horovod.records.sources import parquet_format as parquet

    scan = functools.partial(parquet.read_chunks, damaged=settings.damaged)
    layout = functools.partial(parquet.layout, selected=settings.columns)
    decode = ColumnFormat(layout, parquet.decode_chunk)
    return RecordFormat(
        _PARQUET.name, scan, decode, parquet.holds_chunk, change_detection="samples"
    )


def _make_arrow(settings: FormatSettings) -> RecordFormat:
    _require_pyarrow(_ARROW.name)
    from edl_horovod.records.sources import arrow_format as arrow

    return _without_checksums(arrow, _ARROW.name, settings)


def _make_json_lines(settings: FormatSettings) -> RecordFormat:
    _require_pyarrow(_JSON_LINES.name)
    from edl_horovod.records.sources import json_lines
    from edl_horovod.records.sources.text_lines import holds_chunk

    layout = functools.partial(json_lines.layout, selected=settings.columns)
    decode = ColumnFormat(layout, json_lines.decode_chunk)
    scan = functools.partial(json_lines.read_chunks, damaged=settings.damaged)
    return RecordFormat(_JSON_LINES.name, scan, decode, holds_chunk)


def _make_webdataset(settings: FormatSettings) -> RecordFormat:
    from edl_horovod.records.sources import webdataset

    return _without_checksums(webdataset, _WEBDATASET.name, settings)


def _make_mds(settings: FormatSettings) -> RecordFormat:
    from edl_horovod.records.sources import mds_shards

    return _without_checksums(mds_shards, _MDS.name, settings)


def _without_checksums(module: Any, name: str, settings: FormatSettings) -> RecordFormat:
    """The format of a module whose files have no checksums: samples show whether they changed."""
    decode = ColumnFormat(
        functools.partial(module.layout, selected=settings.columns), module.decode_chunk
    )
    return RecordFormat(
        name, module.read_chunks, decode, module.holds_chunk, change_detection="samples"
    )


def _open_numpy(
    paths: Sequence[str],
    *,
    columns: Sequence[str],
    folder: Path | None,
    cache_bytes: int,
    tell: Callable[[str], None],
) -> RecordSource:
    from edl_horovod.records.sources.numpy_source import ArraySource

    return ArraySource(paths, columns=columns, folder=folder, cache_bytes=cache_bytes, tell=tell)


def _make_text(settings: FormatSettings) -> RecordFormat:
    from edl_horovod.records.sources.text_lines import decode_chunk, holds_chunk, read_chunks

    scan = functools.partial(read_chunks, name=_TEXT.name)
    return RecordFormat(_TEXT.name, scan, decode_chunk, holds_chunk)


def _make_pictures(settings: FormatSettings) -> RecordFormat:
    from edl_horovod.records.sources.image_folders import ImageFolders

    folders = ImageFolders(settings)
    decode = ColumnFormat(folders.layout, folders.decode)
    return RecordFormat(
        _PICTURES.name, folders.scan, decode, folders.holds, change_detection="time"
    )


_RECORDIO = FileFormat(name="RecordIO", make=_make_recordio, has_compression=True)
_CSV = FileFormat(name="CSV", make=_make_csv)
_TFRECORD = FileFormat(name="TFRecord", make=_make_tfrecord)
_PARQUET = FileFormat(name="Parquet", make=_make_parquet, has_compression=True)
_ARROW = FileFormat(
    name="Arrow", make=_make_arrow, why_not_skippable="they have no checksums", has_compression=True
)
_JSON_LINES = FileFormat(name="JSON lines", make=_make_json_lines)
_WEBDATASET = FileFormat(
    name="WebDataset",
    make=_make_webdataset,
    why_not_skippable="they have no checksums of their records",
)
_MDS = FileFormat(name="MDS", make=_make_mds, why_not_skippable="they have no checksums")
_NUMPY = FileFormat(
    name="NumPy",
    open_source=_open_numpy,
    why_not_skippable="an array has at most one checksum, so its damaged records cannot be"
    " identified",
    has_compression=True,
)
_TEXT = FileFormat(name="text", make=_make_text, why_not_skippable="every line is a valid record")
_PICTURES = FileFormat(
    name="picture",
    make=_make_pictures,
    has_compression=True,
    check_together=_check_same_classes,
)

FORMATS: Table[FileFormat] = Table(
    "formats",
    {
        ".recordio": _RECORDIO,
        ".csv": _CSV,
        ".tfrecord": _TFRECORD,
        ".tfrecords": _TFRECORD,
        ".parquet": _PARQUET,
        ".arrow": _ARROW,
        ".feather": _ARROW,
        ".jsonl": _JSON_LINES,
        ".ndjson": _JSON_LINES,
        ".tar": _WEBDATASET,
        ".mds": _MDS,
        ".npy": _NUMPY,
        ".npz": _NUMPY,
        ".txt": _TEXT,
        **dict.fromkeys(PICTURE_ENDINGS, _PICTURES),
    },
)
"""The formats by the ending of file names; all other files are RecordIO."""
