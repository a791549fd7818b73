"""JSON lines, read with PyArrow: a record is the object in one line; blank lines are ignored.

The scan that finds the chunks also finds the common types of the columns over all lines of all
files: a column with `1` in one line and `0.5` in another is float64. An integer that float64 would
round is an error then. Text that looks like a date remains text.
"""

import functools
import io
import itertools
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from edl_horovod.errors import DataError
from edl_horovod.records.chunks import ChunkInfo, FileChunks, holds_bytes, is_skipping, warn_skipped
from edl_horovod.records.columns import ColumnChunk
from edl_horovod.records.files.input_file import InputFile, file_error
from edl_horovod.records.files.pool import open_input
from edl_horovod.records.index_tables import IndexedFile, with_distinct_headers
from edl_horovod.records.layout import Layout
from edl_horovod.records.record_format import ColumnFormat, RecordFormat
from edl_horovod.records.source import FormatSettings
from edl_horovod.records.sources.arrow_columns import (
    chunk_of,
    flat,
    layout_of,
    schema_bytes,
    schema_of,
)
from edl_horovod.records.sources.text_lines import line_chunks

_FIRST_ROUNDED = 2.0**53
"""The smallest number that an integer which float64 cannot hold may be rounded to."""
_LONG_INTEGER = re.compile(rb"(?<![\d.])\d{16,}(?![\d.eE])")
_NOT_BLANK = re.compile(r"\S")


def make(name: str, settings: FormatSettings) -> RecordFormat:
    """The format with the settings of a job."""
    scan = functools.partial(read_chunks, damaged=settings.damaged)
    return RecordFormat(name, scan, ColumnFormat(layout, decode), holds_bytes)


def read_chunks(path: str, *, damaged: str = "raise") -> FileChunks:
    """Find the chunks of a file of JSON lines; reads the whole file once.

    Args:
        path: A file of JSON lines.
        damaged: `raise` at a line that is not an object, or `skip` such lines.

    Raises:
        DataError: The file cannot be opened, is compressed, or has a line that is not an object.
    """
    with open_input(path) as file:
        chunks: list[ChunkInfo] = []
        schemas: list[pa.Schema] = []
        num_skipped = 0
        for offset, payload, table in _tables(file, skips_bad_lines=is_skipping(damaged)):
            if table is None:
                num_skipped += 1
                continue
            fields = [pa.field(field.name, _as_text(field.type)) for field in table.schema]
            schemas.append(pa.schema(fields))
            count = table.num_rows
            chunks.append(ChunkInfo.of(payload, len(chunks), offset=offset, num_records=count))
        header = schema_bytes(_unified(schemas, path)) if schemas else b""
        return FileChunks(path, file.size_bytes, tuple(chunks), num_skipped, num_skipped, header)


def layout(files: Sequence[IndexedFile], selected: Sequence[str]) -> Layout:
    """Return the common columns of all files; see `layout_of`."""
    differing = with_distinct_headers(files)
    schema = _unified([schema_of(file) for file in differing], differing[0].path)
    return layout_of(schema, selected, path=differing[0].path)


def decode(payload: bytes, *, chunk: ChunkInfo, file: IndexedFile, layout: Layout) -> ColumnChunk:
    """Decode the columns of a run of lines.

    Raises:
        DataError: The lines have empty values or integers that are rounded, or have changed since
            the scan.
    """
    chunk.check(payload, file.path)
    schema = schema_of(file)
    options = pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
    table = flat(_parse(payload, file.path, chunk.offset, options))
    _check_integers(payload, table, layout, file.path, chunk)
    return chunk_of(table, layout=layout, path=file.path, chunk=chunk)


def _tables(
    file: InputFile, *, skips_bad_lines: bool
) -> Iterator[tuple[int, bytes, pa.Table | None]]:
    """Yield the offset, the bytes and the table of each run of lines.

    With `skips_bad_lines` a bad run is halved, down to single lines, which are runs without a
    table.
    """
    for chunk in line_chunks(file, "JSON lines"):
        pending = [chunk]
        while pending:
            offset, payload = pending.pop()
            if not payload.strip():
                continue
            try:
                yield offset, payload, _parse(payload, file.path, offset)
            except DataError as error:
                half = len(payload) // 2
                middle = payload.rfind(b"\n", 0, half) + 1 or payload.find(b"\n", half) + 1
                if not skips_bad_lines:
                    raise
                if middle not in (0, len(payload)):
                    pending += [(offset + middle, payload[middle:]), (offset, payload[:middle])]
                    continue
                warn_skipped(file.path, "a line", error.problem)
                yield offset, payload, None


def _parse(
    payload: bytes, path: str, offset: int, options: pj.ParseOptions | None = None
) -> pa.Table:
    read_options = pj.ReadOptions(use_threads=False, block_size=len(payload) + 1)
    try:
        return pj.read_json(io.BytesIO(payload), read_options=read_options, parse_options=options)
    except pa.ArrowException as e:
        raise _unreadable(payload, path, offset, e) from e


def _unreadable(payload: bytes, path: str, offset: int, error: Exception) -> DataError:
    return file_error(
        path,
        f"cannot be read as JSON lines in the {len(payload):,} bytes from byte {offset}: {error}",
        hint="Write one object per line, with the same names and types in each line, or set"
        " data_plan.damaged=skip to skip lines that are not objects.",
    )


def _check_integers(
    payload: bytes, table: pa.Table, layout: Layout, path: str, chunk: ChunkInfo
) -> None:
    """Refuse integers that PyArrow rounded because their column also has other numbers.

    Raises:
        DataError: A column of the layout has such an integer.
    """
    selected = {column.name for column in layout.columns if column.dtype == "float64"}
    suspects = {
        name for name in selected.intersection(table.column_names) if _is_large(table[name])
    }
    if not suspects or not _LONG_INTEGER.search(payload):
        return
    objects = _objects(payload, path, chunk.offset)
    for name, number in itertools.chain.from_iterable(map(_integers_of, objects)):
        if name in suspects and _is_rounded(number):
            raise DataError(
                f"The column {name!r} of {path} has the integer {number}, in its part"
                f" {chunk.number + 1}, and numbers that are no 64-bit integers; float64, the type"
                " of all of them, would round it.",
                received={"path": path},
                hint="Write such numbers as text, or all numbers of the column as integers below"
                " 2**63, or leave the column out with data_plan.columns=[...].",
            )


def _is_large(values: pa.ChunkedArray) -> bool:
    """Whether a column or its lists have a number that may be a rounded integer."""
    while pa.types.is_list(values.type):
        values = pc.list_flatten(values)
    if not pa.types.is_float64(values.type):
        return False
    largest = pc.max(pc.abs(values)).as_py()
    return largest is not None and largest >= _FIRST_ROUNDED


def _is_rounded(number: int) -> bool:
    try:
        return int(float(number)) != number
    except OverflowError:
        return True


def _objects(payload: bytes, path: str, offset: int) -> Iterator[Any]:
    """Yield the objects of lines that PyArrow has parsed; a line may hold several."""
    text = payload.decode(errors="replace")
    position = 0
    decoder = json.JSONDecoder()
    try:
        while start := _NOT_BLANK.search(text, position):
            parsed, position = decoder.raw_decode(text, start.start())
            yield parsed
    except ValueError as e:
        raise _unreadable(payload, path, offset, e) from e


def _integers_of(value: Any, name: str = "") -> Iterator[tuple[str, int]]:
    """Yield the integers in an object with the names of their columns."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _integers_of(inner, f"{name}.{key}" if name else key)
    elif isinstance(value, list):
        for inner in value:
            yield from _integers_of(inner, name)
    elif isinstance(value, int):
        yield name, value


def _unified(schemas: Sequence[pa.Schema], path: str) -> pa.Schema:
    try:
        return pa.unify_schemas(list(schemas), promote_options="permissive")
    except pa.ArrowException as e:
        problem = f"The lines of {path} differ in the types of their values: {e}"
        hint = "Write the same type in each line."
        raise DataError(problem, received={"path": path}, hint=hint) from e


def _as_text(kind: pa.DataType) -> pa.DataType:
    """Replace the time types that PyArrow inferred from text by text."""
    if pa.types.is_temporal(kind):
        return pa.string()
    if pa.types.is_list(kind):
        return pa.list_(_as_text(kind.value_type))
    if pa.types.is_struct(kind):
        fields = (kind.field(number) for number in range(kind.num_fields))
        return pa.struct([pa.field(field.name, _as_text(field.type)) for field in fields])
    return kind
