"""Patterns of data: the local and remote files that paths, globs and URLs stand for."""

import glob
import os
from collections.abc import Callable, Iterator

from edl_horovod.errors import DataError, did_you_mean
from edl_horovod.records.files import remote
from edl_horovod.records.sources.formats import (
    PICTURE_ENDINGS,
    folder_endings,
    has_ending,
    without_compression,
)

_NUM_NAMES_SHOWN = 5


def expand(pattern: str) -> list[str]:
    """Return the input files that match a pattern, sorted and without duplicates.

    Args:
        pattern: A path, a glob (`**` crosses folders), or several of them separated by commas;
            local, or with a scheme such as `s3://`.
            A folder stands for the data files in it; if there are none, for the images in it and
            in its subfolders.

    Raises:
        DataError: A part of the pattern matches nothing, or its folder cannot be listed.
        MissingDependency: The extra that a scheme needs is not installed.
    """
    parts = list(parts_of(pattern))
    if not parts:
        problem = "The pattern of data files is empty."
        hint = "Set it to a path, a folder, or a glob such as /data/train-*.recordio."
        raise DataError(problem, received={"pattern": pattern}, hint=hint)
    remote.reconnect()
    by_location: dict[str, str] = {}
    for part in parts:
        is_remote = remote.is_remote(part)
        find = remote.matches if is_remote else _local_matches
        paths = list(find(part, is_selected=_is_data_file, is_recursive=False))
        paths = paths or list(find(part, is_selected=_is_picture, is_recursive=True))
        if not paths:
            listing = (remote.list_folder if is_remote else _list_folder)(part)
            raise _no_match(part, *listing)
        by_location.update({path if is_remote else os.path.abspath(path): path for path in paths})
    return sorted(by_location.values())


def local_paths(pattern: str) -> Iterator[str]:
    """Yield the folders and the files in them that match a path or glob without a scheme."""
    path = os.path.expanduser(pattern)
    yield from [path] if os.path.exists(path) else glob.glob(path, recursive=True)
    yield from _local_matches(pattern, is_selected=_is_data_file, is_recursive=False)


def parts_of(pattern: str) -> Iterator[str]:
    """Yield the paths, globs and URLs in a pattern; see `expand`."""
    parts = [pattern] if os.path.exists(pattern) else pattern.split(",")
    for part in filter(None, map(str.strip, parts)):
        yield part.removeprefix("file://") if part.startswith("file:///") else part


def _is_data_file(name: str) -> bool:
    """Whether a folder stands for a file; compressed ones are selected so that they are refused."""
    return has_ending(without_compression(name), folder_endings())


def _is_picture(name: str) -> bool:
    return has_ending(name, PICTURE_ENDINGS)


def _local_matches(
    part: str, *, is_selected: Callable[[str], bool], is_recursive: bool
) -> Iterator[str]:
    path = os.path.expanduser(part)
    for match in [path] if os.path.exists(path) else glob.glob(path, recursive=True):
        if not os.path.isdir(match):
            yield match
            continue
        contents_pattern = os.path.join(glob.escape(match), "**" if is_recursive else "", "*")
        for file in glob.glob(contents_pattern, recursive=True):
            if is_selected(file) and not os.path.isdir(file):
                yield file


def _list_folder(part: str) -> tuple[str, list[str]]:
    """Return the nearest existing folder above a path, and the names in it."""
    folder = os.path.expanduser(part)
    while folder and not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    folder = folder or "."
    try:
        return folder, sorted(os.listdir(folder))
    except OSError as e:
        problem = f"{folder} cannot be listed: {e.strerror}."
        raise DataError(problem, received={"pattern": part}) from e


def _no_match(part: str, folder: str, names: list[str]) -> DataError:
    first_names = ", ".join(names[:_NUM_NAMES_SHOWN]) + (", ..." * (len(names) > _NUM_NAMES_SHOWN))
    entries = f"{len(names)} entries" if len(names) > 1 else "1 entry"
    holds = f"holds {entries}: {first_names}" if names else "is empty"
    remainder = part[len(folder) :] if part.startswith(folder) else part
    missing = remainder.strip("/").split("/")[0]
    ends = ", ".join(folder_endings())
    meaning = f" A folder stands for its files that end in {ends}, or its images."
    problem = f"No data file matches {part!r}. The nearest existing folder, {folder!r}, {holds}."
    hint = f"{'' if missing else meaning}{did_you_mean(missing, names)}"
    return DataError(problem, received={"pattern": part}, hint=hint)
