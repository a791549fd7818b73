"""From an Arrow table to the columns of a chunk."""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from edl_horovod.errors import DataError
from edl_horovod.records.chunks import ChunkInfo
from edl_horovod.records.columns import ColumnChunk, Ragged, Stored
from edl_horovod.records.flat_records import FlatRecords
from edl_horovod.records.layout import BYTES, Column, Layout
from edl_horovod.records.sources.arrow_schema import arrow_type, flat

__all__ = ["chunk_of"]


def chunk_of(table: pa.Table, *, layout: Layout, path: str, chunk: ChunkInfo) -> ColumnChunk:
    """The columns of a layout as a table has them.

    Raises:
        DataError: A value is missing that no number can stand for, or cannot be cast.
    """
    table = flat(table)
    found = {name: table.column(number) for number, name in enumerate(table.column_names)}
    columns = []
    for column in layout.columns:
        where = f"the column {column.name!r} of {path}, in its part {chunk.number + 1}"
        if column.name not in found:
            raise _empty_values(table.num_rows, where, path)
        columns.append(_stored(found[column.name], column, where, path))
    return ColumnChunk(columns)


def _stored(values: pa.ChunkedArray, column: Column, where: str, path: str) -> Stored:
    try:
        array = _plain(values).cast(arrow_type(column.dtype, column.shape))
    except (pa.ArrowInvalid, pa.ArrowIndexError) as e:
        raise DataError(f"A value cannot be read in {where}: {e}.", received={"path": path}) from e
    return _of_array(array, column.dtype, column.shape, where, path)


def _of_array(
    array: pa.Array, dtype: str, shape: tuple[int | None, ...], where: str, path: str
) -> Stored:
    if array.null_count:
        if not pa.types.is_floating(array.type):
            raise _empty_values(array.null_count, where, path)
        array = pc.fill_null(array, float("nan"))
    if shape:
        values = _of_array(array.flatten(), dtype, shape[1:], where, path)
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
    """One array, without an extension type or a dictionary around its values."""
    array = values.combine_chunks()
    if isinstance(array, pa.ChunkedArray):  # Of no chunk at all.
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], array.type)
    while isinstance(array.type, pa.BaseExtensionType) or pa.types.is_dictionary(array.type):
        is_extension = isinstance(array.type, pa.BaseExtensionType)
        array = array.storage if is_extension else array.dictionary_decode()
    return array


def _offsets(array: pa.Array) -> NDArray[np.int64]:
    """Where the values of each record begin, and where the last ends."""
    if not len(array):
        return np.zeros(1, dtype=np.int64)
    all_offsets = np.frombuffer(array.buffers()[1], dtype=np.int64)
    return all_offsets[array.offset : array.offset + len(array) + 1]


def _empty_values(count: int, where: str, path: str) -> DataError:
    are = "is 1 empty value" if count == 1 else f"are {count:,} empty values"
    return DataError(
        f"There {are} (null) in {where}, and no number or text stands for it.",
        received={"path": path},
        cure="Fill them when the file is written, or name the columns that are needed in"
        " data_plan.columns=[...].",
    )
