"""MDS shards of MosaicML's Streaming (format version 2).

A shard is the number of its samples (uint32), the offset of each sample and of the end (uint32), a
JSON object with the names, encodings and sizes of the columns, and the samples. A sample is the
sizes (uint32) of its values with a variable size, then all values in the order of the columns. All
numbers are little-endian. `index.json` repeats this for all shards and is not needed.
"""

import json
import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edl_horovod.errors import DataError
from edl_horovod.records.chunks import ChunkInfo, FileChunks
from edl_horovod.records.columns import ColumnChunk, FlatRecords, Stored
from edl_horovod.records.files.input_file import InputFile, file_error
from edl_horovod.records.files.pool import open_input
from edl_horovod.records.index_tables import IndexedFile, with_distinct_headers
from edl_horovod.records.layout import BYTES, Column, Layout, column_error, selected_columns
from edl_horovod.records.record_format import ColumnFormat, RecordFormat
from edl_horovod.records.source import FormatSettings

CHUNK_BYTES = 1 << 20
"""Maximum size of a chunk; only a chunk of a single sample is larger."""
_VERSION = 2
_AS_BYTES = ("bytes", "str", "json", "jpeg", "png", "str_int", "str_float", "str_decimal")
_NUMBERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
_FLOATS = ("float16", "float32", "float64")
_UINT32 = np.dtype("<u4")
_Integers = NDArray[np.int64]


@dataclass(frozen=True)
class _Value:
    """A column in the description of a shard."""

    name: str
    encoding: str
    size: int | None
    """Size of a value in bytes; None if it is variable."""


def make(name: str, _: FormatSettings) -> RecordFormat:
    """The format with the settings of a job."""
    columns = ColumnFormat(layout, decode)
    # The files have no checksums, so samples show whether they changed.
    return RecordFormat(name, read_chunks, columns, holds_chunk, change_detection="samples")


def read_chunks(path: str) -> FileChunks:
    """Find the chunks of a shard; reads only the bytes before the first sample.

    Raises:
        DataError: The file cannot be opened, is compressed, truncated, or not a shard.
    """
    with open_input(path) as file:
        bounds, header = _offsets_and_header(file)
        chunks: list[ChunkInfo] = []
        first = 0
        while first < len(bounds) - 1:
            beyond = int(np.searchsorted(bounds, bounds[first] + CHUNK_BYTES, side="right")) - 1
            last = max(first + 1, beyond)
            start, end, number = int(bounds[first]), int(bounds[last]), len(chunks)
            checksum, count = _checksum(np.diff(bounds[first : last + 1])), last - first
            chunk = ChunkInfo.between(number, start, end, checksum=checksum, num_records=count)
            chunks.append(chunk)
            first = last
        return FileChunks(path, file.size_bytes, tuple(chunks), header=header)


def layout(files: Sequence[IndexedFile], selected: Sequence[str]) -> Layout:
    """Return the columns of the shards.

    Raises:
        ConfigError: A selected column does not exist.
        DataError: The columns differ between shards, or a column cannot become tensors.
    """
    first, *others = with_distinct_headers(files)
    for file in others:
        problem = "The MDS shards have different columns."
        hint = "Write them with the same columns and encodings."
        raise DataError(problem, received=f"{file.path} differs from {first.path}", hint=hint)
    values = {value.name: value for value in _values(first.header)}
    columns = []
    for name in selected_columns(selected, values, holder=first.path):
        column = _column(values[name])
        if column is None:
            fact = f"its encoding is {values[name].encoding!r}"
            kinds = "numbers, str, bytes, jpeg, png or an ndarray of a fixed type and shape"
            raise column_error(name, first.path, fact, kinds)
        columns.append(column)
    return Layout(tuple(columns))


def decode(payload: bytes, *, chunk: ChunkInfo, file: IndexedFile, layout: Layout) -> ColumnChunk:
    """Decode the columns of a run of samples.

    Raises:
        DataError: The shard has changed since it was scanned.
    """
    values = _values(file.header)
    sizes = _sizes(payload, values)
    lengths = sizes.sum(axis=1) + _UINT32.itemsize * sum(value.size is None for value in values)
    if len(sizes) != chunk.num_records or _checksum(lengths) != chunk.checksum:
        raise chunk.changed(file.path)
    # The values of a sample come after its variable sizes, so compute the ends from the back.
    ends = np.cumsum(lengths)[:, None] - np.cumsum(sizes[:, ::-1], axis=1)[:, ::-1] + sizes
    numbers = {value.name: number for number, value in enumerate(values)}
    starts = ends - sizes
    bounds = [(column, numbers[column.name]) for column in layout.columns]
    return ColumnChunk(
        [_stored(payload, starts[:, number], ends[:, number], column) for column, number in bounds]
    )


def holds_chunk(file: InputFile, chunk: ChunkInfo) -> bool:
    """Whether the offsets and lengths of a chunk's samples are unchanged.

    Raises:
        DataError: The file cannot be read, or is no longer a shard.
    """
    bounds, _ = _offsets_and_header(file)
    first = int(np.searchsorted(bounds, chunk.offset))
    lengths = np.diff(bounds[first : first + chunk.num_records + 1])
    has_same_start = first < len(bounds) and int(bounds[first]) == chunk.offset
    return has_same_start and _checksum(lengths) == chunk.checksum


def _offsets_and_header(file: InputFile) -> tuple[_Integers, bytes]:
    """Read the offset of each sample and of the end of the last; and the columns' description."""
    path, size = file.path, file.size_bytes
    count = int.from_bytes(file.read_at(0, num_bytes=4), "little")
    table = file.read_at(4, num_bytes=min(4 * (count + 1), size))
    bounds = np.frombuffer(table[: len(table) // 4 * 4], _UINT32).astype(np.int64)
    is_valid = len(bounds) == count + 1 and bounds[0] > 4 + len(table)
    if not is_valid or (np.diff(bounds) < 0).any():
        raise _damaged(path, "its table of samples is invalid; the shard may be compressed")
    if bounds[-1] != size:
        raise _damaged(path, f"it has {size} bytes, but its last sample ends at {bounds[-1]}")
    header_start = 4 + len(table)
    header = file.read_at(header_start, num_bytes=int(bounds[0]) - header_start)
    try:
        _values(header)
    except (ValueError, KeyError, TypeError) as e:
        raise _damaged(path, f"the description of its columns cannot be read ({e})") from e
    return bounds, header


def _values(header: bytes) -> list[_Value]:
    description: dict[str, Any] = json.loads(header)
    if description["format"] != "mds" or description["version"] != _VERSION:
        raise ValueError(f"its format is {description['format']}, version {description['version']}")
    columns = [description[f"column_{fact}"] for fact in ("names", "encodings", "sizes")]
    return [_Value(*value) for value in zip(*columns, strict=True)]


def _column(value: _Value) -> Column | None:
    """Return the column for a value; None if it cannot become a tensor."""
    kind, *rest = value.encoding.split(":")
    if kind in _AS_BYTES:
        return Column(value.name, BYTES)
    if kind == "int":
        return Column(value.name, "int64")
    if kind in (*_NUMBERS, *_FLOATS):
        return Column(value.name, kind)
    if kind == "ndarray" and len(rest) == 2 and rest[0] in (*_NUMBERS, *_FLOATS):
        return Column(value.name, rest[0], tuple(map(int, rest[1].split(","))))
    return None


def _sizes(payload: bytes, values: Sequence[_Value]) -> _Integers:
    """Return the sizes of the values of each sample, shape (samples, columns)."""
    variable = [index for index, value in enumerate(values) if value.size is None]
    fixed_bytes = sum(value.size or 0 for value in values)
    sample_sizes: list[bytes] = []
    sizes_bytes = _UINT32.itemsize * len(variable)
    offset = 0
    while offset + max(1, sizes_bytes) <= len(payload) and sizes_bytes + fixed_bytes:
        sample_sizes.append(payload[offset : offset + sizes_bytes])
        offset += sizes_bytes + fixed_bytes + sum(memoryview(sample_sizes[-1]).cast("I"))
    sizes = np.tile([value.size or 0 for value in values], (len(sample_sizes), 1)).astype(np.int64)
    if variable:
        variable_sizes = np.frombuffer(b"".join(sample_sizes), _UINT32)
        sizes[:, variable] = variable_sizes.reshape(-1, len(variable))
    return sizes


def _stored(payload: bytes, starts: _Integers, ends: _Integers, column: Column) -> Stored:
    if column.dtype == BYTES:
        return FlatRecords(payload, starts.copy(), ends.copy())
    dtype = np.dtype(column.dtype).newbyteorder("<")
    shape = [size or 0 for size in column.shape]
    size = dtype.itemsize * math.prod(shape)
    data = np.frombuffer(payload, np.uint8)[starts[:, None] + np.arange(size)]
    rows = np.ascontiguousarray(data).view(dtype).reshape(len(starts), *shape)
    return rows.astype(column.dtype, copy=False)


def _checksum(lengths: _Integers) -> int:
    return zlib.crc32(lengths.astype(_UINT32).tobytes())


def _damaged(path: str, problem: str) -> DataError:
    message = f"is not a readable MDS shard: {problem}."
    return file_error(path, message, hint="Write it with streaming.MDSWriter(compression=None).")
