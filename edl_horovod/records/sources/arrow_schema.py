"""Which columns an Arrow schema means, and what their values become.

Structs are taken apart (`address.city`), dictionaries (categories) and extension types count as
what they hold. Times and dates become integers in their own unit, decimals become float64. A struct
of `bytes` and `path`, as Hugging Face's `datasets` stores pictures and sounds, is its bytes.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from edl_horovod.errors import ConfigError, DataError, did_you_mean
from edl_horovod.records.layout import BYTES, Column, Layout
from edl_horovod.records.tables import IndexedFile

__all__ = [
    "arrow_type",
    "check_same",
    "flat",
    "layout_of",
    "schema_bytes",
    "schema_of",
    "shared_schema",
]

_MEDIA = {"bytes", "path"}


def schema_bytes(schema: pa.Schema) -> bytes:
    """A schema as the header of an indexed file, without what says nothing of its columns."""
    return bytes(schema.remove_metadata().serialize().to_pybytes())


def shared_schema(files: Sequence[IndexedFile]) -> pa.Schema:
    """The schema that all files with records have.

    Raises:
        DataError: Their columns differ.
    """
    filled = [file for file in files if file.num_chunks]
    first = schema_of(filled[0])
    seen = {filled[0].header}
    for file in filled:
        if file.header in seen:
            continue
        seen.add(file.header)
        check_same(first, filled[0].path, schema_of(file), file.path)
    return first


def check_same(first: pa.Schema, first_path: str, other: pa.Schema, path: str) -> None:
    """Refuse files whose columns differ.

    Raises:
        DataError: They do.
    """
    difference = _difference(first, other)
    if difference:
        raise DataError(
            "The data files have different columns.",
            received=f"{path} has {difference}, unlike {first_path}",
            cure="Write them with the same columns of the same types.",
        )


def schema_of(file: IndexedFile) -> pa.Schema:
    """The schema in the header of an indexed file."""
    return pa.ipc.read_schema(pa.py_buffer(file.header))


def layout_of(schema: pa.Schema, wanted: Sequence[str], *, path: str) -> Layout:
    """The columns of a schema, all or those that are wanted, in that order.

    Raises:
        ConfigError: There is no such column.
        DataError: A column cannot become tensors.
    """
    fields = {field.name: field.type for field in flat(schema.empty_table()).schema}
    for name in wanted:
        if name not in fields:
            raise ConfigError(
                f"{path} has no column {name!r}.",
                received={"data_plan.columns": ",".join(wanted)},
                cure=f"Its columns are {', '.join(fields)}.{did_you_mean(name, list(fields))}",
            )
    columns = []
    for name in wanted or fields:
        found = _type_of(fields[name])
        if found is None:
            raise DataError(
                f"The column {name!r} of {path} cannot become tensors: it is of type"
                f" {fields[name]}.",
                received={"path": path},
                cure="Name the columns that are needed in data_plan.columns=[...], or write it as"
                " numbers, text, bytes, or lists of these.",
            )
        columns.append(Column(name, *found, time_type=_time_type(fields[name])))
    if not columns:
        raise DataError(f"{path} has no columns.", received={"path": path})
    return Layout(tuple(columns))


def flat(table: pa.Table) -> pa.Table:
    """A table with structs taken apart."""
    while any(pa.types.is_struct(_plain(field.type)) for field in table.schema):
        parts = dict(_parts(table))
        table = pa.table(list(parts.values()), names=list(parts))
    return table


def arrow_type(dtype: str, shape: tuple[int | None, ...]) -> pa.DataType:
    """The Arrow type that values of a column are cast to."""
    if not shape:
        return pa.large_binary() if dtype == BYTES else pa.from_numpy_dtype(dtype)
    inner = arrow_type(dtype, shape[1:])
    return pa.large_list(inner) if shape[0] is None else pa.list_(inner, shape[0])


def _type_of(kind: pa.DataType) -> tuple[str, tuple[int | None, ...]] | None:
    """What the values of a type become, NumPy's type and a shape; None where nothing fits."""
    kind = _plain(kind)
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    if not is_list and not pa.types.is_fixed_size_list(kind):
        dtype = _scalar(kind)
        return None if dtype is None else (dtype, ())
    found = _type_of(kind.value_type)
    if found is None:
        return None
    dtype, shape = found
    if is_list:
        return None if shape else (dtype, (None,))
    # Bytes are taken record by record, so there is one of them, or a run, in each.
    return None if dtype == BYTES or None in shape else (dtype, (kind.list_size, *shape))


def _scalar(kind: pa.DataType) -> str | None:
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
    """NumPy's type of dates, times and durations, also in lists; "" for all else."""
    kind = _plain(kind)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return _time_type(kind.value_type)
    if pa.types.is_date(kind):
        return "datetime64[D]" if pa.types.is_date32(kind) else "datetime64[ms]"
    if pa.types.is_timestamp(kind):
        return f"datetime64[{kind.unit}]"
    is_timedelta = pa.types.is_time(kind) or pa.types.is_duration(kind)
    return f"timedelta64[{kind.unit}]" if is_timedelta else ""


def _plain(kind: pa.DataType) -> pa.DataType:
    """A type without the extension or the dictionary around it."""
    if isinstance(kind, pa.BaseExtensionType):
        return _plain(kind.storage_type)
    if pa.types.is_dictionary(kind):
        return _plain(kind.value_type)
    return kind


def _parts(table: pa.Table) -> Iterator[tuple[str, pa.ChunkedArray]]:
    for name, column in zip(table.column_names, table.columns, strict=True):
        kind = _plain(column.type)
        if not pa.types.is_struct(kind):
            yield name, column
            continue
        column = column.cast(kind)
        names = [kind.field(number).name for number in range(kind.num_fields)]
        if set(names) == _MEDIA:
            yield name, pc.struct_field(column, "bytes")
            continue
        for inner in names:
            yield f"{name}.{inner}", pc.struct_field(column, inner)


def _difference(first: pa.Schema, other: pa.Schema) -> str:
    """What another schema has that the first has not, or the other way round; "" for nothing."""
    expected = {field.name: field.type for field in first}
    found = {field.name: field.type for field in other}
    for name in [*expected, *found]:
        if name not in found:
            return f"no column {name!r}"
        if name not in expected:
            return f"a column {name!r}"
        if expected[name] != found[name]:
            return f"{found[name]} in the column {name!r} instead of {expected[name]}"
    return ""
