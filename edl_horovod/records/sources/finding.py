"""The one place that finds input files, wherever they are."""

import glob
import os
from collections.abc import Iterator

from edl_horovod.errors import DataError, did_you_mean
from edl_horovod.records.files import remote
from edl_horovod.records.files.names import without_part
from edl_horovod.records.sources.table import FOLDER_ENDINGS, PICTURE_ENDINGS

__all__ = ["expand", "local_paths", "parts_of"]

_NUM_NAMES_SHOWN = 5


def expand(pattern: str) -> list[str]:
    """The input files that a pattern names, sorted, each once.

    Args:
        pattern: A path, a glob (`**` crosses folders), or several of them with commas between;
            local, or with a scheme as `s3://`.
            A folder means the data files in it; where there are none, the pictures in it and in
            its subfolders.

    Raises:
        DataError: A part of the pattern matches nothing, or its place cannot be listed.
        MissingDependency: The extra that a scheme needs is not installed.
    """
    parts = list(parts_of(pattern))
    if not parts:
        raise DataError(
            "No data file was named.",
            received={"pattern": pattern},
            cure="Give a path, a folder, or a glob such as /data/train-*.recordio.",
        )
    remote.reconnect()
    by_place: dict[str, str] = {}
    for part in parts:
        is_remote = remote.is_remote(part)
        find = remote.matches if is_remote else _local_matches
        found = list(find(part, suffixes=FOLDER_ENDINGS, is_recursive=False))
        found = found or list(find(part, suffixes=PICTURE_ENDINGS, is_recursive=True))
        if not found:
            listing = (remote.list_folder if is_remote else _list_folder)(part)
            raise _no_match(part, *listing)
        by_place.update({path if is_remote else os.path.abspath(path): path for path in found})
    return sorted(by_place.values())


def local_paths(pattern: str) -> Iterator[str]:
    """The folders, and the files in them, that a path or glob without a scheme names."""
    path = os.path.expanduser(pattern)
    yield from [path] if os.path.exists(path) else glob.glob(path, recursive=True)
    yield from _local_matches(pattern, suffixes=FOLDER_ENDINGS, is_recursive=False)


def parts_of(pattern: str) -> Iterator[str]:
    """The paths, globs and URLs in a pattern, as for `expand`."""
    parts = [pattern] if os.path.exists(pattern) else pattern.split(",")
    for part in filter(None, map(str.strip, parts)):
        yield part.removeprefix("file://") if part.startswith("file:///") else part


def _local_matches(part: str, *, suffixes: tuple[str, ...], is_recursive: bool) -> Iterator[str]:
    path = os.path.expanduser(part)
    for found in [path] if os.path.exists(path) else glob.glob(path, recursive=True):
        if not os.path.isdir(found):
            yield found
            continue
        inside = os.path.join(glob.escape(found), "**" if is_recursive else "", "*")
        for file in glob.glob(inside, recursive=True):
            if without_part(file).lower().endswith(suffixes) and not os.path.isdir(file):
                yield file


def _list_folder(part: str) -> tuple[str, list[str]]:
    """The nearest existing folder above a path, and the names in it."""
    folder = os.path.expanduser(part)
    while folder and not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    folder = folder or "."
    try:
        return folder, sorted(os.listdir(folder))
    except OSError as e:
        raise DataError(
            f"{folder} cannot be listed: {e.strerror}.", received={"pattern": part}
        ) from e


def _no_match(part: str, folder: str, names: list[str]) -> DataError:
    shown = ", ".join(names[:_NUM_NAMES_SHOWN]) + (", ..." * (len(names) > _NUM_NAMES_SHOWN))
    entries = f"{len(names)} entries" if len(names) > 1 else "1 entry"
    holds = f"holds {entries}: {shown}" if names else "is empty"
    below = part[len(folder) :] if part.startswith(folder) else part
    missing = below.strip("/").split("/")[0]
    ends = ", ".join(FOLDER_ENDINGS)
    taken = "" if missing else f" A folder means its files that end in {ends}, or its pictures."
    return DataError(
        f"No data file matches {part!r}. The nearest existing folder, {folder!r}, {holds}.",
        received={"pattern": part},
        cure=f"{taken}{did_you_mean(missing, names)}",
    )
