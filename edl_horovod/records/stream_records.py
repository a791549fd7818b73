"""The cached records of a stream, by record id."""

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
from edl_horovod.records.streams import RECORDS, CachedStream

__all__ = ["StreamRecords"]

_SETTINGS = FormatSettings(
    damaged="raise", csv_header=False, max_chunk_bytes=MAX_CHUNK_BYTES, columns=()
)


class StreamRecords(RecordSource):
    """Reads the cached records of a stream."""

    def __init__(
        self, stream: CachedStream, name: str, *, folders: JobFolders, cache_bytes: int
    ) -> None:
        """Open the file of the records.

        Raises:
            DataError: The file is damaged.
        """
        index = Index.of([str(stream.folder / RECORDS)], _SETTINGS, folder=folders.index)
        self._reader = Reader(index, cache_bytes=cache_bytes)
        self._name = name
        self._layout = stream.layout
        assert stream.layout.structure is not None
        self.layout = None if _is_bytes(stream.layout) else stream.layout
        self._have_shape_columns = list(_have_shape_columns(stream.layout.structure))
        self.block_starts = self._reader.block_starts
        self.block_counts = self._reader.block_counts
        self.fingerprint = self._reader.fingerprint

    def read(self, ids: Sequence[int] | NDArray[np.integer]) -> Records:
        """Return the records with these ids, in this order."""
        records = [decode(record) for record in self._reader.read(ids)]
        if self.layout is None:
            return [text.item() for (text,) in records]
        columns: list[Values] = []
        for number, has_shape in enumerate(self._have_shape_columns):
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
        """Return the average size of a record in memory, in bytes."""
        return self._reader.record_bytes()

    def describe(self) -> str:
        """Describe the stream and the file of its records for the log."""
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


def _have_shape_columns(structure: Structure) -> Iterator[bool]:
    """Yield for each array of a record whether it has a column for its shape, in order."""
    if isinstance(structure, Tensor):
        yield from (part.shape_column is not None for part in structure.parts)
        return
    for inner in structure.values() if isinstance(structure, dict) else structure:
        yield from _have_shape_columns(inner)


def _stacked(
    arrays: Sequence[NDArray[Any]], dtype: np.dtype[Any], shape: tuple[int | None, ...]
) -> Values:
    if shape == (None,):
        # Cast before joining: an empty array may have another type, as Python's empty list does.
        flat = [array.ravel().astype(dtype, copy=False) for array in arrays]
        ends = np.cumsum([len(values) for values in flat], dtype=np.int64)
        return Ragged(np.concatenate(flat) if flat else np.empty(0, dtype), ends)
    if not arrays:
        return np.empty((0, *(size or 0 for size in shape)), dtype)
    return np.stack(arrays).astype(dtype, copy=False)
