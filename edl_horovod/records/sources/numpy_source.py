"""Files of NumPy arrays as records: record `i` is row `i` of each array.

The arrays of one `.npz` file are columns of the same records, and so are the `.npy` files of one
folder. Several `.npz` files or folders are concatenated.

An `.npz` file is a zip archive of `.npy` files. If it is not compressed (`numpy.savez`), an array
in it is a contiguous run of bytes, as in a separate file. If it is (`numpy.savez_compressed`), a
rank that needs a record decompresses the whole array. The archive has a checksum of each whole
array, which is verified when the array is decompressed, or when `_Archives` computes the
checksums of its runs.
"""

import functools
import hashlib
import io
import itertools
import json
import math
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any, Final

import numpy as np
from numpy.typing import NDArray

from edl_horovod.errors import DataError
from edl_horovod.records.chunk_source import ChunkSource
from edl_horovod.records.chunks import ChunkInfo, FileChunks, holds_bytes, sampled_checksum
from edl_horovod.records.columns import ColumnChunk, Stored, object_array
from edl_horovod.records.files.input_file import (
    FileState,
    InputFile,
    ReadAhead,
    SeekableFile,
    file_error,
)
from edl_horovod.records.files.pool import FilePool, open_input
from edl_horovod.records.index_store import load_or_scan, states_of
from edl_horovod.records.index_tables import IndexInputs, Tables
from edl_horovod.records.layout import BYTES, Column, Layout, empty_values, selected_columns
from edl_horovod.records.source import SourceRequest

_LOCAL_HEADER = struct.Struct("<26xHH")
_BLOCK_BYTES = 1 << 20
_BLOCK_RECORDS = 4096


@dataclass(frozen=True)
class StoredArray:
    """An array in a file."""

    path: str
    name: str
    """Its name in an `.npz` file, or the file's name without its ending."""
    offset: int
    """Offset of its first record in the file; -1 if it is compressed."""
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    checksum: int
    """Checksum of the archive member, or of samples of an `.npy` file."""
    member: tuple[int, int] | None = None
    """Start and end of its uncompressed archive member in the file; else None."""

    @property
    def is_compressed(self) -> bool:
        """Whether the array is compressed."""
        return self.offset < 0

    @property
    def label(self) -> str:
        """The name and the file of the array, for messages."""
        return f"the array {self.name!r} of {self.path}"

    @property
    def row_bytes(self) -> int:
        """Size of one record, in bytes."""
        return math.prod(self.shape[1:]) * self.dtype.itemsize

    @property
    def num_bytes(self) -> int:
        """Size of all records, in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize


_Part = dict[str, StoredArray]
"""Arrays with the same number of records, by name."""


def _arrays_of(path: str) -> list[StoredArray]:
    """Return the arrays of a file without reading their contents.

    Raises:
        DataError: The file cannot be opened, is damaged, or is not a NumPy file.
    """
    with open_input(path) as file, _translated_errors(path):
        if not path.lower().endswith(".npz"):
            stream = SeekableFile(file)
            dtype, shape = _header(stream, path)
            name, offset = path.rpartition("/")[2].rpartition(".")[0], stream.tell()
            array = StoredArray(path, name, offset, dtype, shape, sampled_checksum(file))
            return [_whole(array, file)]
        with zipfile.ZipFile(SeekableFile(file)) as archive:
            return [_member(archive, info, file) for info in archive.infolist()]


@functools.lru_cache(maxsize=8)
def _decompressed(array: StoredArray) -> NDArray[Any]:
    """Decompress a whole array; the last few arrays are cached.

    Raises:
        DataError: The array is damaged.
    """
    with open_input(array.path) as file, _translated_errors(array.path):
        with zipfile.ZipFile(SeekableFile(file)) as archive:
            info = archive.getinfo(f"{array.name}.npy")
            content = archive.read(info)
        values = np.load(io.BytesIO(content), allow_pickle=False)
    if (values.dtype, values.shape, info.CRC) != (array.dtype, array.shape, array.checksum):
        raise _damaged(array.path, f"{array.label} has changed since the job indexed it")
    result: NDArray[Any] = values
    return result


def _damaged(path: str, problem: str) -> DataError:
    message = f"cannot be read: {problem}."
    return file_error(path, message, hint="Write it again with numpy.save or numpy.savez.")


def _member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, file: InputFile) -> StoredArray:
    name = info.filename.removesuffix(".npy")
    if name == info.filename:
        raise _damaged(file.path, f"it contains {info.filename!r}, which is not an array")
    with archive.open(info) as stream:
        dtype, shape = _header(stream, file.path)
        header_bytes = stream.tell()
    offset, member = -1, None
    if info.compress_type == zipfile.ZIP_STORED:
        local = file.read_at(info.header_offset, num_bytes=_LOCAL_HEADER.size)
        names_bytes = sum(_LOCAL_HEADER.unpack(local))
        start = info.header_offset + _LOCAL_HEADER.size + names_bytes
        offset, member = start + header_bytes, (start, start + info.file_size)
    return _whole(StoredArray(file.path, name, offset, dtype, shape, info.CRC, member), file)


def _header(stream: IO[bytes] | SeekableFile, path: str) -> tuple[np.dtype[Any], tuple[int, ...]]:
    version = np.lib.format.read_magic(stream)
    readers = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    if version not in readers:
        raise _damaged(path, f"its format version {version} is for arrays with named fields")
    shape, is_fortran, dtype = readers[version](stream)
    if dtype.hasobject or dtype.fields is not None:
        problem = "Python objects" if dtype.hasobject else "named fields"
        raise _damaged(path, f"an array in it contains {problem}, not numbers or text")
    if is_fortran and len(shape) > 1:
        raise _damaged(path, "its records are not contiguous (save numpy.ascontiguousarray(array))")
    return dtype, shape


def _whole(array: StoredArray, file: InputFile) -> StoredArray:
    """Return an array after checking that its file does not end within it."""
    num_missing = array.offset + array.num_bytes - file.size_bytes
    if num_missing > 0 and not array.is_compressed:
        raise _damaged(file.path, f"it is truncated: {num_missing} bytes are missing")
    return array


@contextmanager
def _translated_errors(path: str) -> Iterator[None]:
    try:
        yield
    except (ValueError, EOFError, OSError, KeyError, zipfile.BadZipFile, zlib.error) as e:
        raise _damaged(path, str(e).splitlines()[0] if str(e) else type(e).__name__) from e


class ArraySource(ChunkSource):
    """Reads rows of arrays; the rows of a block with one request for each array."""

    def __init__(self, paths: Sequence[str], request: SourceRequest) -> None:
        """Read the headers of the files, given by their sorted paths.

        Raises:
            ConfigError: A selected column does not exist.
            DataError: A file cannot be read, the arrays do not match, or they have no records.
        """
        self._states = dict(zip(paths, states_of(paths), strict=False))
        self._parts = [_selected(part, request.settings.columns) for part in _parts(paths)]
        _check_same_arrays(self._parts)
        counts = [next(iter(part.values())).shape[0] for part in self._parts]
        layout = Layout(tuple(map(_column, self._parts[0].values())))
        super().__init__(layout=layout, num_records=sum(counts), cache_bytes=request.cache_bytes)
        self._warn_about_compression(request.tell)
        if not sum(counts):
            raise DataError("There are no records in the data.", received=", ".join(paths[:3]))
        row_bytes = sum(array.row_bytes for array in self._parts[0].values())
        rows = max(1, min(_BLOCK_RECORDS, _BLOCK_BYTES // max(1, row_bytes)))
        self._blocks = [
            (part, first, min(rows, count - first))
            for part, count in enumerate(counts)
            for first in range(0, count, rows)
        ]
        self._row_bytes = float(row_bytes)
        self._paths = paths
        self._archives = _Archives(self._parts, rows)
        self._archives.index(self._states, request)
        self._files = FilePool()
        self.block_counts = np.array([count for _, _, count in self._blocks], dtype=np.int64)
        self.block_starts = np.cumsum(self.block_counts) - self.block_counts
        self.chunk_starts = self.block_starts
        arrays = itertools.chain.from_iterable(part.values() for part in self._parts)
        facts = [(array.name, str(array.dtype), array.shape, array.checksum) for array in arrays]
        self.fingerprint = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]

    def record_bytes(self) -> float:
        """Return the size of a record in memory, in bytes."""
        return self._row_bytes

    def describe(self) -> str:
        """Return the numbers of files and records and the columns, for the log."""
        names = ", ".join(self._parts[0])
        return f"{len(self._paths):,} NumPy files, {len(self):,} records of {names}"

    def close(self) -> None:
        """Close the files and free the cache; a second call does nothing."""
        super().close()
        self._files.close()

    def load_chunk(self, number: int) -> ColumnChunk:
        """Read the rows of a block.

        Raises:
            DataError: An array cannot be read, is damaged or has changed, or has empty dates.
        """
        part, first, count = self._blocks[number]
        assert self.layout is not None
        # By name: the files may hold the same arrays in another order.
        arrays = [self._parts[part][column.name] for column in self.layout.columns]
        return ColumnChunk([self._rows(array, first, count) for array in arrays])

    def _rows(self, array: StoredArray, first: int, count: int) -> Stored:
        if array.is_compressed:
            rows = _decompressed(array)[first : first + count]
        else:
            offset = array.offset + first * array.row_bytes
            num_bytes = count * array.row_bytes
            state = self._states.get(array.path) if array.member is None else None
            payload = self._files.read_at(
                array.path, offset=offset, num_bytes=num_bytes, expected=state
            )
            if len(payload) != num_bytes:
                raise _damaged(array.path, "it has changed since the job indexed it")
            self._archives.check(array, first, payload)
            rows = np.frombuffer(payload, array.dtype).reshape(count, *array.shape[1:])
        if rows.dtype.kind in "Mm" and (num_empty := np.count_nonzero(np.isnat(rows))):
            raise empty_values(int(num_empty), "NaT", array.label, array.path)
        return _native(rows)

    def _warn_about_compression(self, tell: Callable[[str], None]) -> None:
        arrays = itertools.chain.from_iterable(part.values() for part in self._parts)
        compressed = [array for array in arrays if array.is_compressed]
        if compressed:
            size = sum(array.num_bytes for array in compressed)
            tell(
                f"{compressed[0].path} is compressed, which does not allow random access to its"
                f" records: each rank decompresses whole arrays, {size / 1e6:,.0f} MB in total."
                " numpy.savez and numpy.save write files that can be read in parts."
            )


class _Archives:
    """The chunk format of uncompressed archives: runs of records, with the checksum of each.

    A run has the records of a block.
    """

    change_detection: Final = "checksums"

    def __init__(self, parts: Sequence[_Part], rows: int) -> None:
        self._rows = rows
        self._names = sorted(parts[0])
        self._stored: dict[str, list[StoredArray]] = {}
        """The uncompressed arrays of each archive, in file order."""
        arrays = itertools.chain.from_iterable(part.values() for part in parts)
        for array in sorted(arrays, key=lambda array: array.offset):
            if array.member is not None and array.num_bytes:
                self._stored.setdefault(array.path, []).append(array)
        self._firsts: dict[tuple[str, str], int] = {}
        """The number of the first run of each array, by file and name."""
        self._tables: Tables | None = None

    def index(self, states: dict[str, FileState], request: SourceRequest) -> None:
        """Load the checksums from an index, or read the arrays once and verify them.

        Raises:
            DataError: An array cannot be read or is damaged.
        """
        paths = sorted(self._stored)
        if not paths:
            return
        settings = {"format": "NumPy", "columns": self._names}  # They determine a block's size.
        known = tuple(states[path] for path in paths if states)
        inputs = IndexInputs(tuple(paths), known, settings)
        folder, tell = request.index_folder, request.tell
        self._tables = load_or_scan(inputs, self, folder=folder, tell=tell)
        for path, first in zip(paths, [0, *self._tables.file_ends], strict=False):
            for array in self._stored[path]:
                self._firsts[path, array.name] = first
                first += -(-array.shape[0] // self._rows)

    def scan(self, path: str) -> FileChunks:
        """Read the arrays of an archive once, and return the checksums of their runs.

        The archive's own checksums are verified.

        Raises:
            DataError: The archive cannot be read or is damaged.
        """
        chunks: list[ChunkInfo] = []
        with ReadAhead(open_input(path)) as file:
            for array in self._stored[path]:
                assert array.member is not None
                start, end = array.member
                offset = array.offset
                checksum = zlib.crc32(file.read_at(start, num_bytes=offset - start))
                for first in range(0, array.shape[0], self._rows):
                    count = min(self._rows, array.shape[0] - first)
                    payload = file.read_at(offset, num_bytes=count * array.row_bytes)
                    checksum = zlib.crc32(payload, checksum)
                    number = len(chunks)
                    chunks.append(ChunkInfo.of(payload, number, offset=offset, num_records=count))
                    offset += len(payload)
                rest = file.read_at(offset, num_bytes=end - offset)
                if zlib.crc32(rest, checksum) != array.checksum:
                    raise _damaged(path, f"Bad CRC-32 for {array.name + '.npy'!r}")
            return FileChunks(path, file.size_bytes, tuple(chunks))

    holds = staticmethod(holds_bytes)

    def check(self, array: StoredArray, first: int, payload: bytes) -> None:
        """Refuse a run that has changed since it was indexed.

        Raises:
            DataError: The run is damaged or has changed.
        """
        if array.member is None or self._tables is None or not payload:
            return
        run = self._tables.chunk(self._firsts[array.path, array.name] + first // self._rows)
        if not run.is_of(payload):
            position = f"at byte {array.offset + first * array.row_bytes}"
            problem = f"{array.label} is damaged or has changed since it was indexed, {position}"
            raise _damaged(array.path, problem)


def _parts(paths: Sequence[str]) -> list[_Part]:
    by_key: dict[str, list[StoredArray]] = {}
    for path in paths:
        key = path if path.lower().endswith(".npz") else path.rpartition("/")[0]
        by_key.setdefault(key, []).extend(_arrays_of(path))
    return [{array.name: array for array in arrays} for arrays in by_key.values()]


def _selected(part: _Part, names: Sequence[str]) -> _Part:
    """Return the selected arrays, after checking that they have the same number of records."""
    path = next(iter(part.values())).path
    arrays = {name: part[name] for name in selected_columns(names, part, holder=path, noun="array")}
    lengths = {name: array.shape[0] if array.shape else None for name, array in arrays.items()}
    if len(set(lengths.values())) != 1 or None in lengths.values():
        descriptions = ", ".join(
            f"{name} has {'no dimension' if length is None else f'{length:,} records'}"
            for name, length in lengths.items()
        )
        raise DataError(
            f"The arrays of {path} do not have the same number of records: {descriptions}.",
            received={"data_plan.columns": ",".join(names)},
            hint="Select arrays with the same number, as in"
            f" data_plan.columns=[{','.join(list(arrays)[:2])}].",
        )
    return arrays


def _check_same_arrays(parts: Sequence[_Part]) -> None:
    first = parts[0]
    for part in parts[1:]:
        for name, array in first.items():
            other = part.get(name)
            if other is None or len(part) != len(first):
                names = f"{', '.join(part)} of {next(iter(part.values())).path}"
                received = f"{names}, unlike {', '.join(first)} of {array.path}"
                hint = "Write the same arrays to all files."
                problem = "The data files have different arrays."
                raise DataError(problem, received=received, hint=hint)
            if (other.dtype, other.shape[1:]) != (array.dtype, array.shape[1:]):
                kind = f"{other.label} is {other.dtype}{list(other.shape)}"
                received = f"{kind}, {array.label} {array.dtype}{list(array.shape)}"
                hint = "Write them with the same type and shape."
                problem = "Arrays with the same name differ in type or shape."
                raise DataError(problem, received=received, hint=hint)


def _column(array: StoredArray) -> Column:
    kind = array.dtype.kind
    if kind in "SU":
        if len(array.shape) != 1:
            raise _damaged(array.path, f"{array.label} is text with several dimensions")
        return Column(array.name, BYTES)
    if kind in "Mm":
        unit, count = np.datetime_data(array.dtype)
        # Types without a unit, or with a multiple such as 15 minutes, are treated as numbers.
        has_unit = unit != "generic" and count == 1
        time_type = f"{'datetime64' if kind == 'M' else 'timedelta64'}[{unit}]" if has_unit else ""
        return Column(array.name, "int64", array.shape[1:], time_type=time_type)
    if kind not in "biufc":
        raise _damaged(array.path, f"{array.label} is of type {array.dtype}")
    return Column(array.name, array.dtype.newbyteorder("=").name, array.shape[1:])


def _native(rows: NDArray[Any]) -> Stored:
    """Convert rows to column values: text to bytes, times to integers, in native byte order."""
    if rows.dtype.kind in "SU":
        encoded = rows if rows.dtype.kind == "S" else np.strings.encode(rows, "utf-8")
        return object_array(encoded.tolist())
    if rows.dtype.kind in "Mm":
        rows = rows.astype(rows.dtype.newbyteorder("=")).view(np.int64)
    return rows.astype(rows.dtype.newbyteorder("="), copy=False)
