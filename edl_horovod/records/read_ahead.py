"""Few large reads in place of many small ones: each read of a remote file costs a round trip."""

from edl_horovod.records.files.input_file import FileState, InputFile

__all__ = ["MOST_BYTES", "ReadAhead"]

FIRST_BYTES = 1 << 16
MOST_BYTES = 4 << 20
_WORTH_READS = 8
"""Reads that a large read must be expected to save: fewer are cheaper one by one."""


class ReadAhead(InputFile):
    """Another file, closed with this one, for small reads by one thread that go forward."""

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
        """Read bytes; fewer than asked for only where the file ends."""
        num_bytes = min(num_bytes, self.size_bytes - offset)
        begin = offset - self._start
        if begin < 0 or begin + num_bytes > len(self._window):
            room = min(self._window_bytes(offset), self.size_bytes - offset)
            self._start, begin = offset, 0
            self._window = self._file.read_at(offset, num_bytes=max(num_bytes, room))
        self._num_reads += 1
        return self._window[begin : begin + num_bytes]

    def state(self) -> FileState:
        """What the file is now."""
        return self._file.state()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _window_bytes(self, offset: int) -> int:
        if self._num_reads == 0:
            return FIRST_BYTES
        between_reads = offset / self._num_reads
        return MOST_BYTES if between_reads * _WORTH_READS <= MOST_BYTES else 0
