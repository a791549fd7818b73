"""Conversion of Arrow schemas to columns, and of Arrow tables to their values.

Structs are flattened (`address.city`), and dictionaries (categories) and extension types are
replaced by the types of their values. Times and dates become integers in their own unit, decimals
become float64. A struct of `bytes` and `path`, with which Hugging Face's `datasets` stores images
and sounds, becomes its bytes.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from edl_horovod.errors import DataError
from edl_horovod.records.chunks import ChunkInfo
from edl_horovod.records.columns import ColumnChunk, FlatRecords, Ragged, Stored
from edl_horovod.records.files.input_file import file_error
from edl_horovod.records.index_tables import IndexedFile, with_distinct_headers
from edl_horovod.records.layout import (
    BYTES,
    Column,
    Layout,
    column_error,
    empty_values,
    selected_columns,
)

_MEDIA = ["bytes", "path"]


def schema_bytes(schema: pa.Schema) -> bytes:
    """Serialize a schema without its metadata, as the header of an indexed file."""
    return bytes(schema.remove_metadata().serialize().to_pybytes())


def schema_of(file: IndexedFile) -> pa.Schema:
    """Parse the schema in the header of an indexed file."""
    return pa.ipc.read_schema(pa.py_buffer(file.header))


def same_layout_of(
    files: Sequence[IndexedFile],
    selected: Sequence[str],
    schema_of: Callable[[IndexedFile], pa.Schema] = schema_of,
) -> Layout:
    """Return the columns of files, which must have the same; see `layout_of`.

    Raises:
        DataError: The columns of the files differ.
    """
    first, *others = with_distinct_headers(files)
    schema = schema_of(first)
    for file in others:
        difference = _difference(schema, schema_of(file))
        if difference:
            raise DataError(
                "The data files have different columns.",
                received=f"{file.path} has {difference}, unlike {first.path}",
                hint="Write them with the same columns of the same types.",
            )
    return layout_of(schema, selected, path=first.path)


def layout_of(schema: pa.Schema, selected: Sequence[str], *, path: str) -> Layout:
    """Return the selected columns of a schema in their order; all if none is selected.

    Raises:
        ConfigError: A selected column does not exist.
        DataError: A column cannot become tensors, or several have its name.
    """
    flat_schema = flat(schema.empty_table()).schema
    fields = {field.name: field.type for field in flat_schema}
    counts = Counter(flat_schema.names)
    columns = []
    for name in selected_columns(selected, fields, holder=path):
        if counts[name] > 1:
            fact = f"{counts[name]} columns have this name"
            raise column_error(name, path, fact, "columns of different names")
        column_type = _column_type(fields[name])
        if column_type is None:
            fact = f"it is of type {fields[name]}"
            raise column_error(name, path, fact, "numbers, text, bytes, or lists of these")
        columns.append(Column(name, *column_type, time_type=_time_type(fields[name])))
    if not columns:
        raise file_error(path, "has no columns.")
    return Layout(tuple(columns))


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
            raise empty_values(table.num_rows, "null", location, path)
        columns.append(_stored(table_columns[column.name], column, location, path))
    return ColumnChunk(columns)


def flat(table: pa.Table) -> pa.Table:
    """Flatten the structs of a table."""
    while any(pa.types.is_struct(_plain_type(field.type)) for field in table.schema):
        parts = list(_flat_columns(table))
        table = pa.table([column for _, column in parts], names=[name for name, _ in parts])
    return table


def _arrow_type(dtype: str, shape: tuple[int | None, ...]) -> pa.DataType:
    """Return the Arrow type that the values of a column are cast to."""
    if not shape:
        return pa.large_binary() if dtype == BYTES else pa.from_numpy_dtype(dtype)
    inner = _arrow_type(dtype, shape[1:])
    return pa.large_list(inner) if shape[0] is None else pa.list_(inner, shape[0])


def _column_type(kind: pa.DataType) -> tuple[str, tuple[int | None, ...]] | None:
    """Return the NumPy type and the shape of a type's values; None if it is not supported."""
    kind = _plain_type(kind)
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    if not is_list and not pa.types.is_fixed_size_list(kind):
        dtype = _scalar_type(kind)
        return None if dtype is None else (dtype, ())
    value_type = _column_type(kind.value_type)
    if value_type is None:
        return None
    dtype, shape = value_type
    if is_list:
        return None if shape else (dtype, (None,))
    # A record may have one value of bytes or a list of them, but not a fixed shape.
    return None if dtype == BYTES or None in shape else (dtype, (kind.list_size, *shape))


def _scalar_type(kind: pa.DataType) -> str | None:
    types = pa.types
    if types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind):
        return str(np.dtype(kind.to_pandas_dtype()).name)
    if types.is_decimal(kind):
        return "float64"
    if types.is_date32(kind) or types.is_time32(kind):
        return "int32"
    if types.is_temporal(kind) and not types.is_interval(kind):
        return "int64"
    is_text = types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)
    is_binary = types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind)
    return BYTES if is_text or is_binary or types.is_fixed_size_binary(kind) else None


def _time_type(kind: pa.DataType) -> str:
    """Return the NumPy type of dates, times, durations and lists of them; "" for other types."""
    kind = _plain_type(kind)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return _time_type(kind.value_type)
    if pa.types.is_date(kind):
        return "datetime64[D]" if pa.types.is_date32(kind) else "datetime64[ms]"
    if pa.types.is_timestamp(kind):
        return f"datetime64[{kind.unit}]"
    is_timedelta = pa.types.is_time(kind) or pa.types.is_duration(kind)
    return f"timedelta64[{kind.unit}]" if is_timedelta else ""


def _plain_type(kind: pa.DataType) -> pa.DataType:
    """Unwrap extension types and dictionaries."""
    if isinstance(kind, pa.BaseExtensionType):
        return _plain_type(kind.storage_type)
    if pa.types.is_dictionary(kind):
        return _plain_type(kind.value_type)
    return kind


def _flat_columns(table: pa.Table) -> Iterator[tuple[str, pa.ChunkedArray]]:
    for name, column in zip(table.column_names, table.columns, strict=True):
        kind = _plain_type(column.type)
        if not pa.types.is_struct(kind):
            yield name, column
            continue
        column = column.cast(kind)
        names = [kind.field(number).name for number in range(kind.num_fields)]
        if sorted(names) == _MEDIA:
            yield name, pc.struct_field(column, "bytes")
            continue
        for number, inner in enumerate(names):
            yield f"{name}.{inner}", pc.struct_field(column, number)


def _difference(first: pa.Schema, other: pa.Schema) -> str:
    """Describe how another schema differs from the first; "" if it does not."""
    counts, expected_counts = Counter(other.names), Counter(first.names)
    expected = {field.name: field.type for field in first}
    actual = {field.name: field.type for field in other}
    for name in [*expected, *actual]:
        if name not in actual:
            return f"no column {name!r}"
        if name not in expected:
            return f"a column {name!r}"
        if counts[name] != expected_counts[name]:
            return f"the column {name!r} {counts[name]} times instead of {expected_counts[name]}"
        if expected[name] != actual[name]:
            return f"{actual[name]} in the column {name!r} instead of {expected[name]}"
    return ""


def _stored(values: pa.ChunkedArray, column: Column, location: str, path: str) -> Stored:
    try:
        array = _plain_array(values).cast(_arrow_type(column.dtype, column.shape))
    except (pa.ArrowInvalid, pa.ArrowIndexError) as e:
        problem = f"A value cannot be read in {location}: {e}."
        raise DataError(problem, received={"path": path}) from e
    return _from_array(array, column.dtype, column.shape, location, path)


def _from_array(
    array: pa.Array, dtype: str, shape: tuple[int | None, ...], location: str, path: str
) -> Stored:
    if array.null_count:
        if not pa.types.is_floating(array.type):
            raise empty_values(array.null_count, "null", location, path)
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


def _plain_array(values: pa.ChunkedArray) -> pa.Array:
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
