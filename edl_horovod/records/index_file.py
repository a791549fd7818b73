"""An index as a file: written once, mapped by every process that reads the same data (D19).

The file begins with eight bytes that name it, then the length of a header, and a CRC-32 of all that
follows, both as little-endian uint64. The header is JSON padded with spaces to a multiple of 64
bytes; behind it lie arrays of `Tables`, back to back. An index is for files of certain names that
were scanned with certain settings. It also says which sizes and times these files had.
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
    """Files as they are now, and how they are to be read."""

    paths: tuple[str, ...]
    """Sorted, as the user writes them."""
    files: tuple[FileState, ...]
    settings: Mapping[str, Any]


@dataclass(frozen=True)
class SavedIndex:
    """What an index says of files that may have changed since."""

    tables: Tables
    files: tuple[FileState, ...]
    """The files as they were when it was made."""


def name_of(state: State, folder: str) -> str:
    """The name of an index in a folder, which may be remote.

    No pattern of data matches it, for it begins with a dot.
    """
    named = json.dumps([_names(state, folder), state.settings])
    return f".edl_horovod.{hashlib.sha256(named.encode()).hexdigest()[:16]}{ENDING}"


def load(state: State, folder: Path) -> SavedIndex:
    """Map the index of these files in a folder.

    Anyone who may write into the folder may leave a file of that name. So only a file of an owner
    who could as well change the data is read, and its tables must be those of a scan.

    Raises:
        FileNotFoundError: There is no index.
        OSError, ValueError: It cannot be used: it is damaged, of a stranger, of another version.
    """
    path = folder / name_of(state, str(folder))
    # A link may lead anywhere; a pipe of that name would be waited at for ever.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        _check_owner(os.fstat(descriptor), state, folder)
        mapped = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
    finally:
        os.close(descriptor)
    return parse(mapped, state, str(folder))


def parse(content: mmap.mmap | bytes, state: State, folder: str) -> SavedIndex:
    """What an index in a folder holds; the arrays keep `content`.

    Raises:
        ValueError: It is damaged, of other files or of another version.
    """
    try:
        return _parse(content, state, folder)
    except (KeyError, TypeError, struct.error) as error:
        raise ValueError(f"it is damaged ({error})") from error


def save(state: State, tables: Tables, folder: Path) -> None:
    """Put an index into a folder; it appears whole or not at all.

    Raises:
        OSError: It cannot be written, or a file of its name belongs to somebody else.
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
    """Whether a file begins as an index of this version or an earlier one does.

    Raises:
        OSError: It cannot be read.
    """
    with path.open("rb") as file:
        return file.read(len(_MAGIC))[:-1] == _MAGIC[:-1]


def _check_owner(found: os.stat_result, state: State, folder: Path) -> None:
    # The users who could take the folder's place, and this one; and those who can change the data.
    owners = {0, os.geteuid(), os.stat(folder).st_uid}
    if not is_remote(state.paths[0]):
        owners.add(os.stat(state.paths[0]).st_uid)
    if not stat.S_ISREG(found.st_mode):
        raise ValueError("it is no regular file")
    if found.st_uid not in owners:
        raise ValueError(f"it belongs to user {found.st_uid}, who owns neither data nor folder")


def _names(state: State, folder: str) -> list[str]:
    """The files' paths from the folder of the index, so that both may move together."""
    return [_name(path, folder) for path in state.paths]


def _name(path: str, folder: str) -> str:
    if path.rpartition("/")[0] == folder:
        return path.rpartition("/")[2]  # Nearly always, and there may be very many.
    if not is_remote(path):
        return os.path.abspath(path) if is_remote(folder) else os.path.relpath(path, folder)
    scheme, _, place = path.partition("://")
    folder_scheme, _, folder_place = folder.partition("://")
    if scheme != folder_scheme:
        return path
    return posixpath.relpath(f"/{place}", f"/{folder_place}")


def _parse(content: mmap.mmap | bytes, state: State, folder: str) -> SavedIndex:
    magic, header_bytes, checksum = _START.unpack_from(content)
    if magic != _MAGIC:
        raise ValueError(f"it begins with {magic!r}, expected {_MAGIC!r}")
    start = _START.size + header_bytes
    with memoryview(content) as view, view[_START.size :] as rest:
        if zlib.crc32(rest) != checksum:
            raise ValueError("its checksum does not fit")
    header = json.loads(content[_START.size : start])
    names = [file["path"] for file in header["files"]]
    if (names, header["settings"]) != (_names(state, folder), state.settings):
        raise ValueError("it is of other files")
    states = tuple(FileState(*one) for one in header["states"])
    arrays: dict[str, NDArray[Any]] = {}
    for name, length in header["lengths"].items():
        arrays[name] = np.frombuffer(content, _ARRAYS[name], length, start)
        start += arrays[name].nbytes
    arrays.setdefault("block_starts", arrays["chunk_starts"])
    files = [
        IndexedFile(**file | {"path": each, "header": base64.b64decode(file["header"])})
        for file, each in zip(header["files"], state.paths, strict=True)
    ]
    if [file.size_bytes for file in files] != [one.size_bytes for one in states]:
        raise ValueError("its files have other sizes than it is for")
    tables = Tables(files=tuple(files), fingerprint=header["fingerprint"], **arrays)
    tables.check()
    return SavedIndex(tables, states)
