"""Opening of input files, local and remote, one by one or in a pool that keeps some open."""

import os
import threading

from edl_horovod.records.files import remote
from edl_horovod.records.files.input_file import (
    FileState,
    InputFile,
    LocalFile,
    changed_since_index,
)


class FilePool:
    """Opens files when they are first read and keeps a few open; thread-safe.

    Only one thread uses an open file at a time. If two threads read a file, it is opened twice.
    """

    def __init__(self, *, max_idle: int = 64) -> None:
        self._max_idle = max_idle
        self._lock = threading.Lock()
        self._idle: list[InputFile] = []
        """The open files that are not being read, the least recently used first."""
        self._is_closed = False

    def read_at(
        self, path: str, *, offset: int, num_bytes: int, expected: FileState | None = None
    ) -> bytes:
        """Read bytes of a file; returns fewer than requested only at the end of the file.

        Args:
            path: Path or URL of the file.
            offset: Offset of the first byte.
            num_bytes: Number of bytes to read.
            expected: The state that the file must have after the read; None to skip the check if
                the bytes have a checksum.

        Raises:
            DataError: The file cannot be opened or read, or has changed.
        """
        file = self._take(path)
        try:
            data = file.read_at(offset, num_bytes=num_bytes)
            if expected is not None and (state := file.state()) != expected:
                difference = "a different modification time or content"
                if state.size_bytes != expected.size_bytes:
                    difference = f"{state.size_bytes} bytes instead of {expected.size_bytes}"
                raise changed_since_index(path, difference)
            return data
        finally:
            self._release(file)

    def close(self) -> None:
        """Close all files; a file that is being read is closed after the read."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
        for file in idle:
            file.close()

    def _take(self, path: str) -> InputFile:
        with self._lock:
            if self._is_closed:
                raise ValueError(f"{path} cannot be read: its reader was closed.")
            for index, file in enumerate(self._idle):
                if file.path == path:
                    return self._idle.pop(index)
        return open_input(path)

    def _release(self, file: InputFile) -> None:
        surplus: InputFile | None = file
        with self._lock:
            if not self._is_closed:
                self._idle.append(file)
                surplus = self._idle.pop(0) if len(self._idle) > self._max_idle else None
        if surplus is not None:
            surplus.close()


def open_input(path: str) -> InputFile:
    """Open a file for reading at any offset, given its path or a URL such as `s3://bucket/name`.

    Raises:
        DataError: A local file does not exist or may not be read. A remote file is not accessed
            before its size or its bytes are requested.
    """
    return remote.RemoteFile(path) if remote.is_remote(path) else LocalFile(path)


def file_state(path: str) -> FileState:
    """Return the state of a file; for a remote file it may be cached since the last `reconnect`.

    Raises:
        DataError: A remote file does not exist or may not be read.
        OSError: A local file does not exist or may not be read.
    """
    if remote.is_remote(path):
        return remote.state_of(path)
    status = os.stat(path)
    return FileState(status.st_size, status.st_mtime_ns)
