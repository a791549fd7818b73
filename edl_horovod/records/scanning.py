"""Scanning of data files: builds the tables of an index from the files themselves."""

import dataclasses
import operator
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edl_horovod.errors import DataError
from edl_horovod.records.chunks import FileChunks, sampled_checksum
from edl_horovod.records.files.pool import open_input
from edl_horovod.records.files.remote import is_remote
from edl_horovod.records.record_format import ChunkFormat
from edl_horovod.records.tables import CHUNK, IndexedFile, Tables

__all__ = ["FILES_AT_ONCE", "FileTable", "file_tables", "scan"]

FILES_AT_ONCE = 16
"""Remote files that are scanned concurrently; a scan mostly waits for responses."""
TELL_SECONDS = 5.0
"""Interval of progress messages during a scan."""

_ROW = operator.attrgetter(*(CHUNK.names or ()))

FileTable = tuple[IndexedFile, NDArray[Any]]
"""A file and its chunks, of type `CHUNK`."""


def scan(
    paths: Sequence[str],
    chunk_format: ChunkFormat,
    *,
    known: Mapping[str, FileTable],
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
    by_path = dict(known)
    with _Progress(len(unknown), tell) as progress:
        for table in _scan_files(unknown, chunk_format):
            progress.add(table)
            by_path[table[0].path] = table
    files = [by_path[path][0] for path in paths]
    chunks = np.concatenate([by_path[path][1] for path in paths])
    if not len(chunks):
        first_paths = ", ".join(paths[:3]) + (", ..." if len(paths) > 3 else "")
        skipped = sum(file.skipped_chunks for file in files)
        raise DataError(
            "There are no records in the data.",
            received=f"{len(paths)} files ({first_paths}), in which {skipped} damaged chunks were"
            " skipped",
            hint="Check the program that wrote the files.",
        )
    return Tables.of(files, chunks)


def file_tables(tables: Tables) -> Iterator[FileTable]:
    """Yield the files of an index, each with its chunks."""
    start = 0
    for file, end in zip(tables.files, tables.file_ends, strict=True):
        yield file, tables.chunks[start:end]
        start = end


def _scan_files(paths: Sequence[str], chunk_format: ChunkFormat) -> Iterator[FileTable]:
    def scan_file(path: str) -> FileTable:
        file, chunks = _table(chunk_format.scan(path))
        if chunk_format.content == "samples":
            with open_input(path) as content:
                file = dataclasses.replace(file, sampled=sampled_checksum(content))
        return file, chunks

    if not any(map(is_remote, paths)):
        yield from map(scan_file, paths)
        return
    with ThreadPoolExecutor(FILES_AT_ONCE, thread_name_prefix="index") as pool:
        yield from pool.map(scan_file, paths)


def _table(file_chunks: FileChunks) -> FileTable:
    file = IndexedFile(
        path=file_chunks.path,
        size_bytes=file_chunks.size_bytes,
        num_chunks=len(file_chunks.chunks),
        skipped_chunks=file_chunks.skipped_chunks,
        skipped_records=file_chunks.skipped_records,
        header=file_chunks.header,
    )
    # A row of a table takes a tenth of the memory of a ChunkInfo object.
    return file, np.array([_ROW(chunk) for chunk in file_chunks.chunks], dtype=CHUNK)


class _Progress:
    """Reports the progress of a scan from a thread, even while one file takes long."""

    def __init__(self, num_files: int, tell: Callable[[str], None]) -> None:
        self._num_files = num_files
        self._tell = tell
        self._num_done = self._num_chunks = 0
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="index progress", daemon=True)

    def add(self, table: FileTable) -> None:
        self._num_done += 1
        self._num_chunks += len(table[1])

    def __enter__(self) -> "_Progress":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        began = time.monotonic()
        while not self._is_over.wait(TELL_SECONDS):
            self._tell(
                f"The data is indexed: {self._num_done:,} of {self._num_files:,} files,"
                f" {self._num_chunks:,} chunks in {time.monotonic() - began:.0f} s"
            )
