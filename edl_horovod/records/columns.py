"""Decoded records: the bytes or the columns of a chunk, and the columns of a step."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edl_horovod.records.layout import BYTES, Column, Layout

_Integers = NDArray[np.int64]

# The default size of the shuffle window depends on this number, so changing it changes the order of
# records.
_OBJECT_BYTES = 41
"""Size of the header of a `bytes` object and of its reference in a list or array."""


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
        self.object_bytes = int((ends - starts).sum()) + _OBJECT_BYTES * len(ends)
        """Memory that a list of all records as `bytes` would take, in bytes."""

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, slot: int) -> bytes:
        return self._data[self._starts[slot] : self._ends[slot]]

    def __iter__(self) -> Iterator[bytes]:
        data = self._data
        return (data[start:end] for start, end in zip(self._starts, self._ends, strict=True))


@dataclass(frozen=True, eq=False)
class Ragged:
    """Values of a column whose records differ in length, back to back."""

    values: NDArray[np.generic] | FlatRecords
    ends: _Integers
    """The position in `values` after the last value of each record, shape (records,)."""

    def __len__(self) -> int:
        return len(self.ends)

    @cached_property
    def lengths(self) -> _Integers:
        """The number of values of each record, shape (records,)."""
        return np.diff(self.ends, prepend=0)


Values = NDArray[np.generic] | Ragged
"""The values of a column: an array of shape (records, ...), with objects for bytes, or `Ragged`."""
Stored = Values | FlatRecords
"""The values as a chunk stores them; `bytes` objects are created only when requested."""


class ColumnChunk:
    """The decoded columns of a chunk."""

    def __init__(self, columns: Sequence[Stored]) -> None:
        self._columns = columns
        self.held_bytes = sum(map(_held_bytes, columns))
        """Memory that this chunk holds, in bytes."""
        self.object_bytes = sum(map(_object_bytes, columns))
        """Memory that the values of all records would take as objects, in bytes."""

    def __len__(self) -> int:
        return len(self._columns[0])

    def take(self, slots: _Integers) -> list[Values]:
        """Return the values of some records, in this order, for each column."""
        return [take(column, slots) for column in self._columns]


def object_array(values: Sequence[object]) -> NDArray[np.object_]:
    """Return an array of these objects, even if NumPy would make other values of them."""
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array


def take(column: Stored, slots: _Integers) -> Values:
    """Return the values of some records of a column, in this order."""
    if isinstance(column, FlatRecords):
        return object_array([column[slot] for slot in slots.tolist()])
    if isinstance(column, Ragged):
        lengths = column.lengths[slots]
        ends = np.cumsum(lengths)
        # The distance from each value's new position to its old one; the same within a record.
        shifts = np.repeat(column.ends[slots] - ends, lengths)
        values = take(column.values, shifts + np.arange(len(shifts)))
        assert not isinstance(values, Ragged)
        return Ragged(values, ends)
    return column[slots]


def join(parts: Sequence[list[Values]], order: _Integers) -> list[Values]:
    """Concatenate the columns of several runs of records, then reorder the records."""
    return [take(_joined(list(column)), order) for column in zip(*parts, strict=True)]


def part(column: Values, start: int, stop: int) -> Values:
    """Return consecutive records of a column; a part of an array is a view."""
    if isinstance(column, Ragged):
        return take(column, np.arange(start, stop))
    return column[start:stop]


def empty(layout: Layout) -> list[Values]:
    """Return columns with no records."""
    return [stacked([], column) for column in layout.columns]


def stacked(arrays: Sequence[NDArray[np.generic]], column: Column) -> Values:
    """Return the values of a column, given those of each record; ragged ones may have any shape."""
    dtype = np.dtype(object if column.dtype == BYTES else column.dtype)
    if column.is_ragged:
        # Cast before joining: an empty array may have another type, as Python's empty list does.
        flat = [array.ravel().astype(dtype, copy=False) for array in arrays]
        ends = np.cumsum([len(values) for values in flat], dtype=np.int64)
        return Ragged(np.concatenate(flat) if flat else np.empty(0, dtype), ends)
    if not arrays:
        return np.empty((0, *(size or 0 for size in column.shape)), dtype)
    # Each is cast by itself: the common type of int64 and uint64 is float64, which rounds both.
    return np.stack(arrays, dtype=dtype, casting="unsafe")


def holds_exactly(dtype: np.dtype[Any], array: NDArray[Any]) -> bool:
    """Whether a type of numbers holds the integers of an array; floats may be rounded to any."""
    if array.dtype == dtype or array.dtype.kind not in "iu" or not array.size:
        return True
    # NumPy also casts 64-bit integers to float64 "safely", although it rounds large ones.
    if array.itemsize < 8 and np.can_cast(array.dtype, dtype, "safe"):
        return True
    if dtype.kind in "iu":
        low, high = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
    else:
        high = 2 ** (int(np.finfo(dtype).nmant) + 1)
        low = -high
    if low <= int(array.min()) and int(array.max()) <= high:
        return True
    with np.errstate(over="ignore"):
        # Python compares integers and floats without rounding.
        return bool(array.astype(dtype).tolist() == array.tolist())


def common_type(types: Iterable[np.dtype[Any]]) -> np.dtype[Any] | None:
    """Return the type that holds the values of all types of numbers.

    None if there is no such type: for text and numbers, and for integers that only a float type
    spans, which would round them.
    """
    distinct = set(types)
    if len(distinct) == 1:
        return distinct.pop()
    if np.dtype(object) in distinct:
        return None
    common = np.result_type(*distinct)
    are_integers = all(dtype.kind in "biu" for dtype in distinct)
    return None if are_integers and common.kind == "f" else common


def _joined(parts: list[Values]) -> Values:
    if len(parts) == 1:
        return parts[0]
    arrays = [part.values if isinstance(part, Ragged) else part for part in parts]
    values = np.concatenate([array for array in arrays if isinstance(array, np.ndarray)])
    lengths = [part.lengths for part in parts if isinstance(part, Ragged)]
    return Ragged(values, np.cumsum(np.concatenate(lengths))) if lengths else values


def _held_bytes(column: Stored) -> int:
    if isinstance(column, FlatRecords):
        return column.held_bytes
    if isinstance(column, Ragged):
        return _held_bytes(column.values) + column.ends.nbytes
    return column.nbytes


def _object_bytes(column: Stored) -> int:
    if isinstance(column, FlatRecords):
        return column.object_bytes
    if isinstance(column, Ragged):
        return _object_bytes(column.values) + column.ends.nbytes
    if column.dtype == object:
        return sum(len(element) for element in column.tolist()) + _OBJECT_BYTES * column.size
    return column.nbytes
