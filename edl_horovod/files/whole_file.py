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

FULL = (errno.ENOSPC, errno.EDQUOT)
"""The error numbers of a full disk or an exceeded quota."""

_Value = TypeVar("_Value")


def room_of(path: Path) -> Path:
    """Return the path of the file that reserves space for another file."""
    return path.with_name(f".{path.name}.reserved")


def reserve(path: Path, num_bytes: int) -> None:
    """Reserve space for a text that `write_text` writes later, even if the disk is full by then.

    Raises:
        OSError: The disk is full already, or cannot be written.
    """
    write_bytes(room_of(path), [bytes(num_bytes)])


def write_text(path: Path, text: str, *, is_private: bool = False) -> None:
    """Write a text as one file; see `write_bytes`. On a full disk it uses the reserved space.

    Only the owner can read a private file.

    Raises:
        OSError: The file cannot be written; the old one is unchanged.
    """
    try:
        write_bytes(path, [text.encode()], mode=0o600 if is_private else None)
    except OSError as error:
        if error.errno not in FULL or not room_of(path).exists():
            raise
        # Overwrite the reserved file instead of freeing it: another process would take the space.
        with room_of(path).open("r+b") as stream:
            stream.write(text.encode())
            stream.truncate()
            stream.flush()
            os.fsync(stream.fileno())
        room_of(path).replace(path)
        sync(path.parent)


def write_bytes(
    path: Path, parts: Iterable[bytes | memoryview], *, mode: int | None = None
) -> None:
    """Write a file and sync it to disk; readers see either the old or the new content.

    The umask decides who can read it, unless a mode is given.

    Raises:
        OSError: The file cannot be written; the old one is unchanged.
    """
    # Not the process ID, which may be equal in pods that write into the same folder.
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")

    def create(file: str, flags: int) -> int:
        # Private from the beginning: who opens it before a change of its mode may read on.
        return os.open(file, flags, 0o666 if mode is None else mode)

    try:
        with open(partial, "xb", opener=create) as stream:
            if mode is not None:
                os.fchmod(stream.fileno(), mode)  # The umask may have taken a part away.
            stream.writelines(parts)
            stream.flush()
            # Sync before the rename: otherwise a power loss may leave an empty file with that name.
            os.fsync(stream.fileno())
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    sync(path.parent)


def write_json(path: Path, value: Any) -> None:
    """Write a value as one JSON text; see `write_text`."""
    write_text(path, json_text.dumps(value))


def read_json(path: Path, parse: Callable[[dict[str, Any]], _Value], *, hint: str) -> _Value | None:
    """Read a value from a file with a JSON object; None if the file does not exist.

    Args:
        path: Path of the file.
        parse: Converts the object to the value; raises ValueError if it is invalid.
        hint: The advice for a damaged file, a sentence.

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
            hint=f"A power loss or a disk error may be the cause. {hint}",
        ) from error


def _object(content: bytes) -> dict[str, Any]:
    if not content.strip():
        raise ValueError("it is empty")
    try:
        value = json.loads(content)
    except ValueError as error:
        raise ValueError(f"it is not valid JSON ({error})") from error
    if isinstance(value, dict):
        return value
    raise ValueError("it is not a JSON object")


def sync(path: Path) -> None:
    """Flush the content of a file, or the entries of a folder, to disk.

    Raises:
        OSError: The flush failed.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
