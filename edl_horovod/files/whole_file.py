"""Small files that appear complete or not at all, even after a power loss."""

import errno
import json
import os
import secrets
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

from edl_horovod.errors import JobFailed
from edl_horovod.files import json_text

__all__ = [
    "FULL",
    "read_json",
    "reserve",
    "room_of",
    "sync",
    "write_bytes",
    "write_json",
    "write_text",
]

FULL = (errno.ENOSPC, errno.EDQUOT)
"""What a disk without room says."""

_Value = TypeVar("_Value")


def room_of(path: Path) -> Path:
    """The file that `reserve` writes beside another."""
    return path.with_name(f".{path.name}.reserved")


def reserve(path: Path, num_bytes: int) -> None:
    """Take room for a text that `write_text` writes later, also if the disk is full then.

    Raises:
        OSError: The disk is full already, or cannot be written.
    """
    write_bytes(room_of(path), [bytes(num_bytes)])


def write_text(path: Path, text: str, *, is_private: bool = False) -> None:
    """Write a text as one file; see `write_bytes`. On a full disk it goes into reserved room.

    Raises:
        OSError: The file cannot be written; the old one is unchanged.
    """
    try:
        write_bytes(path, [text.encode()], is_private=is_private)
    except OSError as error:
        if error.errno not in FULL or not room_of(path).exists():
            raise
        # The room is not given back first: another process would take it.
        with room_of(path).open("r+b") as stream:
            stream.write(text.encode())
            stream.truncate()
            stream.flush()
            os.fsync(stream.fileno())
        room_of(path).replace(path)
        sync(path.parent)


def write_bytes(
    path: Path, parts: Iterable[bytes | memoryview], *, is_private: bool = False
) -> None:
    """Write a file and sync it to the disk; readers see the old or the new content.

    Only the owner may read a private file, whatever the umask allows.

    Raises:
        OSError: The file cannot be written; the old one is unchanged.
    """
    # Not the process ID: pods that write into one folder have the same ones.
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    try:
        with partial.open("wb") as stream:
            if is_private:
                os.fchmod(stream.fileno(), 0o600)
            stream.writelines(parts)
            stream.flush()
            # Sync before the rename: else a power loss may leave an empty file of that name.
            os.fsync(stream.fileno())
        partial.replace(path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise
    sync(path.parent)


def write_json(path: Path, value: Any) -> None:
    """Write a value as one JSON text; see `write_text`."""
    write_text(path, json_text.dumps(value))


def read_json(path: Path, parse: Callable[[dict[str, Any]], _Value], *, cure: str) -> _Value | None:
    """Read a value from a file that holds a JSON object; None if the file does not exist.

    Args:
        path: The file.
        parse: Makes the value of the object, or raises a ValueError that says what it lacks.
        cure: What to do if the file is damaged, as a sentence.

    Raises:
        JobFailed: The file is damaged.
        OSError: The file cannot be read.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        return parse(_object(content))
    except ValueError as error:
        raise JobFailed(
            f"A file of the job is damaged: {error}.",
            received=f"{str(path)!r}, {len(content)} bytes",
            cure=f"A power loss or a fault of the disk may have done that. {cure}",
        ) from error


def _object(content: bytes) -> dict[str, Any]:
    if not content.strip():
        raise ValueError("it is empty")
    try:
        value = json.loads(content)
    except ValueError as error:
        raise ValueError(f"it is no JSON text ({error})") from error
    if isinstance(value, dict):
        return value
    raise ValueError("it holds no JSON object")


def sync(path: Path) -> None:
    """Flush a file's content, or the entries of a folder, to the disk.

    Raises:
        OSError: The flush failed.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
