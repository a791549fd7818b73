"""Conversion of an Arrow table to the columns of a chunk."""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from edl_horovod.errors import DataError
from edl_horovod.records.chunks import ChunkInfo
from edl_horovod.records.columns import ColumnChunk, FlatRecords, Ragged, Stored
from edl_horovod.records.layout import BYTES, Column, Layout
from edl_horovod.records.sources.arrow_schema import arrow_type, flat

__all__ = ["chunk_of"]


def chunk_of(table: pa.Table, *, layout: Layout, path: str, chunk: ChunkInfo) -> ColumnChunk:
    """Convert a table to the columns of a layout.

    Raises:
        DataError: A value cannot be cast, or is missing in a column without NaN.
    """
    table = flat(table)
    table_columns = {name: table.column(number) for number, name in enumerate(table.column_names)}
    columns = []
    for column in layout.columns:
        location = f"the column {column.name!r} of {path}, in its part {chunk.number + 1}"
        if column.name not in table_columns:
            raise _empty_values(table.num_rows, location, path)
        columns.append(_stored(table_columns[column.name], column, location, path))
    return ColumnChunk(columns)


def _stored(values: pa.ChunkedArray, column: Column, location: str, path: str) -> Stored:
    try:
        array = _plain(values).cast(arrow_type(column.dtype, column.shape))
    except (pa.ArrowInvalid, pa.ArrowIndexError) as e:
        raise DataError(
            f"A value cannot be read in {location}: {e}.", received={"path": path}
        ) from e
    return _from_array(array, column.dtype, column.shape, location, path)


def _from_array(
    array: pa.Array, dtype: str, shape: tuple[int | None, ...], location: str, path: str
) -> Stored:
    if array.null_count:
        if not pa.types.is_floating(array.type):
            raise _empty_values(array.null_count, location, path)
        array = pc.fill_null(array, float("nan"))
    if shape:
        values = _from_array(array.flatten(), dtype, shape[1:], location, path)
        assert not isinstance(values, Ragged)
        if shape[0] is None:
            offsets = _offsets(array)
            return Ragged(values, offsets[1:] - offsets[0])
        assert isinstance(values, np.ndarray)
        return values.reshape(len(array), *(size or 0 for size in shape))
    if dtype == BYTES:
        offsets = _offsets(array)
        data = array.buffers()[2]
        text = data.to_pybytes()[: offsets[-1]] if data is not None else b""
        return FlatRecords(text, offsets[:-1].copy(), offsets[1:].copy())
    dense: NDArray[Any] = array.to_numpy(zero_copy_only=False)
    return dense


def _plain(values: pa.ChunkedArray) -> pa.Array:
    """Combine chunks into one array, and unwrap extension types and dictionaries."""
    array = values.combine_chunks()
    if isinstance(array, pa.ChunkedArray):  # There are no chunks.
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], array.type)
    while isinstance(array.type, pa.BaseExtensionType) or pa.types.is_dictionary(array.type):
        is_extension = isinstance(array.type, pa.BaseExtensionType)
        array = array.storage if is_extension else array.dictionary_decode()
    return array


def _offsets(array: pa.Array) -> NDArray[np.int64]:
    """Return the position where each record's values begin, and the end of the last."""
    if not len(array):
        return np.zeros(1, dtype=np.int64)
    all_offsets = np.frombuffer(array.buffers()[1], dtype=np.int64)
    return all_offsets[array.offset : array.offset + len(array) + 1]


def _empty_values(count: int, location: str, path: str) -> DataError:
    subject = "is 1 empty value" if count == 1 else f"are {count:,} empty values"
    return DataError(
        f"There {subject} (null) in {location}, which a tensor cannot represent.",
        received={"path": path},
        hint="Fill them when the file is written, or select other columns with"
        " data_plan.columns=[...].",
    )
