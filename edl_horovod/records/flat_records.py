"""The records of a chunk as one run of bytes and where each record lies in it."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

__all__ = ["FlatRecords"]

# The head of a `bytes` object and its place in a list. The width of the default shuffle window
# follows from this number, so another one is another order of records.
_OVERHEAD_BYTES = 41


class FlatRecords:
    """Records that lie in one `bytes`, with anything or nothing between them.

    To make a `bytes` object for each record takes a good part of the time in which its chunk is
    decoded, and scatters them over memory. So one is made only when its record is asked for.
    """

    __slots__ = ("_data", "_ends", "_starts", "held_bytes", "object_bytes")

    def __init__(self, data: bytes, starts: NDArray[np.int64], ends: NDArray[np.int64]) -> None:
        """Take the records as they lie.

        Args:
            data: The bytes of all records.
            starts: The first byte of each record.
            ends: The byte after each record.
        """
        self._data = data
        # Single numbers come out of these in half the time that they come out of arrays.
        self._starts = starts.data
        self._ends = ends.data
        self.held_bytes = len(data) + starts.nbytes + ends.nbytes
        """What is in memory for them, in bytes."""
        self.object_bytes = int((ends - starts).sum()) + _OVERHEAD_BYTES * len(ends)
        """What a list of all of them takes in memory, in bytes."""

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, slot: int) -> bytes:
        return self._data[self._starts[slot] : self._ends[slot]]

    def __iter__(self) -> Iterator[bytes]:
        data = self._data
        return (data[start:end] for start, end in zip(self._starts, self._ends, strict=True))
