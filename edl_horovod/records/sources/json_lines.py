"""JSON lines by PyArrow: a record is the object in one line; blank lines are none.

The types of the columns are those of all lines of all files, found by the scan that finds the
chunks: a column with `1` in one line and `0.5` in another is float64. Text that looks like a date
stays text.
"""

import io
import zlib
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.json as pj

from edl_horovod.errors import DataError
from edl_horovod.records.chunks import ChunkInfo, Codec, FileChunks, check_unchanged
from edl_horovod.records.columns import ColumnChunk
from edl_horovod.records.files.local import open_input
from edl_horovod.records.layout import Layout
from edl_horovod.records.sources.arrow_columns import chunk_of
from edl_horovod.records.sources.arrow_schema import layout_of, schema_bytes, schema_of
from edl_horovod.records.sources.text_lines import line_chunks
from edl_horovod.records.tables import IndexedFile

__all__ = ["decode_chunk", "layout", "read_chunks"]


def read_chunks(path: str) -> FileChunks:
    """The chunks of a file of JSON lines; all of it is read once.

    Raises:
        DataError: The file cannot be opened, is compressed, or has a line that is no object.
    """
    with open_input(path) as file:
        chunks: list[ChunkInfo] = []
        schemas: list[pa.Schema] = []
        for offset, payload in line_chunks(file, "JSON lines"):
            if not payload.strip():
                continue
            table = _parse(payload, path, offset)
            schemas.append(_without_times(table.schema))
            chunk = ChunkInfo(
                number=len(chunks),
                offset=offset,
                checksum=zlib.crc32(payload),
                codec=Codec.NONE,
                compressed_bytes=len(payload),
                num_records=table.num_rows,
            )
            chunks.append(chunk)
        return FileChunks(
            path=path,
            size_bytes=file.size_bytes,
            chunks=tuple(chunks),
            header=schema_bytes(_unified(schemas, path)) if schemas else b"",
        )


def layout(files: Sequence[IndexedFile], *, wanted: Sequence[str]) -> Layout:
    """The columns of all files together; see `layout_of`."""
    filled = [file for file in files if file.num_chunks]
    headers = {file.header: file for file in filled}
    schema = _unified([schema_of(file) for file in headers.values()], filled[0].path)
    return layout_of(schema, wanted, path=filled[0].path)


def decode_chunk(
    payload: bytes, *, chunk: ChunkInfo, file: IndexedFile, layout: Layout
) -> ColumnChunk:
    """The columns of a run of lines.

    Raises:
        DataError: It has empty values, or has changed since it was scanned.
    """
    check_unchanged(payload, chunk=chunk, path=file.path)
    schema = schema_of(file)
    options = pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
    table = _parse(payload, file.path, chunk.offset, options)
    return chunk_of(table, layout=layout, path=file.path, chunk=chunk)


def _parse(
    payload: bytes, path: str, offset: int, options: pj.ParseOptions | None = None
) -> pa.Table:
    reading = pj.ReadOptions(use_threads=False, block_size=len(payload) + 1)
    try:
        return pj.read_json(io.BytesIO(payload), read_options=reading, parse_options=options)
    except pa.ArrowException as e:
        raise DataError(
            f"{path} cannot be read as JSON lines in the {len(payload):,} bytes from byte"
            f" {offset}: {e}",
            received={"path": path},
            cure="Write one object a line, with the same names and types in each.",
        ) from e


def _unified(schemas: Sequence[pa.Schema], path: str) -> pa.Schema:
    try:
        return pa.unify_schemas(list(schemas), promote_options="permissive")
    except pa.ArrowException as e:
        raise DataError(
            f"The lines of {path} differ in the types of their values: {e}",
            received={"path": path},
            cure="Write the same type in each line.",
        ) from e


def _without_times(schema: pa.Schema) -> pa.Schema:
    return pa.schema([pa.field(field.name, _as_text(field.type)) for field in schema])


def _as_text(kind: pa.DataType) -> pa.DataType:
    """A type with text where PyArrow took text for a time."""
    if pa.types.is_temporal(kind):
        return pa.string()
    if pa.types.is_list(kind):
        return pa.list_(_as_text(kind.value_type))
    if pa.types.is_struct(kind):
        fields = (kind.field(number) for number in range(kind.num_fields))
        return pa.struct([pa.field(field.name, _as_text(field.type)) for field in fields])
    return kind
