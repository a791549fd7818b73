"""The one place that opens input files, wherever they are."""

import threading

from edl_horovod.records.files import remote
from edl_horovod.records.files.input_file import InputFile, LocalFile

__all__ = ["FilePool", "open_input"]


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
