"""An input file as other libraries want one: with a position that they move."""

import errno
import io

from edl_horovod.records.files.input_file import InputFile

__all__ = ["SeekableFile"]


class SeekableFile(io.RawIOBase):
    """Reads an input file from a position; closing it leaves the file open."""

    def __init__(self, file: InputFile) -> None:
        super().__init__()
        self._file = file
        self._at = 0

    def readable(self) -> bool:
        """It is read only."""
        return True

    def seekable(self) -> bool:
        """It can be read anywhere."""
        return True

    def tell(self) -> int:
        """The position."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move the position; returns it.

        Raises:
            OSError: It would be before the first byte.
        """
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._file.size_bytes}
        if start[whence] + offset < 0:
            raise OSError(errno.EINVAL, f"{self._file.path} has no byte {start[whence] + offset}")
        self._at = start[whence] + offset
        return self._at

    def read(self, size: int = -1) -> bytes:
        """Bytes from the position on; -1 for all that follow."""
        left = max(0, self._file.size_bytes - self._at)
        wanted = left if size is None or size < 0 else min(size, left)
        data = self._file.read_at(self._at, num_bytes=wanted) if wanted else b""
        self._at += len(data)
        return data

    def readall(self) -> bytes:
        """All bytes from the position on."""
        return self.read()
