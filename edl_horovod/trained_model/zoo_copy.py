"""The copy of the model zoo that a trained model carries."""

import hashlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from edl_horovod.errors import OutputError
from edl_horovod.models.lookup import import_root
from edl_horovod.models.zoo_files import walk

__all__ = ["copy_zoo", "zoo_files", "zoo_hash"]

_SUFFIXES = frozenset({".py", ".txt", ".yaml", ".json", ".md"})
_MAX_FILE_BYTES = 1 << 20
MAX_TOTAL_BYTES = 50 << 20


def zoo_files(zoo: Path) -> list[Path]:
    """The files that a copy of a zoo holds, relative to it, sorted.

    Sources and small texts (`.py`, `.txt`, `.yaml`, `.json`, `.md` up to 1 MiB); nothing hidden.

    Args:
        zoo: Folder of model files, or one file, which is copied alone.

    Raises:
        OutputError: Together they are larger than 50 MiB.
    """
    root = import_root(zoo)
    files = sorted(file.relative_to(root) for file in ([zoo] if zoo.is_file() else _walk(zoo)))
    num_bytes = sum(root.joinpath(file).stat().st_size for file in files)
    if num_bytes > MAX_TOTAL_BYTES:
        raise OutputError(
            f"The sources and texts of the model zoo take {num_bytes} bytes; a trained model may"
            f" carry {MAX_TOTAL_BYTES}. Received: model_zoo={str(zoo)!r}, {len(files)} files."
            " Keep data and environments out of the model zoo, or give a narrower folder."
        )
    return files


def zoo_hash(zoo: Path, files: list[Path]) -> str:
    """SHA-256 of the names and contents of files of a zoo, in hex."""
    digest = hashlib.sha256()
    for file in sorted(files):
        content = zoo.joinpath(file).read_bytes()
        digest.update(f"{file.as_posix()}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()


def copy_zoo(zoo: Path, files: list[Path], *, to: Path) -> None:
    """Copy files of a zoo into a new folder, under the same relative names."""
    for file in files:
        copy = to / file
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(import_root(zoo) / file, copy)


def _walk(zoo: Path) -> Iterator[Path]:
    for file in walk(zoo):
        is_wanted = file.suffix in _SUFFIXES and file.is_file()
        if is_wanted and file.stat().st_size <= _MAX_FILE_BYTES:
            yield file
