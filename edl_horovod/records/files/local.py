"""The one place that opens input files, wherever they are."""

import os
import threading

from edl_horovod.errors import DataError
from edl_horovod.records.files import remote
from edl_horovod.records.files.input_file import FileState, InputFile, LocalFile

__all__ = ["FilePool", "file_state", "open_input"]


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

    def read_at(
        self, path: str, *, offset: int, num_bytes: int, expected: FileState | None = None
    ) -> bytes:
        """Read bytes of a file; fewer than asked for only where the file ends.

        Args:
            path: The file.
            offset: The first byte.
            num_bytes: The number of bytes.
            expected: What the file must be once they are read; None where their checksum tells.

        Raises:
            DataError: The file cannot be opened or read, or is not as expected.
        """
        file = self._take(path)
        try:
            data = file.read_at(offset, num_bytes=num_bytes)
            if expected is not None and (found := file.state()) != expected:
                raise _changed(path, expected, found)
            return data
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


def file_state(path: str) -> FileState:
    """What a file is now; of a remote one what was listed since the last `reconnect`.

    Raises:
        DataError: A remote file is not there or may not be read.
        OSError: A local one is not.
    """
    if remote.is_remote(path):
        return remote.state_of(path)
    found = os.stat(path)
    return FileState(found.st_size, found.st_mtime_ns)


def _changed(path: str, expected: FileState, found: FileState) -> DataError:
    how = "another time or content"
    if found.size_bytes != expected.size_bytes:
        how = f"{found.size_bytes} bytes instead of {expected.size_bytes}"
    return DataError(
        f"{path} has changed since the job indexed it.",
        received=how,
        cure="Start the job again, and leave its data alone meanwhile.",
    )
