"""The records of a chunk as one `bytes` object with the bounds of each record."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

__all__ = ["FlatRecords"]

# The header of a `bytes` object and its reference in a list. The default size of the shuffle window
# depends on this number, so changing it changes the order of records.
_OVERHEAD_BYTES = 41


class FlatRecords:
    """Records that are slices of one `bytes` object, possibly with other bytes between them.

    Creating a `bytes` object for each record would take a large part of the time of decoding a
    chunk and scatter the records over memory, so it is created only when its record is requested.
    """

    __slots__ = ("_data", "_ends", "_starts", "held_bytes", "object_bytes")

    def __init__(self, data: bytes, starts: NDArray[np.int64], ends: NDArray[np.int64]) -> None:
        """Wrap the data without copying it.

        Args:
            data: The bytes of all records.
            starts: Offset of the first byte of each record, shape (records,).
            ends: Offset after the last byte of each record, shape (records,).
        """
        self._data = data
        # Indexing a memoryview takes half the time of indexing an array.
        self._starts = starts.data
        self._ends = ends.data
        self.held_bytes = len(data) + starts.nbytes + ends.nbytes
        """Memory that this object holds, in bytes."""
        self.object_bytes = int((ends - starts).sum()) + _OVERHEAD_BYTES * len(ends)
        """Memory that a list of all records as `bytes` would take, in bytes."""

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, slot: int) -> bytes:
        return self._data[self._starts[slot] : self._ends[slot]]

    def __iter__(self) -> Iterator[bytes]:
        data = self._data
        return (data[start:end] for start, end in zip(self._starts, self._ends, strict=True))
