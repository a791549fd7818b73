"""The one place that finds and opens input files: local ones now, other file systems later."""

import glob
import os
import threading
from collections import OrderedDict
from collections.abc import Iterator
from types import TracebackType

from edl_horovod.errors import DataError, did_you_mean

__all__ = ["FilePool", "InputFile", "expand"]

_NUM_NAMES_SHOWN = 5


class InputFile:
    """A file open for reading at any offset; close it, or use it in a `with`."""

    def __init__(self, path: str) -> None:
        """Open the file.

        Args:
            path: A local path.

        Raises:
            DataError: It is not there, or may not be read.
        """
        self.path = path
        try:
            self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            self.size_bytes = os.fstat(self._file).st_size
        except OSError as e:
            raise DataError(
                f"{path} cannot be opened: {e.strerror}. Received: path={path!r}."
                " Check that this host has the file and that this user may read it."
            ) from e

    def read_at(self, offset: int, *, num_bytes: int) -> bytes:
        """Read bytes; fewer than asked for only where the file ends.

        Raises:
            DataError: The read failed.
        """
        pieces: list[bytes] = []
        wanted = num_bytes
        try:
            while wanted and (piece := os.pread(self._file, wanted, offset)):
                pieces.append(piece)
                offset += len(piece)
                wanted -= len(piece)
        except OSError as e:
            raise DataError(
                f"{self.path} cannot be read at byte {offset}: {e.strerror}."
                f" Received: path={self.path!r}. Check the disk or the mount of this host."
            ) from e
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def __enter__(self) -> "InputFile":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class FilePool:
    """Opens files when they are first read and keeps a few open; for use by several threads.

    A file in use belongs to one thread. Two threads reading the same file hold it open twice.
    """

    def __init__(self, *, max_idle: int = 64) -> None:
        """Open nothing yet.

        Args:
            max_idle: Number of files kept open while nobody reads them.
        """
        self._max_idle = max_idle
        self._lock = threading.Lock()
        self._idle: OrderedDict[str, list[InputFile]] = OrderedDict()
        self._num_idle = 0
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
            idle = [file for files in self._idle.values() for file in files]
            self._idle.clear()
            self._num_idle = 0
        for file in idle:
            file.close()

    def _take(self, path: str) -> InputFile:
        with self._lock:
            if self._is_closed:
                raise ValueError(f"{path} is read after its reader was closed.")
            files = self._idle.get(path)
            if files:
                self._num_idle -= 1
                file = files.pop()
                if not files:
                    del self._idle[path]
                return file
        return InputFile(path)

    def _give_back(self, file: InputFile) -> None:
        surplus: InputFile | None = None
        with self._lock:
            if self._is_closed:
                surplus = file
            else:
                self._idle.setdefault(file.path, []).append(file)
                self._idle.move_to_end(file.path)
                self._num_idle += 1
                if self._num_idle > self._max_idle:
                    path, oldest = next(iter(self._idle.items()))
                    surplus = oldest.pop(0)
                    self._num_idle -= 1
                    if not oldest:
                        del self._idle[path]
        if surplus is not None:
            surplus.close()


def expand(pattern: str) -> list[str]:
    """The input files that a pattern names, sorted, each once.

    Args:
        pattern: A path, a glob (`**` crosses folders), or several of them with commas between.
            A folder means all its `*.recordio`.

    Raises:
        DataError: A part of the pattern matches nothing, or names a remote file system.
    """
    parts = [pattern] if os.path.exists(pattern) else pattern.split(",")
    parts = [part.strip() for part in parts if part.strip()]
    if not parts:
        raise DataError(
            f"No data file was named. Received: pattern={pattern!r}."
            " Give a path, a folder, or a glob such as /data/train-*.recordio."
        )
    by_place = {os.path.abspath(path): path for part in parts for path in _matches(part)}
    return sorted(by_place.values())


def _matches(part: str) -> Iterator[str]:
    if "://" in part:
        raise DataError(
            f"Remote file systems are not supported yet. Received: pattern={part!r}."
            " Copy the data to a disk that every host mounts, and give that path."
        )
    found = [part] if os.path.exists(part) else glob.glob(part, recursive=True)
    is_empty = True
    for path in found:
        in_folder = os.path.join(glob.escape(path), "*.recordio")
        for file in glob.glob(in_folder) if os.path.isdir(path) else [path]:
            is_empty = False
            yield file
    if is_empty:
        raise _no_match(part)


def _no_match(part: str) -> DataError:
    folder = part
    while folder and not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    folder = folder or "."
    try:
        names = sorted(os.listdir(folder))
    except OSError as e:
        return DataError(f"{folder} cannot be listed: {e.strerror}. Received: pattern={part!r}.")
    shown = ", ".join(names[:_NUM_NAMES_SHOWN]) + (", ..." * (len(names) > _NUM_NAMES_SHOWN))
    holds = f"holds {len(names)} entries: {shown}" if names else "is empty"
    missing = os.path.relpath(part, folder).split(os.sep)[0]
    return DataError(
        f"No data file matches {part!r}. The nearest existing folder, {folder!r}, {holds}."
        f" Received: pattern={part!r}.{did_you_mean(missing, names)}"
    )
