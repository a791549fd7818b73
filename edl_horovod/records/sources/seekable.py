"""An input file with the file interface of Python, which has a current position."""

import errno
import io

from edl_horovod.records.files.input_file import InputFile

__all__ = ["SeekableFile"]


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

    def tell(self) -> int:
        """Return the current position."""
        return self._position

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

    def readall(self) -> bytes:
        """Read all bytes from the current position."""
        return self.read()
