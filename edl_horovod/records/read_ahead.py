"""Read-ahead for remote files: replaces many small reads, each a round trip, by few large ones."""

from edl_horovod.records.files.input_file import FileState, InputFile

__all__ = ["MAX_BYTES", "ReadAhead"]

FIRST_BYTES = 1 << 16
MAX_BYTES = 4 << 20
_MIN_READS_SAVED = 8
"""Number of reads that a large read must be expected to save; fewer are cheaper one by one."""


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
            return FIRST_BYTES
        bytes_per_read = offset / self._num_reads
        return MAX_BYTES if bytes_per_read * _MIN_READS_SAVED <= MAX_BYTES else 0
