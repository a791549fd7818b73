"""Input files, which are read at any offset: the interface, local files, and two wrappers.

`ReadAhead` makes few large reads of many small ones, and `SeekableFile` is a file object of Python.
"""

import abc
import errno
import io
import os
from dataclasses import dataclass
from typing import Self

from edl_horovod.errors import DataError

FIRST_WINDOW_BYTES = 1 << 16
"""Bytes that `ReadAhead` reads at first."""
MAX_WINDOW_BYTES = 4 << 20
"""Bytes that `ReadAhead` reads at a time while the reads are small."""
_MIN_READS_SAVED = 8
"""Number of reads that a large read must be expected to save; fewer are cheaper one by one."""


def file_error(path: str, problem: str, hint: str = "") -> DataError:
    """Return the error for a file that cannot be read; `problem` follows its path in a sentence."""
    return DataError(f"{path} {problem}", received={"path": path}, hint=hint)


def changed_since_index(path: str, difference: str) -> DataError:
    """Return the error for a file that has changed since the scan."""
    problem = f"{path} has changed since the job indexed it."
    hint = "Start the job again, and do not change its data while it runs."
    return DataError(problem, received=difference, hint=hint)


@dataclass(frozen=True, slots=True)
class FileState:
    """The properties of a file that show cheaply whether it has changed."""

    size_bytes: int
    changed: int | str
    """The time of the last change in nanoseconds. For a remote file, a text that changes with its
    content, or "" if its server does not report one."""

    @property
    def has_digest(self) -> bool:
        """Whether an equal state proves equal content."""
        return isinstance(self.changed, str) and self.changed != ""


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
            problem = f"cannot be opened: {e.strerror}."
            hint = "Check that this host has the file and that this user may read it."
            raise file_error(path, problem, hint) from e

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
            problem = f"cannot be read at byte {offset}: {e.strerror}."
            raise file_error(self.path, problem, "Check the disk or the mount of this host.") from e
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


class ReadAhead(InputFile):
    """Wraps and owns a file, for small sequential reads by one thread."""

    def __init__(self, file: InputFile) -> None:
        super().__init__(file.path)
        self._file = file
        self._start = 0
        self._window = b""
        self._num_reads = 0

    @property
    def size_bytes(self) -> int:
        """Size of the file."""
        return self._file.size_bytes

    def read_at(self, offset: int, *, num_bytes: int) -> bytes:
        """Read bytes; returns fewer than requested only at the end of the file."""
        num_bytes = min(num_bytes, self.size_bytes - offset)
        begin = offset - self._start
        if begin < 0 or begin + num_bytes > len(self._window):
            window_bytes = min(self._window_bytes(offset), self.size_bytes - offset)
            self._start, begin = offset, 0
            self._window = self._file.read_at(offset, num_bytes=max(num_bytes, window_bytes))
        self._num_reads += 1
        return self._window[begin : begin + num_bytes]

    def state(self) -> FileState:
        """Return the current state of the file."""
        return self._file.state()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _window_bytes(self, offset: int) -> int:
        if self._num_reads == 0:
            return FIRST_WINDOW_BYTES
        bytes_per_read = offset / self._num_reads
        return MAX_WINDOW_BYTES if bytes_per_read * _MIN_READS_SAVED <= MAX_WINDOW_BYTES else 0


class SeekableFile(io.RawIOBase):
    """Reads an input file from a current position; `close` does not close the input file."""

    def __init__(self, file: InputFile) -> None:
        super().__init__()
        self._file = file
        self._position = 0

    def readable(self) -> bool:
        """Whether it can be read: always."""
        return True

    def seekable(self) -> bool:
        """Whether it supports `seek`: always."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move the position, and return it.

        Raises:
            OSError: The position would be before the first byte.
        """
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._file.size_bytes}
        if start[whence] + offset < 0:
            raise OSError(errno.EINVAL, f"{self._file.path} has no byte {start[whence] + offset}")
        self._position = start[whence] + offset
        return self._position

    def read(self, size: int = -1) -> bytes:
        """Read bytes from the current position; -1 reads up to the end."""
        remaining = max(0, self._file.size_bytes - self._position)
        num_bytes = remaining if size is None or size < 0 else min(size, remaining)
        data = self._file.read_at(self._position, num_bytes=num_bytes) if num_bytes else b""
        self._position += len(data)
        return data


def folder_name(path: str) -> str:
    """Return the name of the folder of a file, given its path or URL."""
    return os.path.basename(os.path.dirname(path if "://" in path else os.path.abspath(path)))
