"""The interface of input files, and local input files."""

import abc
import os
from dataclasses import dataclass
from typing import Self

from edl_horovod.errors import DataError

__all__ = ["Closeable", "FileState", "InputFile", "LocalFile"]


@dataclass(frozen=True, slots=True)
class FileState:
    """The properties of a file that show cheaply whether it has changed."""

    size_bytes: int
    changed: int | str
    """The time of the last change in nanoseconds. For a remote file, a text that changes with its
    content, or "" if its server does not report one."""


class Closeable(abc.ABC):
    """A resource that is closed at the end of a `with` block."""

    @abc.abstractmethod
    def close(self) -> None:
        """Release the resource; a second call does nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class InputFile(Closeable):
    """A file open for reading at any offset."""

    def __init__(self, path: str) -> None:
        self.path = path

    @property
    @abc.abstractmethod
    def size_bytes(self) -> int:
        """Size of the file."""

    @abc.abstractmethod
    def read_at(self, offset: int, *, num_bytes: int) -> bytes:
        """Read bytes at an offset; returns fewer than requested only at the end of the file.

        Raises:
            DataError: The read failed.
        """

    @abc.abstractmethod
    def state(self) -> FileState:
        """Return the current state of the file.

        Raises:
            DataError: The state cannot be determined.
        """


class LocalFile(InputFile):
    """A file on a file system of this host."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        try:
            self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            self._size_bytes = os.fstat(self._file).st_size
        except OSError as e:
            raise DataError(
                f"{path} cannot be opened: {e.strerror}.",
                received={"path": path},
                hint="Check that this host has the file and that this user may read it.",
            ) from e

    @property
    def size_bytes(self) -> int:
        """Size of the file when it was opened."""
        return self._size_bytes

    def read_at(self, offset: int, *, num_bytes: int) -> bytes:
        """Read bytes; returns fewer than requested only at the end of the file."""
        pieces: list[bytes] = []
        remaining = num_bytes
        try:
            while remaining and (piece := os.pread(self._file, remaining, offset)):
                pieces.append(piece)
                offset += len(piece)
                remaining -= len(piece)
        except OSError as e:
            raise DataError(
                f"{self.path} cannot be read at byte {offset}: {e.strerror}.",
                received={"path": self.path},
                hint="Check the disk or the mount of this host.",
            ) from e
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def state(self) -> FileState:
        """Return the size and time of the open file, even if its path was replaced."""
        status = os.fstat(self._file)
        return FileState(status.st_size, status.st_mtime_ns)

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
