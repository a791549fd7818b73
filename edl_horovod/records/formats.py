"""Which record format a file has, by its name. Says it without reading; imports nothing heavy."""

from collections.abc import Sequence
from enum import StrEnum
from urllib.parse import urlsplit

from edl_horovod.errors import DataError

__all__ = ["RECORD_SUFFIXES", "FormatName", "format_of"]


class FormatName(StrEnum):
    """The record formats."""

    RECORDIO = "RecordIO"
    CSV = "CSV"


RECORD_SUFFIXES = (".recordio", ".csv")
"""Ends of the names of record files that are taken from a folder."""

_COMPRESSED = (".gz", ".bz2", ".xz", ".zip", ".zst")


def format_of(paths: Sequence[str]) -> FormatName:
    """The one format of some files: CSV if their names end in `.csv`, else RecordIO.

    Args:
        paths: The files of a job, or of a part of it.

    Raises:
        DataError: Their formats differ, or a file is a compressed CSV file.
    """
    by_format: dict[FormatName, str] = {}
    for path in paths:
        by_format.setdefault(_format_of_one(path), path)
    if len(by_format) > 1:
        examples = ", ".join(f"{path} ({name})" for name, path in sorted(by_format.items()))
        raise DataError(
            f"A job reads files of one record format only. Received: {examples}."
            " Name files of one format, as in data='folder/*.csv'."
        )
    return next(iter(by_format), FormatName.RECORDIO)


def _format_of_one(path: str) -> FormatName:
    name = (urlsplit(path).path if "://" in path else path).lower()
    for suffix in _COMPRESSED:
        if name.endswith(f".csv{suffix}"):
            raise DataError(
                f"{path} is a compressed CSV file, in which no row can be reached without reading"
                f" all before it. Received: path={path!r}. Unpack it, or make RecordIO files of"
                " it by edl prepare, which are compressed chunk by chunk."
            )
    return FormatName.CSV if name.endswith(".csv") else FormatName.RECORDIO
