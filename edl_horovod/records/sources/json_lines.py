"""JSON lines, read with PyArrow: a record is the object in one line; blank lines are ignored.

The scan that finds the chunks also finds the common types of the columns over all lines of all
files: a column with `1` in one line and `0.5` in another is float64. Text that looks like a date
remains text.
"""

import functools
import io
from collections.abc import Iterator, Sequence

import pyarrow as pa
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
from edl_horovod.records.sources.arrow_columns import chunk_of, layout_of, schema_bytes, schema_of
from edl_horovod.records.sources.text_lines import line_chunks


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
        DataError: The lines have empty values, or have changed since the scan.
    """
    chunk.check(payload, file.path)
    schema = schema_of(file)
    options = pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
    table = _parse(payload, file.path, chunk.offset, options)
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
        raise file_error(
            path,
            f"cannot be read as JSON lines in the {len(payload):,} bytes from byte {offset}: {e}",
            hint="Write one object per line, with the same names and types in each line, or set"
            " data_plan.damaged=skip to skip lines that are not objects.",
        ) from e


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
