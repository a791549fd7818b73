"""The records that a stream gave, by their numbers."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edl_horovod.records.array_bytes import decode
from edl_horovod.records.columns import Ragged, Values
from edl_horovod.records.index import Index
from edl_horovod.records.layout import BYTES, Layout, Structure, Tensor
from edl_horovod.records.reader import Reader
from edl_horovod.records.record_format import FormatSettings
from edl_horovod.records.source import JobFolders, Records, RecordSource
from edl_horovod.records.sources.recordio_format import MAX_CHUNK_BYTES
from edl_horovod.records.streams import RECORDS, KeptStream

__all__ = ["StreamRecords"]

_SETTINGS = FormatSettings(
    damaged="raise", csv_header=False, max_chunk_bytes=MAX_CHUNK_BYTES, columns=()
)


class StreamRecords(RecordSource):
    """Reads the records of a stream from where the job keeps them."""

    def __init__(
        self, kept: KeptStream, name: str, *, folders: JobFolders, cache_bytes: int
    ) -> None:
        """Open them.

        Raises:
            DataError: Their file is damaged.
        """
        index = Index.of([str(kept.folder / RECORDS)], _SETTINGS, folder=folders.index)
        self._reader = Reader(index, cache_bytes=cache_bytes)
        self._name = name
        self._layout = kept.layout
        assert kept.layout.structure is not None
        self.layout = None if _is_bytes(kept.layout) else kept.layout
        self._places = list(_places(kept.layout.structure))
        self.block_starts = self._reader.block_starts
        self.block_counts = self._reader.block_counts
        self.fingerprint = self._reader.fingerprint

    def read(self, ids: Sequence[int] | NDArray[np.integer]) -> Records:
        """The records with these ids, in this order."""
        records = [decode(record) for record in self._reader.read(ids)]
        if self.layout is None:
            return [one.item() for (one,) in records]
        columns: list[Values] = []
        for number, has_shape in enumerate(self._places):
            arrays = [record[number] for record in records]
            column = self._layout.columns[len(columns)]
            dtype = np.dtype(object if column.dtype == BYTES else column.dtype)
            columns.append(_stacked(arrays, dtype, column.shape))
            if has_shape:
                (ndim,) = self._layout.columns[len(columns)].shape
                shapes = np.array([array.shape for array in arrays], np.int64)
                columns.append(shapes.reshape(len(arrays), ndim or 0))
        return columns

    def record_bytes(self) -> float:
        """What a record takes in memory on average, in bytes."""
        return self._reader.record_bytes()

    def describe(self) -> str:
        """The name of the stream, and where its records are."""
        path = self._reader.index.files[0].path
        return f"{len(self._reader):,} records of {self._name}, read once, in {path}"

    def close(self) -> None:
        """Close the file."""
        self._reader.close()

    def __len__(self) -> int:
        return len(self._reader)


def _is_bytes(layout: Layout) -> bool:
    column = layout.columns[0]
    return isinstance(layout.structure, Tensor) and (column.dtype, column.shape) == (BYTES, ())


def _places(structure: Structure) -> Iterator[bool]:
    """Whether each array of a record has a column for its shape, in the order of the columns."""
    if isinstance(structure, Tensor):
        yield from (part.shape_column is not None for part in structure.parts)
        return
    for inner in structure.values() if isinstance(structure, dict) else structure:
        yield from _places(inner)


def _stacked(
    arrays: Sequence[NDArray[Any]], dtype: np.dtype[Any], shape: tuple[int | None, ...]
) -> Values:
    if shape == (None,):
        # Each first: an empty one may be of another type, as Python's empty list is.
        flat = [array.ravel().astype(dtype, copy=False) for array in arrays]
        ends = np.cumsum([len(one) for one in flat], dtype=np.int64)
        return Ragged(np.concatenate(flat) if flat else np.empty(0, dtype), ends)
    if not arrays:
        return np.empty((0, *(size or 0 for size in shape)), dtype)
    return np.stack(arrays).astype(dtype, copy=False)
