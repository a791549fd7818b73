"""An index as a file: written once, mapped by every process that reads the same data (D19).

The file begins with an eight-byte magic number, the length of a header, and a CRC-32 of everything
that follows, both as little-endian uint64. The header is JSON padded with spaces to a multiple of
64 bytes; the arrays of `Tables` follow it back to back. An index belongs to files with certain
names that were scanned with certain settings. It also stores their sizes and times at that moment.
"""

import base64
import hashlib
import json
import mmap
import os
import posixpath
import stat
import struct
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edl_horovod.files.whole_file import write_bytes
from edl_horovod.records.files.input_file import FileState
from edl_horovod.records.files.remote import is_remote
from edl_horovod.records.tables import CHUNK, IndexedFile, Tables

__all__ = [
    "ENDING",
    "SavedIndex",
    "State",
    "is_index",
    "load",
    "name_of",
    "parse",
    "save",
]

ENDING = ".index"

_MAGIC = b"EDLINDX3"
_START = struct.Struct("<8sQQ")
_ALIGNMENT = 64

_ARRAYS = {"chunks": CHUNK} | {
    name: np.dtype("<i8") for name in ("chunk_starts", "block_starts", "block_counts")
}


@dataclass(frozen=True)
class State:
    """The current state of files, and the settings that they are read with."""

    paths: tuple[str, ...]
    """Sorted paths, as the user writes them."""
    files: tuple[FileState, ...]
    settings: Mapping[str, Any]


@dataclass(frozen=True)
class SavedIndex:
    """The content of an index, whose files may have changed since it was built."""

    tables: Tables
    files: tuple[FileState, ...]
    """The states of the files when the index was built."""


def name_of(state: State, folder: str) -> str:
    """Return the name of an index in a folder, which may be remote.

    The name begins with a dot, so no data pattern matches it.
    """
    identity = json.dumps([_names(state, folder), state.settings])
    return f".edl_horovod.{hashlib.sha256(identity.encode()).hexdigest()[:16]}{ENDING}"


def load(state: State, folder: Path) -> SavedIndex:
    """Map the index of these files in a folder.

    Anyone who may write into the folder could create a file with that name. Therefore a file is
    read only if its owner could also change the data, and its tables must be consistent.

    Raises:
        FileNotFoundError: The folder has no index of these files.
        OSError, ValueError: The index is damaged, or has an untrusted owner or another version.
    """
    path = folder / name_of(state, str(folder))
    # A link may lead anywhere, and opening a pipe would block for ever.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        _check_owner(os.fstat(descriptor), state, folder)
        mapped = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
    finally:
        os.close(descriptor)
    return parse(mapped, state, str(folder))


def parse(content: mmap.mmap | bytes, state: State, folder: str) -> SavedIndex:
    """Parse the index of a folder; the returned arrays share the memory of `content`.

    Raises:
        ValueError: The index is damaged, or is for other files or of another version.
    """
    try:
        return _parse(content, state, folder)
    except (KeyError, TypeError, struct.error) as error:
        raise ValueError(f"it is damaged ({error})") from error


def save(state: State, tables: Tables, folder: Path) -> None:
    """Write an index into a folder; it appears complete or not at all.

    Raises:
        OSError: It cannot be written, or a file with its name belongs to another user.
    """
    path = folder / name_of(state, str(folder))
    if os.path.lexists(path) and os.lstat(path).st_uid != os.geteuid():
        raise PermissionError(f"{path} belongs to another user")
    files = [asdict(file) for file in tables.files]
    for file, name in zip(files, _names(state, str(folder)), strict=True):
        file |= {"path": name, "header": base64.b64encode(file["header"]).decode()}
    arrays = {name: getattr(tables, name) for name in _ARRAYS}
    if tables.block_starts is tables.chunk_starts:
        del arrays["block_starts"]  # Each chunk is a block.
    header = json.dumps(
        {
            "settings": state.settings,
            "states": [[file.size_bytes, file.changed] for file in state.files],
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


def is_index(path: Path) -> bool:
    """Whether a file begins like an index, of this version or an earlier one.

    Raises:
        OSError: The file cannot be read.
    """
    with path.open("rb") as file:
        return file.read(len(_MAGIC))[:-1] == _MAGIC[:-1]


def _check_owner(status: os.stat_result, state: State, folder: Path) -> None:
    # This user, the users who could replace the folder, and the owner of the data.
    owners = {0, os.geteuid(), os.stat(folder).st_uid}
    if not is_remote(state.paths[0]):
        owners.add(os.stat(state.paths[0]).st_uid)
    if not stat.S_ISREG(status.st_mode):
        raise ValueError("it is not a regular file")
    if status.st_uid not in owners:
        raise ValueError(f"it belongs to user {status.st_uid}, who owns neither data nor folder")


def _names(state: State, folder: str) -> list[str]:
    """Return the files' paths relative to the index's folder, so that both can move together."""
    return [_name(path, folder) for path in state.paths]


def _name(path: str, folder: str) -> str:
    if path.rpartition("/")[0] == folder:
        return path.rpartition("/")[2]  # The fast way for the usual case; files may be many.
    if not is_remote(path):
        return os.path.abspath(path) if is_remote(folder) else os.path.relpath(path, folder)
    scheme, _, location = path.partition("://")
    folder_scheme, _, folder_location = folder.partition("://")
    if scheme != folder_scheme:
        return path
    return posixpath.relpath(f"/{location}", f"/{folder_location}")


def _parse(content: mmap.mmap | bytes, state: State, folder: str) -> SavedIndex:
    magic, header_bytes, checksum = _START.unpack_from(content)
    if magic != _MAGIC:
        raise ValueError(f"it begins with {magic!r}, expected {_MAGIC!r}")
    start = _START.size + header_bytes
    with memoryview(content) as view, view[_START.size :] as rest:
        if zlib.crc32(rest) != checksum:
            raise ValueError("its checksum does not match")
    header = json.loads(content[_START.size : start])
    names = [file["path"] for file in header["files"]]
    if (names, header["settings"]) != (_names(state, folder), state.settings):
        raise ValueError("it is for other files or settings")
    saved_states = tuple(FileState(*saved_state) for saved_state in header["states"])
    arrays: dict[str, NDArray[Any]] = {}
    for name, length in header["lengths"].items():
        arrays[name] = np.frombuffer(content, _ARRAYS[name], length, start)
        start += arrays[name].nbytes
    arrays.setdefault("block_starts", arrays["chunk_starts"])
    files = [
        IndexedFile(**file | {"path": path, "header": base64.b64decode(file["header"])})
        for file, path in zip(header["files"], state.paths, strict=True)
    ]
    if [file.size_bytes for file in files] != [saved.size_bytes for saved in saved_states]:
        raise ValueError("its two lists of file sizes differ")
    tables = Tables(files=tuple(files), fingerprint=header["fingerprint"], **arrays)
    tables.check()
    return SavedIndex(tables, saved_states)
