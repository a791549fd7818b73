"""Select the files of a model zoo that are copied with it, and compute their digest."""

import hashlib
import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from edl_horovod.errors import ConfigError, DataError, OutputError
from edl_horovod.files import marker
from edl_horovod.models.lookup import import_root

__all__ = ["digest", "require_inside", "require_unchanged", "sources", "walk"]

_NOT_A_ZOO = ("pyvenv.cfg", marker.NAME)
"""A folder that holds one of these is an environment, or a job, a trained model or the like."""
_SUFFIXES = frozenset({".py", ".txt", ".yaml", ".json", ".md"})
_MAX_FILE_BYTES = 1 << 20
MAX_TOTAL_BYTES = 50 << 20

log = logging.getLogger(__name__)


def walk(zoo: Path) -> Iterator[Path]:
    """The files of a folder that may belong to the zoo, without hidden and compiled ones."""
    for folder, folders, names in os.walk(zoo):
        if folder != str(zoo) and any(name in names for name in _NOT_A_ZOO):
            folders.clear()
            continue
        folders[:] = [f for f in folders if not f.startswith(".") and f != "__pycache__"]
        yield from (Path(folder, name) for name in names if not name.startswith("."))


def require_inside(zoo: Path, files: Iterable[Path]) -> None:
    """Refuse links out of a zoo, because they would copy other files of this machine.

    Raises:
        ConfigError: One of them is not a file, or is a link to a file elsewhere.
    """
    root = zoo.resolve()
    for name in files:
        file = root / name
        if not file.resolve().is_relative_to(root) or not file.is_file():
            raise ConfigError(
                f"The model zoo holds {name.as_posix()!r}, which is no file of the zoo: a link that"
                " leads out of it would carry another file of this machine along.",
                received={"model_zoo": zoo},
                cure="Remove it, or put the file itself there.",
            )


def sources(zoo: Path) -> list[Path]:
    """The files of a zoo that are copied into a trained model: sorted, relative paths.

    Sources and small texts (`.py`, `.txt`, `.yaml`, `.json`, `.md` up to 1 MiB); nothing hidden. Of
    a zoo that is one file, that file.

    Raises:
        ConfigError: One of them is a link that leads out of the zoo.
        OutputError: Together they are larger than 50 MiB.
    """
    root = import_root(zoo)
    found = [zoo] if zoo.is_file() else [file for file in walk(zoo) if _is_source(file)]
    files = sorted(file.relative_to(root) for file in found)
    require_inside(root, files)
    num_bytes = sum(root.joinpath(file).stat().st_size for file in files)
    if num_bytes > MAX_TOTAL_BYTES:
        raise OutputError(
            f"The sources and texts of the model zoo take {num_bytes} bytes; a trained model may"
            f" carry {MAX_TOTAL_BYTES}.",
            received={"model_zoo": zoo, "files": len(files)},
            cure="Keep data and environments out of the model zoo, or give a narrower folder.",
        )
    return files


def digest(zoo: Path, files: Sequence[Path]) -> str:
    """SHA-256 of the names and contents of files of a zoo, in hex."""
    found = hashlib.sha256()
    for file in sorted(files):
        content = zoo.joinpath(file).read_bytes()
        found.update(f"{file.as_posix()}\0{len(content)}\0".encode())
        found.update(content)
    return found.hexdigest()


def require_unchanged(trained_model: Path, recorded: str, *, trusts_changes: bool) -> None:
    """Refuse a trained model's code that has changed since the training; if trusted, log it.

    Raises:
        DataError: The code has changed.
    """
    copy = trained_model / "zoo"
    found = digest(copy, sources(copy))
    if found == recorded:
        return
    changed = f"The code in {copy} is not the code that the model was trained with."
    if not trusts_changes:
        raise DataError(
            f"{changed} Its digest is {found[:12]}; the model was trained with"
            f" {recorded[:12] or 'none'}.",
            received={"trained_model": trained_model},
            cure=(
                "It would run with your rights: copy the model again, or find out who changed what;"
                " trust=changed then runs it as it is."
            ),
        )
    log.warning("%s It is run because of trust=changed.", changed)


def _is_source(file: Path) -> bool:
    is_wanted = file.suffix in _SUFFIXES and file.is_file()
    return is_wanted and file.stat().st_size <= _MAX_FILE_BYTES
