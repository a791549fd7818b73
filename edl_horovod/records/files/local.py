"""The one place that finds and opens input files, wherever they are."""

import glob
import os
import threading
from collections.abc import Iterator

from edl_horovod.errors import DataError, did_you_mean
from edl_horovod.records.files import remote
from edl_horovod.records.files.input_file import InputFile, LocalFile
from edl_horovod.records.sources.table import FORMATS

__all__ = ["FilePool", "expand", "local_paths", "open_input", "parts_of"]

_NUM_NAMES_SHOWN = 5


class FilePool:
    """Opens files when they are first read and keeps a few open; for use by several threads.

    A file in use belongs to one thread. Two threads reading the same file hold it open twice.
    """

    def __init__(self, *, max_idle: int = 64) -> None:
        self._max_idle = max_idle
        self._lock = threading.Lock()
        self._idle: list[InputFile] = []
        """The least recently read one first."""
        self._is_closed = False

    def read_at(self, path: str, *, offset: int, num_bytes: int) -> bytes:
        """Read bytes of a file; fewer than asked for only where the file ends.

        Raises:
            DataError: The file cannot be opened or read.
        """
        file = self._take(path)
        try:
            return file.read_at(offset, num_bytes=num_bytes)
        finally:
            self._give_back(file)

    def close(self) -> None:
        """Close every file; one that is being read is closed when that read ends."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
        for file in idle:
            file.close()

    def _take(self, path: str) -> InputFile:
        with self._lock:
            if self._is_closed:
                raise ValueError(f"{path} is read after its reader was closed.")
            for place, file in enumerate(self._idle):
                if file.path == path:
                    return self._idle.pop(place)
        return open_input(path)

    def _give_back(self, file: InputFile) -> None:
        surplus: InputFile | None = file
        with self._lock:
            if not self._is_closed:
                self._idle.append(file)
                surplus = self._idle.pop(0) if len(self._idle) > self._max_idle else None
        if surplus is not None:
            surplus.close()


def open_input(path: str) -> InputFile:
    """Open a file, by its path or a URL as `s3://bucket/name`, for reading at any offset.

    Raises:
        DataError: A local file is not there or may not be read. A remote one is asked for only
            when its size or its bytes are.
    """
    return remote.RemoteFile(path) if remote.is_remote(path) else LocalFile(path)


def expand(
    pattern: str, *, suffixes: tuple[str, ...] = tuple(FORMATS), is_recursive: bool = False
) -> list[str]:
    """The input files that a pattern names, sorted, each once.

    Args:
        pattern: A path, a glob (`**` crosses folders), or several of them with commas between;
            local, or with a scheme as `s3://`. A folder means the files in it.
        suffixes: Ends of the names that are taken from a folder; `("",)` takes all.
        is_recursive: Whether a folder means what is in its subfolders, too.

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
        found = list(find(part, suffixes=suffixes, is_recursive=is_recursive))
        if not found:
            listing = (remote.list_folder if is_remote else _list_folder)(part)
            raise _no_match(part, *listing, suffixes=suffixes)
        by_place.update({path if is_remote else os.path.abspath(path): path for path in found})
    return sorted(by_place.values())


def local_paths(pattern: str) -> Iterator[str]:
    """The folders, and the files in them, that a path or glob without a scheme names."""
    path = os.path.expanduser(pattern)
    yield from [path] if os.path.exists(path) else glob.glob(path, recursive=True)
    yield from _local_matches(pattern, suffixes=tuple(FORMATS), is_recursive=False)


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
            if file.endswith(suffixes) and not os.path.isdir(file):
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


def _no_match(part: str, folder: str, names: list[str], *, suffixes: tuple[str, ...]) -> DataError:
    shown = ", ".join(names[:_NUM_NAMES_SHOWN]) + (", ..." * (len(names) > _NUM_NAMES_SHOWN))
    entries = f"{len(names)} entries" if len(names) > 1 else "1 entry"
    holds = f"holds {entries}: {shown}" if names else "is empty"
    below = part[len(folder) :] if part.startswith(folder) else part
    missing = below.strip("/").split("/")[0]
    ends = ", ".join(suffix for suffix in suffixes if suffix)
    taken = "" if missing or not ends else f" A folder means its files that end in {ends}."
    return DataError(
        f"No data file matches {part!r}. The nearest existing folder, {folder!r}, {holds}.",
        received={"pattern": part},
        cure=f"{taken}{did_you_mean(missing, names)}",
    )
