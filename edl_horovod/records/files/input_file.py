"""What every input file can do wherever it is, and the local one."""

import abc
import os
from dataclasses import dataclass
from typing import Self

from edl_horovod.errors import DataError

__all__ = ["Closeable", "FileState", "InputFile", "LocalFile"]


@dataclass(frozen=True, slots=True)
class FileState:
    """What tells cheaply whether a file is as it was."""

    size_bytes: int
    changed: int | str
    """Time of the last change in nanoseconds; of an object in a store what changes with its
    content, or "" where the store says nothing."""


class Closeable(abc.ABC):
    """Closed where its `with` ends."""

    @abc.abstractmethod
    def close(self) -> None:
        """Free what is held; a second call does nothing."""

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
        """Read bytes from an offset in the file; fewer than asked for only where the file ends.

        Raises:
            DataError: The read failed.
        """

    @abc.abstractmethod
    def state(self) -> FileState:
        """What the file is now.

        Raises:
            DataError: It cannot be found out.
        """


class LocalFile(InputFile):
    """A file that this host's system can open; a `DataError` if it cannot."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        try:
            self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            self._size_bytes = os.fstat(self._file).st_size
        except OSError as e:
            raise DataError(
                f"{path} cannot be opened: {e.strerror}.",
                received={"path": path},
                cure="Check that this host has the file and that this user may read it.",
            ) from e

    @property
    def size_bytes(self) -> int:
        """Size when it was opened."""
        return self._size_bytes

    def read_at(self, offset: int, *, num_bytes: int) -> bytes:
        """Read bytes; fewer than asked for only where the file ends."""
        pieces: list[bytes] = []
        wanted = num_bytes
        try:
            while wanted and (piece := os.pread(self._file, wanted, offset)):
                pieces.append(piece)
                offset += len(piece)
                wanted -= len(piece)
        except OSError as e:
            raise DataError(
                f"{self.path} cannot be read at byte {offset}: {e.strerror}.",
                received={"path": self.path},
                cure="Check the disk or the mount of this host.",
            ) from e
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def state(self) -> FileState:
        """The size and time of the open file, wherever its name leads by now."""
        found = os.fstat(self._file)
        return FileState(found.st_size, found.st_mtime_ns)

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
