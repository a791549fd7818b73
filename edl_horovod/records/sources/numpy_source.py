"""Arrays of NumPy side by side as records: record `i` is row `i` of each.

The arrays of one `.npz` file belong together, and so do the `.npy` files of one folder. Several
`.npz` files, or folders, follow one another.
"""

import hashlib
import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edl_horovod.errors import ConfigError, DataError, did_you_mean
from edl_horovod.records.chunk_source import ChunkSource
from edl_horovod.records.chunks import ChunkInfo, FileChunks, is_unchanged
from edl_horovod.records.columns import ColumnChunk, Stored
from edl_horovod.records.files.input_file import FileState, InputFile
from edl_horovod.records.files.local import FilePool
from edl_horovod.records.kept_index import indexed, states_of
from edl_horovod.records.layout import BYTES, Column, Layout
from edl_horovod.records.record_format import Content
from edl_horovod.records.sources.numpy_arrays import (
    StoredArray,
    arrays_of,
    checked_runs,
    damaged_array,
    unpacked,
)
from edl_horovod.records.tables import Tables

__all__ = ["ArraySource"]

_BLOCK_BYTES = 1 << 20
_BLOCK_RECORDS = 4096

_Part = dict[str, StoredArray]
"""Arrays of the same number of records, by name."""


class ArraySource(ChunkSource):
    """Reads rows of arrays; those of a block by one request for each array."""

    def __init__(
        self,
        paths: Sequence[str],
        *,
        columns: Sequence[str],
        folder: Path | None,
        cache_bytes: int,
        tell: Callable[[str], None],
    ) -> None:
        """Look at the arrays of files, given by their sorted paths.

        Raises:
            ConfigError: There is no such column.
            DataError: A file cannot be read, arrays do not fit each other, or have no records.
        """
        states = states_of(paths)
        self._states = dict(zip(paths, states or (), strict=False))
        self._parts = [_chosen(part, columns) for part in _parts(paths)]
        _check_alike(self._parts)
        counts = [next(iter(part.values())).shape[0] for part in self._parts]
        layout = Layout(tuple(map(_column, self._parts[0].values())))
        super().__init__(layout=layout, num_records=sum(counts), cache_bytes=cache_bytes)
        self._say_what_is_packed(tell)
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
        self._runs = _Runs.of(self._parts, self._states, rows, folder=folder, tell=tell)
        self._files = FilePool()
        self.block_counts = np.array([count for _, _, count in self._blocks], dtype=np.int64)
        self.block_starts = np.cumsum(self.block_counts) - self.block_counts
        self.chunk_starts = self.block_starts
        self.fingerprint = _fingerprint(self._parts)

    def record_bytes(self) -> float:
        """What a record takes in memory, in bytes."""
        return self._row_bytes

    def describe(self) -> str:
        """Numbers of files, records and columns."""
        return (
            f"{len(self._paths):,} NumPy files, {len(self):,} records of"
            f" {', '.join(self._parts[0])}"
        )

    def close(self) -> None:
        """Close the files and free the cache; a second call does nothing."""
        super().close()
        self._files.close()

    def load_chunk(self, number: int) -> ColumnChunk:
        """The rows of a block."""
        part, first, count = self._blocks[number]
        return ColumnChunk(
            [self._rows(array, first, count) for array in self._parts[part].values()]
        )

    def _rows(self, array: StoredArray, first: int, count: int) -> Stored:
        if array.is_packed:
            rows = unpacked(array)[first : first + count]
        else:
            payload = self._files.read_at(
                array.path,
                offset=array.offset + first * array.row_bytes,
                num_bytes=count * array.row_bytes,
                expected=self._states.get(array.path) if array.member is None else None,
            )
            if len(payload) != count * array.row_bytes:
                raise damaged_array(array.path, "it has changed since the job indexed it")
            self._runs.check(array, first, payload)
            rows = np.frombuffer(payload, array.dtype).reshape(count, *array.shape[1:])
        return _native(rows)

    def _say_what_is_packed(self, tell: Callable[[str], None]) -> None:
        packed = [array for part in self._parts for array in part.values() if array.is_packed]
        if packed:
            size = sum(array.row_bytes * array.shape[0] for array in packed)
            tell(
                f"{packed[0].path} is compressed, so no record in it can be reached by itself:"
                f" each rank unpacks whole arrays, {size / 1e6:,.0f} MB in all. numpy.savez and"
                " numpy.save write files that are read in parts."
            )


@dataclass(frozen=True)
class _Runs:
    """The checksums of the runs of records in archives that are not compressed."""

    rows: int
    """Records of a run: those of a block."""
    tables: Tables | None
    """The runs as chunks; None where there are none."""
    firsts: dict[tuple[str, str], int]
    """The number of the first run of each array, by its file and its name."""

    @classmethod
    def of(
        cls,
        parts: Sequence[_Part],
        states: dict[str, FileState],
        rows: int,
        *,
        folder: Path | None,
        tell: Callable[[str], None],
    ) -> "_Runs":
        """Take them from an index, or read the arrays once and verify them.

        Raises:
            DataError: An array cannot be read, or is damaged.
        """
        stored: dict[str, list[StoredArray]] = {}
        for array in itertools.chain.from_iterable(part.values() for part in parts):
            if array.member is not None:
                stored.setdefault(array.path, []).append(array)
        for arrays in stored.values():
            arrays.sort(key=lambda array: array.offset)
        if not any(
            array.row_bytes * array.shape[0] for found in stored.values() for array in found
        ):
            return cls(rows, None, {})
        paths = sorted(stored)
        names = sorted(parts[0])  # The size of a block follows from them.
        settings: dict[str, object] = {"format": "NumPy", "columns": names}
        found = [states[path] for path in paths] if states else None
        archives = _Archives(stored, rows)
        tables = indexed(paths, found, archives, settings, folder=folder, tell=tell)
        firsts: dict[tuple[str, str], int] = {}
        for path, first in zip(paths, [0, *tables.file_ends], strict=False):
            for array in stored[path]:
                firsts[path, array.name] = first
                first += -(-array.shape[0] // rows) if array.row_bytes else 0
        return cls(rows, tables, firsts)

    def check(self, array: StoredArray, first: int, payload: bytes) -> None:
        """Refuse a run that is not as it was when it was indexed.

        Raises:
            DataError: It is damaged, or has changed.
        """
        if array.member is None or self.tables is None or not payload:
            return
        run = self.tables.chunk(self.firsts[array.path, array.name] + first // self.rows)
        if not is_unchanged(payload, run):
            place = f"from byte {array.offset + first * array.row_bytes} on"
            problem = f"{array.where} is damaged or has changed since it was indexed, {place}"
            raise damaged_array(array.path, problem)


@dataclass(frozen=True)
class _Archives:
    """How archives are indexed."""

    stored: dict[str, list[StoredArray]]
    """The uncompressed arrays, in the order of each file."""
    rows: int
    content: Content = "checksums"

    def scan(self, path: str) -> FileChunks:
        """The runs of a file, which is read once."""
        return checked_runs(path, self.stored[path], self.rows)

    def holds(self, file: InputFile, chunk: ChunkInfo) -> bool:
        """Whether a run is still there; all of it is read."""
        return is_unchanged(file.read_at(chunk.offset, num_bytes=chunk.compressed_bytes), chunk)


def _parts(paths: Sequence[str]) -> list[_Part]:
    found: dict[str, list[StoredArray]] = {}
    for path in paths:
        key = path if path.lower().endswith(".npz") else path.rpartition("/")[0]
        found.setdefault(key, []).extend(arrays_of(path))
    return [{array.name: array for array in arrays} for arrays in found.values()]


def _chosen(part: _Part, wanted: Sequence[str]) -> _Part:
    """The arrays that are read, which have equally many records."""
    for name in wanted:
        if name not in part:
            raise ConfigError(
                f"{next(iter(part.values())).path} has no array {name!r}.",
                received={"data_plan.columns": ",".join(wanted)},
                cure=f"Its arrays are {', '.join(part)}.{did_you_mean(name, list(part))}",
            )
    chosen = {name: part[name] for name in wanted or part}
    lengths = {name: array.shape[0] if array.shape else None for name, array in chosen.items()}
    if len(set(lengths.values())) != 1 or None in lengths.values():
        shown = ", ".join(
            f"{name} has {'no dimension' if length is None else f'{length:,} records'}"
            for name, length in lengths.items()
        )
        raise DataError(
            f"The arrays of {next(iter(chosen.values())).path} do not belong together: {shown}.",
            received={"data_plan.columns": ",".join(wanted)},
            cure=f"Name those that do, as in data_plan.columns=[{','.join(list(chosen)[:2])}].",
        )
    return chosen


def _check_alike(parts: Sequence[_Part]) -> None:
    first = parts[0]
    for part in parts[1:]:
        for name, array in first.items():
            other = part.get(name)
            if other is None or len(part) != len(first):
                raise DataError(
                    "The data files have different arrays.",
                    received=f"{', '.join(part)} of {next(iter(part.values())).path}, unlike"
                    f" {', '.join(first)} of {array.path}",
                    cure="Write them with the same arrays.",
                )
            if (other.dtype, other.shape[1:]) != (array.dtype, array.shape[1:]):
                raise DataError(
                    "Arrays of the same name differ in type or shape.",
                    received=f"{other.where} is {other.dtype}{list(other.shape)}, {array.where}"
                    f" {array.dtype}{list(array.shape)}",
                    cure="Write them with the same type and shape.",
                )


def _column(array: StoredArray) -> Column:
    kind = array.dtype.kind
    if kind in "SU":
        if len(array.shape) != 1:
            raise damaged_array(array.path, f"{array.where} holds text in several dimensions")
        return Column(array.name, BYTES)
    if kind in "Mm":
        unit, count = np.datetime_data(array.dtype)
        # Types without a unit, or with one such as 15 minutes, are numbers.
        has_unit = unit != "generic" and count == 1
        time_type = f"{'datetime64' if kind == 'M' else 'timedelta64'}[{unit}]" if has_unit else ""
        return Column(array.name, "int64", array.shape[1:], time_type=time_type)
    if kind not in "biufc":
        raise damaged_array(array.path, f"{array.where} is of type {array.dtype}")
    return Column(array.name, array.dtype.newbyteorder("=").name, array.shape[1:])


def _native(rows: NDArray[Any]) -> Stored:
    """Rows as a column holds them: text as bytes, times as integers, in this machine's order."""
    if rows.dtype.kind in "SU":
        texts = np.empty(len(rows), dtype=object)
        encoded = rows if rows.dtype.kind == "S" else np.strings.encode(rows, "utf-8")
        texts[:] = encoded.tolist()
        return texts
    if rows.dtype.kind in "Mm":
        rows = rows.astype(rows.dtype.newbyteorder("=")).view(np.int64)
    return rows.astype(rows.dtype.newbyteorder("="), copy=False)


def _fingerprint(parts: Sequence[_Part]) -> str:
    arrays = itertools.chain.from_iterable(part.values() for part in parts)
    said = [[one.name, str(one.dtype), list(one.shape), one.checksum] for one in arrays]
    return hashlib.sha256(json.dumps(said).encode()).hexdigest()[:32]
