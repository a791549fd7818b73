"""A user's stream, cached as records on disk, because a stream can only be read from its start.

Records are numbered in the order of the stream. Their file appears in the job's folder complete or
not at all, and later readers of the same stream use it.
"""

import contextlib
import json
import logging
import secrets
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edl_horovod.errors import DataError, EdlError, OutputError, UserCodeError, hint_of
from edl_horovod.files.cache import one_builder
from edl_horovod.files.whole_file import sync, write_json
from edl_horovod.records.columns import Values, stacked
from edl_horovod.records.elements import Elements, MisfitError, decode_arrays, encode_arrays
from edl_horovod.records.layout import BYTES, Column, Layout, Part, Structure, Tensor, leaves
from edl_horovod.records.reader import Reader
from edl_horovod.records.source import Records, RecordSource, SourceRequest
from edl_horovod.records.sources.recordio import Writer

log = logging.getLogger(__name__)

RECORDS = "records.recordio"
TELL_SECONDS = 5.0
"""Interval of progress messages while a stream is read."""
_DESCRIPTION = "stream.json"
_FORMAT = 1


def open_stream(stream: Iterable[Any], digest: str, request: SourceRequest) -> "StreamRecords":
    """Read a stream to its end, unless a process of this or an earlier job has done so.

    One process reads at a time; the others wait for it without a time limit.

    Args:
        stream: Yields the elements. It is not iterated if its records are already cached.
        digest: Digest of the code that creates the stream. Cached records of other code are
            replaced.
        request: What the job opens; it has folders.

    Raises:
        DataError: The stream has no elements, or they differ in structure.
        OutputError: The records cannot be written.
        UserCodeError: The stream raised an exception.
    """
    assert request.folders is not None
    name, stream_name = request.data, request.data.partition(":")[2]
    folder = request.folders.records / stream_name
    lock = request.folders.records / f"{stream_name}.lock"

    def say(message: str) -> None:
        log.info("%s", message)
        request.tell(message)

    with (
        _translated_errors(folder),
        one_builder([lock], say, doing=f"reads {name}", gives_up=False),
    ):
        layout = _cached_layout(folder, digest)
        if layout is None:
            news = "it is read once now, and its records are cached in"
            say(f"{name} can only be read from its start: {news} {folder}")
            unfinished = request.folders.unfinished_records / stream_name
            _make(stream, name, digest, folder, unfinished, say)
            layout = _cached_layout(folder, digest)
    if layout is None:
        problem = f"The records of {name} are missing from {folder} after they were written."
        hint = "Check whether another program changes this folder."
        raise OutputError(problem, received={"data": name}, hint=hint)
    return StreamRecords(folder, layout, request)


class StreamRecords(RecordSource):
    """Reads the cached records of a stream."""

    def __init__(self, folder: Path, layout: Layout, request: SourceRequest) -> None:
        """Open the file of the records.

        Raises:
            DataError: The file is damaged.
        """
        self._reader = Reader.open(
            [str(folder / RECORDS)],
            csv_header=False,
            folder=request.index_folder,
            cache_bytes=request.cache_bytes,
        )
        self._name = request.data
        self._layout = layout
        self.layout = None if _is_bytes(layout) else layout
        self._parts = [part for tensor in leaves(layout.structure) for part in tensor.parts]
        self.block_starts = self._reader.block_starts
        self.block_counts = self._reader.block_counts
        self.fingerprint = self._reader.fingerprint

    def read(self, ids: Sequence[int] | NDArray[np.integer]) -> Records:
        """Return the records with these ids, in this order."""
        records = [decode_arrays(record) for record in self._reader.read(ids)]
        if self.layout is None:
            return [text.item() for (text,) in records]
        columns: list[Values] = []
        for number, part in enumerate(self._parts):
            arrays = [record[number] for record in records]
            columns.append(stacked(arrays, self._layout.columns[len(columns)]))
            if part.shape_column is not None:
                (ndim,) = self._layout.columns[len(columns)].shape
                shapes = np.array([array.shape for array in arrays], np.int64)
                columns.append(shapes.reshape(len(arrays), ndim or 0))
        return columns

    def record_bytes(self) -> float:
        """Return the average size of a record in memory, in bytes."""
        return self._reader.record_bytes()

    def describe(self) -> str:
        """Describe the stream and the file of its records for the log."""
        path = self._reader.index.files[0].path
        return f"{len(self._reader):,} records of {self._name}, read once, in {path}"

    def close(self) -> None:
        """Close the file."""
        self._reader.close()

    def __len__(self) -> int:
        return len(self._reader)


def _make(
    stream: Iterable[Any],
    name: str,
    digest: str,
    target: Path,
    unfinished: Path,
    say: Callable[[str], None],
) -> None:
    """Write the records into a temporary folder, then rename it to the target."""
    temporary = unfinished.with_name(f"{unfinished.name}.{secrets.token_hex(4)}")
    temporary.mkdir(parents=True)
    try:
        layout = _write(stream, name, temporary, say).layout()
        description = {
            "format": _FORMAT,
            "digest": digest,
            "columns": [asdict(column) for column in layout.columns],
            "structure": _to_json(layout.structure),
        }
        write_json(temporary / _DESCRIPTION, description)
        if target.exists():
            shutil.rmtree(target)
        try:
            temporary.rename(target)
        except OSError:
            # On a file system without locks another process may have finished first.
            if not target.exists():
                raise
        sync(target.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        with contextlib.suppress(OSError):  # Not empty while another stream is being read.
            temporary.parent.rmdir()


@contextlib.contextmanager
def _translated_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        problem = f"{folder} cannot be written: {error}."
        raise OutputError(problem, received={"path": folder}, hint=hint_of(error)) from error


def _write(stream: Iterable[Any], name: str, folder: Path, say: Callable[[str], None]) -> Elements:
    elements = Elements()
    began = last_report = time.monotonic()
    count, num_bytes = 0, 0
    with Writer(folder / RECORDS) as writer:
        for count, element in enumerate(_elements(stream, name), start=1):
            try:
                record = encode_arrays(elements.arrays(element))
            except MisfitError as error:
                raise DataError(
                    f"Element {count - 1} of {name} differs in structure from the elements before"
                    f" it, or cannot be a record: {error}.",
                    received={"data": name},
                    hint="All elements must be tensors, arrays, numbers or text, or tuples or dicts"
                    " of these, of the same types and numbers of axes.",
                ) from error
            writer.write(record)
            num_bytes += len(record)
            if time.monotonic() >= last_report + TELL_SECONDS:
                last_report = time.monotonic()
                say(f"{name}: {_size(count, num_bytes)} in {last_report - began:.0f} s")
        if not count:
            raise DataError("There are no records in the data.", received={"data": name})
    on_disk = (folder / RECORDS).stat().st_size
    size = f"{_size(count, num_bytes)}, {on_disk / 1e6:,.1f} MB on disk"
    say(f"{name}: {size}; each record is {elements}")
    return elements


def _elements(stream: Iterable[Any], name: str) -> Iterable[Any]:
    count = 0
    try:
        for element in stream:
            yield element
            count += 1
    except EdlError:
        raise
    except Exception as e:
        problem = f"{name} raised an exception after {count:,} elements: {type(e).__name__}: {e}."
        raise UserCodeError(problem, received={"data": name}) from e


def _size(count: int, num_bytes: int) -> str:
    return f"{count:,} records of {num_bytes / 1e6:,.1f} MB"


def _cached_layout(folder: Path, digest: str) -> Layout | None:
    """Return the layout of the records in a folder; None if code with this digest has made none."""
    try:
        saved = json.loads((folder / _DESCRIPTION).read_bytes())
    except FileNotFoundError:
        return None
    if (saved["format"], saved["digest"]) != (_FORMAT, digest):
        return None
    columns = tuple(Column.from_dict(column) for column in saved["columns"])
    return Layout(columns, structure=_from_json(saved["structure"]))


def _to_json(structure: Any) -> Any:
    if isinstance(structure, dict):
        return {"dict": [[name, _to_json(inner)] for name, inner in structure.items()]}
    if isinstance(structure, tuple):
        return {"tuple": [_to_json(inner) for inner in structure]}
    return asdict(structure)


def _from_json(saved: dict[str, Any]) -> Structure:
    if "dict" in saved:
        return {name: _from_json(inner) for name, inner in saved["dict"]}
    if "tuple" in saved:
        return tuple(map(_from_json, saved["tuple"]))
    parts = (Part(**part | {"shape": tuple(part["shape"])}) for part in saved["parts"])
    return Tensor(saved["kind"], tuple(parts))


def _is_bytes(layout: Layout) -> bool:
    column = layout.columns[0]
    return isinstance(layout.structure, Tensor) and (column.dtype, column.shape) == (BYTES, ())
