"""The tables of an index, in memory and as a file that all processes of a host map (D19).

The tables have a row for each chunk of all files, and the blocks that are computed from the chunks.

The file begins with an eight-byte magic number, the length of a header, and a CRC-32 of everything
that follows, both as little-endian uint64. The header is JSON padded with spaces to a multiple of
64 bytes; the arrays of `Tables` follow it back to back. An index belongs to files with certain
names that were scanned with certain settings. It also stores their sizes and times at that moment.
"""

import base64
import bisect
import hashlib
import itertools
import json
import mmap
import os
import posixpath
import stat
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from edl_horovod.files.whole_file import write_bytes
from edl_horovod.records.chunks import ChunkInfo, Codec
from edl_horovod.records.files.input_file import FileState
from edl_horovod.records.files.remote import is_remote

MAX_BLOCK_RECORDS = 4096
"""A chunk with more records is split into several blocks."""
WHOLE_BYTES = 4 << 20
"""A larger chunk without its own header, such as a row group, is one block: decoding it takes so
long that its records must be read together."""

INDEX_ENDING = ".index"
"""The ending of the names of stored indexes."""

_CHUNKS_AT_ONCE = 1 << 14
"""Number of chunks that are checked and digested at a time: they fit into the processor's cache,
and a rank needs no memory of its own for all chunks."""

_MAGIC = b"EDLINDX3"
_START = struct.Struct("<8sQQ")
_ALIGNMENT = 64

_Integers = NDArray[np.int64]

_SHORT = ("checksum", "compressed_bytes", "num_records", "number", "codec", "header_bytes")
CHUNK = np.dtype([("offset", "<i8"), *((name, "<u4") for name in _SHORT)])
"""A row for each chunk, with the fields of `ChunkInfo`."""

_ARRAYS = {"chunks": CHUNK} | {
    name: np.dtype("<i8") for name in ("chunk_starts", "block_starts", "block_counts")
}


@dataclass(frozen=True, slots=True)
class IndexedFile:
    """A file of an index."""

    path: str
    size_bytes: int
    num_chunks: int
    """Number of chunks that can be read."""
    skipped_chunks: int
    """Number of damaged chunks that were skipped, with `damaged="skip"`."""
    skipped_records: int
    """Number of records in the skipped chunks, as far as their headers show it."""
    header: bytes
    """Data that applies to all chunks: the first line of a CSV file, the schema of others."""
    sampled: int = 0
    """Checksum of samples of the content, in a format whose chunks have none; else 0."""


@dataclass(frozen=True, eq=False)
class Tables:
    """The content of an index; the arrays are read-only."""

    files: tuple[IndexedFile, ...]
    """The files, sorted by path."""
    chunks: NDArray[Any]
    """The chunks of all files, of type `CHUNK`."""
    chunk_starts: NDArray[np.int64]
    """First record id of each chunk."""
    block_starts: NDArray[np.int64]
    """First record id of each block: a chunk, or a part of a chunk with many records."""
    block_counts: NDArray[np.int64]
    """Number of records of each block."""
    fingerprint: str
    """Identifies the records and their numbering."""

    @classmethod
    def of(cls, files: Sequence[IndexedFile], chunks: NDArray[Any]) -> Self:
        """Build the tables of files, sorted by path, that have at least one chunk in total."""
        counts = chunks["num_records"].astype(np.int64)
        chunk_starts = np.cumsum(counts) - counts
        block_starts, block_counts = _blocks(chunk_starts, chunks)
        arrays = (chunks, chunk_starts, block_starts, block_counts)
        for array in arrays:
            array.flags.writeable = False
        return cls(tuple(files), *arrays, _fingerprint(files, chunks))

    def chunk(self, number: int) -> ChunkInfo:
        """Return the location of a chunk, numbered over all files, in its file."""
        # One conversion of the whole row is faster; this runs for each chunk that is read.
        facts = dict(zip(CHUNK.names or (), self.chunks[number].item(), strict=True))
        return ChunkInfo(**facts | {"codec": Codec(facts["codec"])})

    def check(self) -> None:
        """Refuse tables that cannot be the result of a scan of files with these sizes.

        Raises:
            ValueError: The tables are inconsistent; the message says how.
        """
        per_file = [file.num_chunks for file in self.files]
        if not all(isinstance(count, int) and count >= 0 for count in per_file):
            raise ValueError("a file has no valid number of chunks")
        if not len(self.chunks) or sum(per_file) != len(self.chunks):
            raise ValueError("its number of chunks does not match its files")
        if len(self.chunk_starts) != len(self.chunks):
            raise ValueError("its chunk_starts do not match its chunks")
        num_records = num_blocks = 0
        for first in range(0, len(self.chunks), _CHUNKS_AT_ONCE):
            part = slice(first, min(first + _CHUNKS_AT_ONCE, len(self.chunks)))
            counts = self.chunks["num_records"][part].astype(np.int64)
            if not counts.all():
                raise ValueError("a chunk has no records")
            self._check_positions(part)
            starts = num_records + np.cumsum(counts) - counts
            block_starts, block_counts = _blocks(starts, self.chunks[part])
            blocks = slice(num_blocks, num_blocks + len(block_starts))
            for name, expected, actual in (
                ("chunk_starts", starts, self.chunk_starts[part]),
                ("block_starts", block_starts, self.block_starts[blocks]),
                ("block_counts", block_counts, self.block_counts[blocks]),
            ):
                if not np.array_equal(expected, actual):
                    raise ValueError(f"its {name} do not match its chunks")
            num_records, num_blocks = num_records + int(counts.sum()), blocks.stop
        if not num_blocks == len(self.block_starts) == len(self.block_counts):
            raise ValueError("its blocks do not match its chunks")
        if self.fingerprint != _fingerprint(self.files, self.chunks):
            raise ValueError("its fingerprint does not match its chunks")

    def _check_positions(self, part: slice) -> None:
        offsets = self.chunks["offset"][part.start : part.stop + 1]
        sizes = self.chunks["header_bytes"][part].astype(np.int64)
        sizes += self.chunks["compressed_bytes"][part]
        if offsets.min() < 0 or not sizes.all():
            raise ValueError("a chunk begins before the start of its file, or is empty")
        # A chunk must end before the next one, or before the end of the file.
        ends = np.append(offsets[1:], 0)[: len(sizes)]
        number = bisect.bisect_right(self.file_ends, part.start)
        while number < len(self.files) and self.file_ends[number] <= part.stop:
            if self.files[number].num_chunks:
                last = self.file_ends[number] - 1 - part.start
                ends[last] = self.files[number].size_bytes
            number += 1
        # Subtract instead of adding: a sum with a forged offset could overflow.
        if (ends - offsets[: len(sizes)] < sizes).any():
            raise ValueError("its chunks overlap or exceed the end of a file")

    @cached_property
    def file_ends(self) -> list[int]:
        """The number of the chunk after the last of each file."""
        return list(itertools.accumulate(file.num_chunks for file in self.files))


@dataclass(frozen=True)
class IndexInputs:
    """The files of an index in their current state, and the settings that they are read with."""

    paths: tuple[str, ...]
    """Sorted paths, as the user writes them."""
    files: tuple[FileState, ...]
    """Empty if they cannot be read."""
    settings: Mapping[str, Any]
    """The settings that influence the chunks."""

    def name(self, folder: str | Path) -> str:
        """Return the name of an index in a folder, which may be remote.

        The name begins with a dot, so no data pattern matches it.
        """
        identity = json.dumps([self._relative_paths(str(folder)), self.settings])
        return f".edl_horovod.{hashlib.sha256(identity.encode()).hexdigest()[:16]}{INDEX_ENDING}"

    def load(self, folder: Path) -> "SavedIndex":
        """Map the index of these files in a folder.

        Anyone who may write into the folder could create a file with that name. Therefore a file is
        read only if its owner could also change the data, and its tables must be consistent.

        Raises:
            FileNotFoundError: The folder has no index of these files.
            OSError, ValueError: The index is damaged, or has an untrusted owner or another version.
        """
        path = folder / self.name(folder)
        # A link may lead anywhere, and opening a pipe would block for ever.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            self._check_owner(os.fstat(descriptor), folder)
            mapped = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
        finally:
            os.close(descriptor)
        return self.parse(mapped, str(folder))

    def parse(self, content: mmap.mmap | bytes, folder: str) -> "SavedIndex":
        """Parse the index of a folder; the returned arrays share the memory of `content`.

        Raises:
            ValueError: The index is damaged, or is for other files or of another version.
        """
        try:
            return self._parse_content(content, folder)
        except (KeyError, TypeError, struct.error) as error:
            raise ValueError(f"it is damaged ({error})") from error

    def save(self, tables: Tables, folder: Path) -> None:
        """Write an index into a folder; it appears complete or not at all.

        Raises:
            OSError: It cannot be written, or a file with its name belongs to another user.
        """
        path = folder / self.name(folder)
        if os.path.lexists(path) and os.lstat(path).st_uid != os.geteuid():
            raise PermissionError(f"{path} belongs to another user")
        files = [asdict(file) for file in tables.files]
        for file, name in zip(files, self._relative_paths(str(folder)), strict=True):
            file |= {"path": name, "header": base64.b64encode(file["header"]).decode()}
        arrays = {name: getattr(tables, name) for name in _ARRAYS}
        if tables.block_starts is tables.chunk_starts:
            del arrays["block_starts"]  # Each chunk is a block.
        header = json.dumps(
            {
                "settings": self.settings,
                "states": [[file.size_bytes, file.changed] for file in self.files],
                "files": files,
                "fingerprint": tables.fingerprint,
                "lengths": {name: len(array) for name, array in arrays.items()},
            }
        ).encode()
        header += b" " * (-(_START.size + len(header)) % _ALIGNMENT)
        contents = [array.view(np.uint8).data for array in arrays.values()]
        checksum = zlib.crc32(header)
        for content in contents:
            checksum = zlib.crc32(content, checksum)
        write_bytes(path, [_START.pack(_MAGIC, len(header), checksum), header, *contents])

    def _relative_paths(self, folder: str) -> list[str]:
        """Return the paths relative to the index's folder, so that both can move together."""
        return [_relative_path(path, folder) for path in self.paths]

    def _check_owner(self, status: os.stat_result, folder: Path) -> None:
        # This user, the users who could replace the folder, and the owner of the data.
        owners = {0, os.geteuid(), os.stat(folder).st_uid}
        if not is_remote(self.paths[0]):
            owners.add(os.stat(self.paths[0]).st_uid)
        if not stat.S_ISREG(status.st_mode):
            raise ValueError("it is not a regular file")
        if (owner := status.st_uid) not in owners:
            raise ValueError(f"it belongs to user {owner}, who owns neither data nor folder")

    def _parse_content(self, content: mmap.mmap | bytes, folder: str) -> "SavedIndex":
        magic, header_bytes, checksum = _START.unpack_from(content)
        if magic != _MAGIC:
            raise ValueError(f"it begins with {magic!r}, expected {_MAGIC!r}")
        start = _START.size + header_bytes
        with memoryview(content) as view, view[_START.size :] as rest:
            if zlib.crc32(rest) != checksum:
                raise ValueError("its checksum does not match")
        header = json.loads(content[_START.size : start])
        names = [file["path"] for file in header["files"]]
        if (names, header["settings"]) != (self._relative_paths(folder), self.settings):
            raise ValueError("it is for other files or settings")
        saved_states = tuple(FileState(*saved_state) for saved_state in header["states"])
        arrays: dict[str, NDArray[Any]] = {}
        for name, length in header["lengths"].items():
            arrays[name] = np.frombuffer(content, _ARRAYS[name], length, start)
            start += arrays[name].nbytes
        arrays.setdefault("block_starts", arrays["chunk_starts"])
        files = [
            IndexedFile(**file | {"path": path, "header": base64.b64decode(file["header"])})
            for file, path in zip(header["files"], self.paths, strict=True)
        ]
        if [file.size_bytes for file in files] != [saved.size_bytes for saved in saved_states]:
            raise ValueError("its two lists of file sizes differ")
        tables = Tables(tuple(files), fingerprint=header["fingerprint"], **arrays)
        tables.check()
        return SavedIndex(tables, saved_states)


@dataclass(frozen=True)
class SavedIndex:
    """The content of an index, whose files may have changed since it was built."""

    tables: Tables
    files: tuple[FileState, ...]
    """The states of the files when the index was built."""


def with_distinct_headers(files: Sequence[IndexedFile]) -> list[IndexedFile]:
    """Return the files with records, without those whose header an earlier one has, too."""
    by_header: dict[bytes, IndexedFile] = {}
    for file in files:
        if file.num_chunks:
            by_header.setdefault(file.header, file)
    return list(by_header.values())


def locate(
    ids: Sequence[int] | NDArray[np.integer], chunk_starts: _Integers, num_records: int
) -> tuple[_Integers, _Integers]:
    """Return the chunk numbers of records, and their positions in those chunks.

    Raises:
        IndexError: A record id is out of range.
    """
    requested = np.asarray(ids)
    if requested.ndim != 1 or (requested.size and requested.dtype.kind not in "iu"):
        kind = f"shape {requested.shape} and dtype {requested.dtype}"
        raise TypeError(f"Record ids must be a flat sequence of integers, not an array of {kind}.")
    if requested.size and not 0 <= requested.min() <= requested.max() < num_records:
        bounds = f"from {requested.min()} to {requested.max()}"
        raise IndexError(f"Record ids go from 0 to {num_records - 1}; these go {bounds}.")
    numbers = requested.astype(np.int64)
    chunk_numbers = np.searchsorted(chunk_starts, numbers, side="right") - 1
    return chunk_numbers, numbers - chunk_starts[chunk_numbers]


def is_index_file(path: Path) -> bool:
    """Whether a file begins like an index, of this version or an earlier one.

    Raises:
        OSError: The file cannot be read.
    """
    with path.open("rb") as file:
        return file.read(len(_MAGIC))[:-1] == _MAGIC[:-1]


def _blocks(chunk_starts: _Integers, chunks: NDArray[Any]) -> tuple[_Integers, _Integers]:
    """Return the first record and the number of records of each block of some chunks."""
    chunk_counts = chunks["num_records"].astype(np.int64)
    if chunk_counts.max() <= MAX_BLOCK_RECORDS:
        return chunk_starts, chunk_counts
    is_whole = (chunks["header_bytes"] == 0) & (chunks["compressed_bytes"] > WHOLE_BYTES)
    max_records = np.where(is_whole, chunk_counts, MAX_BLOCK_RECORDS)
    num_blocks = -(-chunk_counts // max_records)
    chunk_of = np.repeat(np.arange(len(chunk_counts)), num_blocks)
    first_block = np.cumsum(num_blocks) - num_blocks
    skipped = (np.arange(len(chunk_of)) - first_block[chunk_of]) * max_records[chunk_of]
    counts = np.minimum(max_records[chunk_of], chunk_counts[chunk_of] - skipped)
    return chunk_starts[chunk_of] + skipped, counts


def _fingerprint(files: Sequence[IndexedFile], chunks: NDArray[Any]) -> str:
    """Return a digest of names, sizes, counts and checksums, independent of folder and times."""
    paths = [f"/{file.path}" if is_remote(file.path) else file.path for file in files]
    locations = list(map(os.path.abspath, paths))
    common_folder = os.path.commonpath([os.path.dirname(location) for location in locations])
    digest = hashlib.sha256()
    start = 0
    for file, location in zip(files, locations, strict=True):
        name = location[len(common_folder) :].lstrip("/")
        facts = [name, file.size_bytes, file.num_chunks]
        digest.update(json.dumps(facts + [file.sampled] * (file.sampled != 0)).encode())
        end = start + file.num_chunks
        for first in range(start, end, _CHUNKS_AT_ONCE):
            part = chunks[first : min(first + _CHUNKS_AT_ONCE, end)]
            columns = [part[name] for name in ("offset", "checksum", "num_records")]
            digest.update(np.stack(columns, axis=1, dtype="<i8").data)
        digest.update(file.header)
        start = end
    return digest.hexdigest()[:32]


def _relative_path(path: str, folder: str) -> str:
    if path.rpartition("/")[0] == folder:
        return path.rpartition("/")[2]  # The fast way for the usual case; files may be many.
    if not is_remote(path):
        return os.path.abspath(path) if is_remote(folder) else os.path.relpath(path, folder)
    scheme, _, location = path.partition("://")
    folder_scheme, _, folder_location = folder.partition("://")
    if scheme != folder_scheme:
        return path
    return posixpath.relpath(f"/{location}", f"/{folder_location}")
