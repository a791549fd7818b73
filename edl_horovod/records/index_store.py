"""The stored indexes of data sets: where an index lies, and when its files are scanned again (D19).

It is stored beside the data if that folder is writable; otherwise in the job's folder, for all of
its ranks, and in the user's cache, for later jobs. A file that differs from its index is scanned
again, and the user is warned.
"""

import contextlib
import itertools
import logging
import operator
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edl_horovod.errors import DataError
from edl_horovod.files import marker
from edl_horovod.files.cache import one_builder, user_cache
from edl_horovod.records.chunks import sampled_checksum
from edl_horovod.records.files import remote
from edl_horovod.records.files.input_file import FileState
from edl_horovod.records.files.pool import file_state, open_input
from edl_horovod.records.index_tables import (
    CHUNK,
    INDEX_ENDING,
    IndexedFile,
    IndexInputs,
    SavedIndex,
    Tables,
    is_index_file,
)
from edl_horovod.records.record_format import ChunkFormat

log = logging.getLogger(__name__)

SMALL_BYTES = 4 << 20
"""Every process scans local data smaller than this: mapping an index would not be faster."""
CACHE_DAYS = 90
"""An index in the cache is removed if no job has used it for this long."""
TELL_SECONDS = 5.0
"""Interval of progress messages during a scan."""

_FILES_AT_ONCE = 16
"""Remote files that are scanned concurrently; a scan mostly waits for responses."""
_MAX_FILES_LISTED = 3

_ROW = operator.attrgetter(*(CHUNK.names or ()))

_FileTable = tuple[IndexedFile, NDArray[Any]]
"""A file and its chunks, of type `CHUNK`."""

_Ends = tuple[str, int, int]
"""A file, and the numbers of its first and last chunk over all files."""


def load_or_scan(
    inputs: IndexInputs,
    chunk_format: ChunkFormat,
    *,
    folder: Path | None,
    tell: Callable[[str], None],
) -> Tables:
    """Return the tables of files, from a stored index that fits or from a scan.

    Args:
        inputs: The files, with the states that `states_of` returned.
        chunk_format: Finds the chunks of a file.
        folder: The job's folder; None to store no index.
        tell: Called with messages for the user.

    Raises:
        DataError: A file cannot be read or is damaged, or there are no records.
    """
    are_local = not any(map(remote.is_remote, inputs.paths))
    num_bytes = sum(state.size_bytes for state in inputs.files)
    if not inputs.files or (are_local and num_bytes < SMALL_BYTES):
        return _scan(inputs.paths, chunk_format, known={}, tell=tell)
    return _IndexStore(inputs, chunk_format, folder, tell).tables()


def states_of(paths: Sequence[str]) -> tuple[FileState, ...]:
    """Return the states of files, to be called before they are scanned; see `file_state`.

    Returns:
        Nothing if the state of a local file cannot be read; the scan will report the error.

    Raises:
        DataError: A remote file does not exist or may not be read.
    """
    try:
        if not any(map(remote.is_remote, paths)):
            return tuple(map(file_state, paths))
        with ThreadPoolExecutor(_FILES_AT_ONCE, thread_name_prefix="index") as pool:
            return tuple(pool.map(file_state, paths))
    except OSError:
        return ()


@dataclass(frozen=True)
class _Candidate:
    """A stored index, and the files that have changed since."""

    tables: Tables
    changed: dict[str, str]
    """The reason why a file must be scanned again, by its path."""


@dataclass(frozen=True)
class _IndexStore:
    """Finds the stored index of some files, or builds and stores it."""

    inputs: IndexInputs
    chunk_format: ChunkFormat
    folder: Path | None
    """The job's folder; None to store no index."""
    tell: Callable[[str], None]
    """Called with messages for the user."""

    def tables(self) -> Tables:
        """Return the tables of the files in their current state.

        Raises:
            DataError: A file cannot be read or is damaged, or there are no records.
        """
        candidate = self._find()
        if candidate is not None and not candidate.changed:
            return candidate.tables
        folders = self._writable()
        locks = [folder / f"{self.inputs.name(folder)}.lock" for folder in folders]
        with one_builder(locks, self._say, doing="indexes the data") as number:
            if number < len(folders):
                candidate = self._find()
                if candidate is not None and not candidate.changed:
                    return candidate.tables  # Another process built it while this one waited.
            tables = self._build(candidate or self._find_beside_remote())
            return self._store(tables, folders[number:])

    def _build(self, candidate: _Candidate | None) -> Tables:
        known: dict[str, _FileTable] = {}
        if candidate is not None and not candidate.changed:
            return candidate.tables
        if candidate is not None:
            self._report_changes(candidate.changed)
            for file, end in zip(candidate.tables.files, candidate.tables.file_ends, strict=True):
                if file.path not in candidate.changed:
                    known[file.path] = file, candidate.tables.chunks[end - file.num_chunks : end]
        return _scan(self.inputs.paths, self.chunk_format, known=known, tell=self._say)

    def _report_changes(self, changed: Mapping[str, str]) -> None:
        first = itertools.islice(changed.items(), _MAX_FILES_LISTED)
        listed = [f"{path} ({why})" for path, why in first]
        more = ", ..." * (len(changed) > _MAX_FILES_LISTED)
        count = f"{len(changed):,} of {len(self.inputs.paths):,} data files"
        news = f"{count} have changed since they were indexed, and are indexed again"
        self._say(f"{news}: {', '.join(listed)}{more}", level=logging.WARNING)

    def _store(self, tables: Tables, folders: Sequence[Path]) -> Tables:
        """Save the index in the first of these folders that is writable, and map it."""
        for number, folder in enumerate(folders):
            try:
                self._save(tables, folder)
            except OSError as error:
                log.info("the index of the data is not stored in %s: %s", folder, error)
                continue
            if folder == self.folder:
                for other_folder in folders[number + 1 :]:  # The user's cache, for later jobs.
                    with contextlib.suppress(OSError):
                        self._save(tables, other_folder)
            # Mapped arrays are in memory only once for all ranks of a host.
            saved = self._load(folder)
            return tables if saved is None else saved.tables
        return tables

    def _save(self, tables: Tables, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.inputs.save(tables, folder)
        if folder in _cache():
            _remove_unused(folder)

    def _say(self, message: str, *, level: int = logging.INFO) -> None:
        log.log(level, "%s", message)
        self.tell(message)

    @cached_property
    def _data_folder(self) -> str:
        """The folder of the first data file, which may be remote."""
        first = self.inputs.paths[0]
        return first.rpartition("/")[0] if remote.is_remote(first) else os.path.dirname(first)

    def _find(self) -> _Candidate | None:
        """Return the first index that is up to date, else the one with the fewest changed files."""
        candidates: list[_Candidate] = []
        for folder in self._readable():
            saved = self._load(folder)
            if saved is None:
                continue
            if folder in _cache():
                with contextlib.suppress(OSError):
                    os.utime(folder / self.inputs.name(folder))  # Keeps the index in the cache.
            candidates.append(_Candidate(saved.tables, self._changed(saved)))
            if not candidates[-1].changed:
                return candidates[-1]
        return min(candidates, key=lambda candidate: len(candidate.changed), default=None)

    def _find_beside_remote(self) -> _Candidate | None:
        """Return the index that was uploaded with the files; the upload changed their times."""
        if not remote.is_remote(self._data_folder):
            return None
        folder = self._data_folder
        content = remote.read_if_there(f"{folder}/{self.inputs.name(folder)}")
        if content is None:
            return None
        saved = self._loaded(folder, lambda: self.inputs.parse(content, folder))
        if saved is None:
            return None
        return _Candidate(saved.tables, self._changed(saved, has_same_times=False))

    def _readable(self) -> list[Path]:
        """Return the folders where the index may be, the preferred one first."""
        beside = [] if remote.is_remote(self._data_folder) else [Path(self._data_folder)]
        of_job = [self.folder] if self.folder is not None and self.folder not in beside else []
        return [*beside, *of_job, *_cache()]

    def _writable(self) -> list[Path]:
        """Return the folders where the index may be stored, the preferred one first."""
        if self.folder is None or self.folder == Path(self._data_folder):
            return [self.folder] if self.folder is not None else []
        # Output directories of edl_horovod list their contents, so no new file is added to them.
        return [
            folder
            for folder in self._readable()
            if not _is_output_dir(folder) or (folder / self.inputs.name(folder)).exists()
        ]

    def _load(self, folder: Path) -> SavedIndex | None:
        return self._loaded(str(folder), lambda: self.inputs.load(folder))

    def _loaded(self, folder: str, load: Callable[[], SavedIndex]) -> SavedIndex | None:
        try:
            return load()
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            path = os.path.join(folder, self.inputs.name(folder))
            log.warning("The index %s is ignored: %s", path, error)
            return None

    def _changed(self, saved: SavedIndex, *, has_same_times: bool = True) -> dict[str, str]:
        """Return the files that differ from an index, by path with the reason."""
        changed: dict[str, str] = {}
        unverified: list[_Ends] = []
        tables = saved.tables
        files = zip(tables.files, tables.file_ends, saved.files, self.inputs.files, strict=True)
        for file, end, stored, current in files:
            if stored.size_bytes != current.size_bytes:
                changed[file.path] = f"{current.size_bytes} bytes instead of {stored.size_bytes}"
            elif has_same_times and stored.changed != current.changed:
                changed[file.path] = "a different modification time"
            # The digest of an object in a store proves its content. A modification time does not:
            # any writer can set it, and a disk may fail.
            elif file.num_chunks and not (has_same_times and current.has_digest):
                unverified.append((file.path, end - file.num_chunks, end - 1))
        return changed | self._changed_ends(tables, unverified)

    def _changed_ends(self, tables: Tables, unverified: Sequence[_Ends]) -> dict[str, str]:
        """Return the files whose first or last chunk has changed, by path with the reason."""

        def changed_paths(part: Sequence[_Ends]) -> list[str]:
            return [ends[0] for ends in part if not self._has_same_ends(tables, ends)]

        parts = [unverified[first::_FILES_AT_ONCE] for first in range(_FILES_AT_ONCE)]
        with ThreadPoolExecutor(_FILES_AT_ONCE, thread_name_prefix="index") as pool:
            changed = sorted(path for paths in pool.map(changed_paths, parts) for path in paths)
        return dict.fromkeys(changed, "a different first or last chunk, at the same size")

    def _has_same_ends(self, tables: Tables, ends: _Ends) -> bool:
        """Whether the first and last chunk of a file are unchanged; reads only these."""
        path, first, last = ends
        # Only the last chunk of a remote file: each chunk costs a request.
        chunks = {last} if remote.is_remote(path) else {first, last}
        with open_input(path) as file:
            return all(self.chunk_format.holds(file, tables.chunk(number)) for number in chunks)


def _is_output_dir(folder: Path) -> bool:
    with contextlib.suppress(OSError):
        return marker.kind_of(folder) != ""
    return False


def _cache() -> list[Path]:
    try:
        return [user_cache() / "indexes"]
    except RuntimeError:
        return []


def _remove_unused(folder: Path) -> None:
    oldest = time.time() - CACHE_DAYS * 24 * 3600
    for path in folder.glob(f".edl_horovod.*{INDEX_ENDING}"):
        with contextlib.suppress(OSError):
            if path.stat().st_mtime < oldest and is_index_file(path):
                path.unlink()


def _scan(
    paths: Sequence[str],
    chunk_format: ChunkFormat,
    *,
    known: Mapping[str, _FileTable],
    tell: Callable[[str], None],
) -> Tables:
    """Scan files and return the tables of their index.

    Args:
        paths: Sorted paths.
        chunk_format: Finds the chunks of each file.
        known: Files whose chunks are known already, by path; they are not scanned.
        tell: Called every few seconds with the progress of the scan.

    Raises:
        DataError: A file cannot be read or is damaged, or there are no records.
    """
    unknown = [path for path in paths if path not in known]
    scanned: list[_FileTable] = []

    def progress() -> str:
        num_chunks = sum(len(chunks) for _, chunks in list(scanned))
        return f"{len(scanned):,} of {len(unknown):,} files, {num_chunks:,} chunks"

    with _reported(progress, tell):
        scanned.extend(_scan_files(unknown, chunk_format))
    by_path = {**known, **{table[0].path: table for table in scanned}}
    files = [by_path[path][0] for path in paths]
    chunks = np.concatenate([by_path[path][1] for path in paths])
    if not len(chunks):
        first_paths = ", ".join(paths[:3]) + (", ..." if len(paths) > 3 else "")
        skipped = f"{sum(file.skipped_chunks for file in files)} damaged chunks were skipped"
        received = f"{len(paths)} files ({first_paths}), in which {skipped}"
        hint = "Check the program that wrote the files."
        raise DataError("There are no records in the data.", received=received, hint=hint)
    return Tables.of(files, chunks)


def _scan_files(paths: Sequence[str], chunk_format: ChunkFormat) -> Iterator[_FileTable]:
    if not any(map(remote.is_remote, paths)):
        yield from (_scan_file(path, chunk_format) for path in paths)
        return
    with ThreadPoolExecutor(_FILES_AT_ONCE, thread_name_prefix="index") as pool:
        yield from pool.map(_scan_file, paths, itertools.repeat(chunk_format))


def _scan_file(path: str, chunk_format: ChunkFormat) -> _FileTable:
    scanned, sampled = chunk_format.scan(path), 0
    if chunk_format.change_detection == "samples":
        with open_input(path) as content:
            sampled = sampled_checksum(content)
    chunks, skipped = scanned.chunks, (scanned.skipped_chunks, scanned.skipped_records)
    facts = (scanned.path, scanned.size_bytes, len(chunks), *skipped, scanned.header)
    # A row of a table takes a tenth of the memory of a ChunkInfo object.
    return IndexedFile(*facts, sampled), np.array(list(map(_ROW, chunks)), dtype=CHUNK)


@contextlib.contextmanager
def _reported(progress: Callable[[], str], tell: Callable[[str], None]) -> Iterator[None]:
    """Report the progress of a scan from a thread, even while one file takes long."""
    began, is_over = time.monotonic(), threading.Event()

    def report() -> None:
        while not is_over.wait(TELL_SECONDS):
            tell(f"The data is indexed: {progress()} in {time.monotonic() - began:.0f} s")

    thread = threading.Thread(target=report, name="index progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
