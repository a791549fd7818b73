"""An index on the disk: written once, mapped by every process that reads the same files (D19).

The file begins with eight bytes that name it, then the length of a header, and a CRC-32 of all that
follows, both as little-endian uint64. The header is JSON padded with spaces to a multiple of 64
bytes; behind it lie the arrays of `Tables`, back to back. An index is for files of certain sizes
and times that were scanned with certain settings; where anything differs it counts for nothing.
"""

import base64
import contextlib
import fcntl
import hashlib
import json
import logging
import mmap
import os
import stat
import struct
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edl_horovod.files.whole_file import write_bytes
from edl_horovod.records.files.remote import is_remote
from edl_horovod.records.tables import CHUNK, IndexedFile, Tables

__all__ = ["State", "building", "load", "save", "state_of"]

log = logging.getLogger(__name__)

SMALL_BYTES = 4 << 20
"""Data of fewer bytes is scanned by every process: that takes no longer than to map an index."""
LONGEST_WAIT_SECONDS = 600.0
"""How long a process waits for another one to build an index, before it scans the files itself.

The lock of a process that dies is free at once, and a scan of ten million chunks takes minutes.
"""

_MAGIC = b"EDLINDX1"
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
    stats: tuple[tuple[int, int], ...]
    """Size in bytes and time of the last change in nanoseconds, of each file."""
    settings: Mapping[str, Any]


def state_of(paths: Sequence[str], settings: Mapping[str, Any]) -> State | None:
    """The state of files, given by their sorted paths, to be taken before they are scanned.

    Returns:
        None where no index is kept: the data is small, or not on a file system of this host.
    """
    if any(map(is_remote, paths)):
        return None
    try:
        found = [os.stat(path) for path in paths]
    except OSError:
        return None  # The scan says what is wrong with that file.
    if sum(one.st_size for one in found) < SMALL_BYTES:
        return None
    stats = tuple((one.st_size, one.st_mtime_ns) for one in found)
    return State(tuple(paths), stats, settings)


def load(state: State, folder: Path) -> Tables | None:
    """The index of these files in a folder.

    Anyone who may write into the folder may leave a file of that name. So only a file of an owner
    who could as well change the data is read, and its tables must be those of a scan.

    Returns:
        None where there is no index, or it is out of date, damaged or of a stranger.
    """
    path = _path(state, folder)
    try:
        # A link may lead anywhere; a pipe of that name would be waited at for ever.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            _check_file(os.fstat(descriptor), state, folder)
            mapped = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
        finally:
            os.close(descriptor)
        return _tables(mapped, state, folder)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, struct.error) as error:
        log.warning("The index %s is passed over: %s", path, error)
        return None


def save(state: State, tables: Tables, folder: Path) -> None:
    """Put an index into a folder, where that can be written; it appears whole or not at all."""
    files = [asdict(file) for file in tables.files]
    for file, name in zip(files, _names(state, folder), strict=True):
        file |= {"path": name, "header": base64.b64encode(file["header"]).decode()}
    header = json.dumps(
        {
            "settings": state.settings,
            "stats": state.stats,
            "files": files,
            "fingerprint": tables.fingerprint,
            "lengths": {name: len(getattr(tables, name)) for name in _ARRAYS},
        }
    ).encode()
    header += b" " * (-(_START.size + len(header)) % _ALIGNMENT)
    arrays = [getattr(tables, name).view(np.uint8).data for name in _ARRAYS]
    checksum = zlib.crc32(header)
    for array in arrays:
        checksum = zlib.crc32(array, checksum)
    try:
        write_bytes(
            _path(state, folder), [_START.pack(_MAGIC, len(header), checksum), header, *arrays]
        )
    except OSError as error:
        log.info("The index of the data is not kept: %s", error)


@contextlib.contextmanager
def building(folder: Path) -> Iterator[None]:
    """Hold back other processes that would build an index in a folder, which is made if needed."""
    descriptor = -1
    # A folder that cannot be made, or a file system without locks: every process scans.
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        _wait_for_lock(descriptor)
    try:
        yield
    finally:
        if descriptor >= 0:
            os.close(descriptor)


def _wait_for_lock(descriptor: int) -> None:
    deadline, pause = time.monotonic() + LONGEST_WAIT_SECONDS, 0.002
    while time.monotonic() < deadline:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(pause)
            pause = min(2 * pause, 0.1)
        else:
            return


def _path(state: State, folder: Path) -> Path:
    """No pattern of data matches the name, for it begins with a dot."""
    named = json.dumps([_names(state, folder), state.settings])
    return folder / f".edl_horovod.{hashlib.sha256(named.encode()).hexdigest()[:16]}.index"


def _check_file(found: os.stat_result, state: State, folder: Path) -> None:
    # The users who could change the data or take the folder's place, and this one.
    owners = (0, os.geteuid(), os.stat(state.paths[0]).st_uid, os.stat(folder).st_uid)
    if not stat.S_ISREG(found.st_mode):
        raise ValueError("it is no regular file")
    if found.st_uid not in owners:
        raise ValueError(f"it belongs to user {found.st_uid}, who owns neither data nor folder")


def _names(state: State, folder: Path) -> list[str]:
    """The files' paths from the folder of the index, so that both may move together."""
    return [os.path.relpath(path, folder) for path in state.paths]


def _tables(mapped: mmap.mmap, state: State, folder: Path) -> Tables | None:
    """What a mapped file holds; the arrays keep it mapped. None where it is of other files."""
    magic, header_bytes, checksum = _START.unpack_from(mapped)
    if magic != _MAGIC:
        raise ValueError(f"it begins with {magic!r}, expected {_MAGIC!r}")
    start = _START.size + header_bytes
    header = json.loads(mapped[_START.size : start])
    names = [file["path"] for file in header["files"]]
    stats = tuple(map(tuple, header["stats"]))
    if (names, stats, header["settings"]) != (_names(state, folder), state.stats, state.settings):
        return None
    with memoryview(mapped) as view, view[_START.size :] as rest:
        if zlib.crc32(rest) != checksum:
            raise ValueError("its checksum does not fit")
    arrays: dict[str, NDArray[Any]] = {}
    for name, dtype in _ARRAYS.items():
        length = header["lengths"][name]
        arrays[name] = np.frombuffer(mapped, dtype, length, start)
        start += arrays[name].nbytes
    files = [
        IndexedFile(**file | {"path": each, "header": base64.b64decode(file["header"])})
        for file, each in zip(header["files"], state.paths, strict=True)
    ]
    if [file.size_bytes for file in files] != [size for size, _ in state.stats]:
        raise ValueError("its files have other sizes than it is for")
    tables = Tables(files=tuple(files), fingerprint=header["fingerprint"], **arrays)
    tables.check()
    return tables
