"""MDS shards, as MosaicML's Streaming writes them (format version 2).

A shard is the number of its samples (uint32), where each begins and the last ends (uint32), a JSON
object that names the columns with their encodings and sizes, and the samples. A sample is the sizes
(uint32) of its values of no fixed size, then all values, in the order of the columns. All numbers
are little-endian. `index.json` repeats this for all shards, and is not needed.
"""

import json
import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edl_horovod.errors import ConfigError, DataError, did_you_mean
from edl_horovod.records.chunks import ChunkInfo, Codec, FileChunks, changed
from edl_horovod.records.columns import ColumnChunk, Stored
from edl_horovod.records.files.input_file import InputFile
from edl_horovod.records.files.local import open_input
from edl_horovod.records.flat_records import FlatRecords
from edl_horovod.records.layout import BYTES, Column, Layout
from edl_horovod.records.tables import IndexedFile

__all__ = ["CHUNK_BYTES", "decode_chunk", "holds_chunk", "layout", "read_chunks"]

CHUNK_BYTES = 1 << 20
"""Size of a chunk; only one of a single sample is larger."""
_VERSION = 2
_AS_BYTES = ("bytes", "str", "json", "jpeg", "png", "str_int", "str_float", "str_decimal")
_NUMBERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
_FLOATS = ("float16", "float32", "float64")
_UINT32 = np.dtype("<u4")


@dataclass(frozen=True)
class _Value:
    """A column as a shard describes it."""

    name: str
    encoding: str
    size: int | None
    """Of a value, in bytes; None where each sample says it."""


def read_chunks(path: str) -> FileChunks:
    """The chunks of a shard; what is before the first sample is read.

    Raises:
        DataError: The file cannot be opened, is compressed, cut off, or no shard.
    """
    with open_input(path) as file:
        bounds, header = _start(file)
        chunks: list[ChunkInfo] = []
        first = 0
        while first < len(bounds) - 1:
            beyond = int(np.searchsorted(bounds, bounds[first] + CHUNK_BYTES, side="right")) - 1
            last = max(first + 1, beyond)
            chunk = ChunkInfo(
                number=len(chunks),
                offset=int(bounds[first]),
                checksum=_checksum(np.diff(bounds[first : last + 1])),
                codec=Codec.NONE,
                compressed_bytes=int(bounds[last] - bounds[first]),
                num_records=last - first,
            )
            chunks.append(chunk)
            first = last
        return FileChunks(
            path=path, size_bytes=file.size_bytes, chunks=tuple(chunks), header=header
        )


def layout(files: Sequence[IndexedFile], *, wanted: Sequence[str]) -> Layout:
    """The columns of some shards.

    Raises:
        ConfigError: There is no such column.
        DataError: Shards differ in their columns, or a column cannot become tensors.
    """
    filled = [file for file in files if file.num_chunks]
    for file in filled:
        if file.header != filled[0].header:
            raise DataError(
                "The MDS shards have different columns.",
                received=f"{file.path} is unlike {filled[0].path}",
                cure="Write them with the same columns and encodings.",
            )
    values = {value.name: value for value in _values(filled[0].header)}
    for name in wanted:
        if name not in values:
            raise ConfigError(
                f"{filled[0].path} has no column {name!r}.",
                received={"data_plan.columns": ",".join(wanted)},
                cure=f"Its columns are {', '.join(values)}.{did_you_mean(name, list(values))}",
            )
    columns = []
    for name in wanted or values:
        found = _column(values[name])
        if found is None:
            raise DataError(
                f"The column {name!r} of {filled[0].path} cannot become tensors: its encoding is"
                f" {values[name].encoding!r}.",
                received={"path": filled[0].path},
                cure="Name the columns that are needed in data_plan.columns=[...], or write it as"
                " numbers, str, bytes, jpeg, png or an ndarray of a fixed type and shape.",
            )
        columns.append(found)
    return Layout(tuple(columns))


def decode_chunk(
    payload: bytes, *, chunk: ChunkInfo, file: IndexedFile, layout: Layout
) -> ColumnChunk:
    """The columns of a run of samples.

    Raises:
        DataError: The shard has changed since it was scanned.
    """
    values = _values(file.header)
    sizes = _sizes(payload, values)
    lengths = sizes.sum(axis=1) + _UINT32.itemsize * sum(value.size is None for value in values)
    if len(sizes) != chunk.num_records or _checksum(lengths) != chunk.checksum:
        raise changed(file.path, chunk)
    # The values of a sample follow the sizes of those that have no fixed one.
    ends = np.cumsum(lengths)[:, None] - np.cumsum(sizes[:, ::-1], axis=1)[:, ::-1] + sizes
    names = [value.name for value in values]
    return ColumnChunk(
        [
            _stored(payload, ends[:, place] - sizes[:, place], ends[:, place], column)
            for column in layout.columns
            for place in (names.index(column.name),)
        ]
    )


def holds_chunk(file: InputFile, chunk: ChunkInfo) -> bool:
    """Whether samples of the same lengths begin at the same places.

    Raises:
        DataError: The file cannot be read, or is no shard any more.
    """
    bounds, _ = _start(file)
    first = int(np.searchsorted(bounds, chunk.offset))
    lengths = np.diff(bounds[first : first + chunk.num_records + 1])
    is_there = first < len(bounds) and int(bounds[first]) == chunk.offset
    return is_there and _checksum(lengths) == chunk.checksum


def _start(file: InputFile) -> tuple[NDArray[np.int64], bytes]:
    """Where samples begin and the last ends, and the description of the columns."""
    path, size = file.path, file.size_bytes
    count = int.from_bytes(file.read_at(0, num_bytes=4), "little")
    table = file.read_at(4, num_bytes=min(4 * (count + 1), size))
    bounds = np.frombuffer(table[: len(table) // 4 * 4], _UINT32).astype(np.int64)
    is_sound = len(bounds) == count + 1 and bounds[0] > 4 + len(table)
    if not is_sound or (np.diff(bounds) < 0).any():
        raise _damaged(path, "its table of samples cannot be read, as if it were compressed")
    if bounds[-1] != size:
        raise _damaged(path, f"it has {size} bytes, and its last sample ends at {bounds[-1]}")
    begin = 4 + len(table)
    header = file.read_at(begin, num_bytes=int(bounds[0]) - begin)
    try:
        _values(header)
    except (ValueError, KeyError, TypeError) as e:
        raise _damaged(path, f"the description of its columns cannot be read ({e})") from e
    return bounds, header


def _values(header: bytes) -> list[_Value]:
    found: dict[str, Any] = json.loads(header)
    if found["format"] != "mds" or found["version"] != _VERSION:
        raise ValueError(f"it is of format {found['format']}, version {found['version']}")
    columns = (found["column_names"], found["column_encodings"], found["column_sizes"])
    return [_Value(*one) for one in zip(*columns, strict=True)]


def _column(value: _Value) -> Column | None:
    """What a column becomes; None where it cannot be tensors."""
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


def _sizes(payload: bytes, values: Sequence[_Value]) -> NDArray[np.int64]:
    """The sizes of the values of each sample, shape (samples, columns)."""
    own = [place for place, value in enumerate(values) if value.size is None]
    fixed = sum(value.size or 0 for value in values)
    heads: list[bytes] = []
    head_bytes = _UINT32.itemsize * len(own)
    offset = 0
    while offset + max(1, head_bytes) <= len(payload) and head_bytes + fixed:
        heads.append(payload[offset : offset + head_bytes])
        offset += head_bytes + fixed + sum(memoryview(heads[-1]).cast("I"))
    sizes = np.tile([value.size or 0 for value in values], (len(heads), 1)).astype(np.int64)
    if own:
        sizes[:, own] = np.frombuffer(b"".join(heads), _UINT32).reshape(-1, len(own))
    return sizes


def _stored(
    payload: bytes, starts: NDArray[np.int64], ends: NDArray[np.int64], column: Column
) -> Stored:
    if column.dtype == BYTES:
        return FlatRecords(payload, starts.copy(), ends.copy())
    dtype = np.dtype(column.dtype).newbyteorder("<")
    shape = [size or 0 for size in column.shape]
    size = dtype.itemsize * math.prod(shape)
    data = np.frombuffer(payload, np.uint8)[starts[:, None] + np.arange(size)]
    rows = np.ascontiguousarray(data).view(dtype).reshape(len(starts), *shape)
    return rows.astype(column.dtype, copy=False)


def _checksum(lengths: NDArray[np.int64]) -> int:
    return zlib.crc32(lengths.astype(_UINT32).tobytes())


def _damaged(path: str, problem: str) -> DataError:
    return DataError(
        f"{path} is no MDS shard that can be read: {problem}.",
        received={"path": path},
        cure="Write it with streaming.MDSWriter(compression=None).",
    )
