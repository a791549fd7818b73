"""Select the files of a model zoo that are copied with it, and compute their digest."""

import hashlib
import logging
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from edl_horovod.errors import ConfigError, DataError, OutputError
from edl_horovod.files import marker
from edl_horovod.models.lookup import import_root

__all__ = [
    "MAX_READ_BYTES",
    "copy",
    "digest",
    "require_inside",
    "require_unchanged",
    "sources",
    "walk",
    "with_reads",
]

_NOT_A_ZOO = ("pyvenv.cfg", marker.NAME)
"""A folder with one of these files is a virtual environment, or a job, a trained model, etc."""
_SUFFIXES = frozenset({".py", ".txt", ".yaml", ".json", ".md"})
_MAX_FILE_BYTES = 1 << 20
MAX_TOTAL_BYTES = 50 << 20
MAX_READ_BYTES = 256 << 20
"""Most bytes of the files that a trained model carries because the model reads them."""

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
    """Refuse links out of a zoo: copying them would copy other files of this machine.

    Raises:
        ConfigError: A path is not a file, or is a link to a file elsewhere.
    """
    root = zoo.resolve()
    for name in files:
        file = root / name
        if not file.resolve().is_relative_to(root) or not file.is_file():
            raise ConfigError(
                f"The model zoo holds {name.as_posix()!r}, which is not a file in the zoo. A link"
                " that leads out of the zoo would copy another file of this machine with it.",
                received={"model_zoo": zoo},
                hint="Remove it, or put the file itself into the zoo.",
            )


def sources(zoo: Path) -> list[Path]:
    """The files of a zoo that are copied into a trained model: sorted, relative paths.

    These are sources and small texts (`.py`, `.txt`, `.yaml`, `.json`, `.md` up to 1 MiB) that are
    not hidden. A zoo that is one file has that file alone.

    Raises:
        ConfigError: A file is a link that leads out of the zoo.
        OutputError: Together they are larger than 50 MiB.
    """
    root = import_root(zoo)
    candidates = [zoo] if zoo.is_file() else [file for file in walk(zoo) if _is_source(file)]
    files = sorted(file.relative_to(root) for file in candidates)
    require_inside(root, files)
    num_bytes = sum(root.joinpath(file).stat().st_size for file in files)
    if num_bytes > MAX_TOTAL_BYTES:
        raise OutputError(
            f"The sources and texts of the model zoo take {num_bytes} bytes; a trained model may"
            f" carry {MAX_TOTAL_BYTES}.",
            received={"model_zoo": zoo, "files": len(files)},
            hint="Keep data and environments out of the model zoo, or give a narrower folder.",
        )
    return files


def with_reads(zoo: Path, reads: Iterable[Path]) -> list[Path]:
    """The files that are copied into a trained model: `sources`, and files that the model reads.

    Args:
        zoo: Folder of model files, or one file.
        reads: Absolute paths of the files that the model reads (`zoo_reads`). Hidden files, files
            outside the zoo, and files of environments, jobs and trained models are skipped.

    Returns:
        Sorted paths, relative to the zoo, or to the folder of a zoo that is one file.

    Raises:
        ConfigError: A source is a link that leads out of the zoo.
        OutputError: The files that the model reads are larger than 256 MiB, or the sources than 50.
    """
    root = import_root(zoo)
    source_files = sources(zoo)
    read_files = {path.relative_to(root) for path in reads if path.is_relative_to(root)} - set(
        source_files
    )
    sizes = {
        file: root.joinpath(file).stat().st_size for file in read_files if _may_be_read(root, file)
    }
    if (num_bytes := sum(sizes.values())) > MAX_READ_BYTES:
        largest = max(sizes, key=lambda file: sizes[file])
        raise OutputError(
            f"The model reads {num_bytes} bytes from files of the model zoo, and a trained model"
            f" may carry {MAX_READ_BYTES} of them; the largest is {largest.as_posix()!r}"
            f" ({sizes[largest]} bytes).",
            received={"model_zoo": zoo, "files": len(sizes)},
            hint="Keep it outside of the model zoo, where it stays for predict, too, and give the"
            " model its path as a parameter (params).",
        )
    return sorted([*source_files, *sizes])


def copy(zoo: Path, files: Iterable[Path], *, to: Path) -> None:
    """Copy files of a zoo, by their relative paths, into a folder; missing parents are made.

    Raises:
        OSError: A file cannot be read or written.
    """
    for file in files:
        target = to / file
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(import_root(zoo) / file, target)


def digest(zoo: Path, files: Sequence[Path]) -> str:
    """SHA-256 of the names and contents of files of a zoo, in hex."""
    sha256 = hashlib.sha256()
    for file in sorted(files):
        content = zoo.joinpath(file).read_bytes()
        sha256.update(f"{file.as_posix()}\0{len(content)}\0".encode())
        sha256.update(content)
    return sha256.hexdigest()


def require_unchanged(trained_model: Path, recorded: str, *, trusts_changes: bool) -> None:
    """Refuse a trained model's code that has changed since the training; if trusted, log it.

    Raises:
        DataError: The code has changed.
    """
    zoo_copy = trained_model / "zoo"
    current = digest(zoo_copy, [file.relative_to(zoo_copy) for file in walk(zoo_copy)])
    if current == recorded:
        return
    changed = f"The code in {zoo_copy} is not the code that the model was trained with."
    if not trusts_changes:
        raise DataError(
            f"{changed} Its digest is {current[:12]}; the model was trained with"
            f" {recorded[:12] or 'none'}.",
            received={"trained_model": trained_model},
            hint=(
                "It would run with your rights: copy the model again, or find out who changed the"
                " code; trust=changed then runs it as it is."
            ),
        )
    log.warning("%s It runs nevertheless because of trust=changed.", changed)


def _may_be_read(root: Path, file: Path) -> bool:
    """Whether `walk` would find a file of this relative path in the zoo."""
    left_out = ("__pycache__", "site-packages")
    if any(part.startswith(".") or part in left_out for part in file.parts):
        return False
    if not (root / file).resolve().is_relative_to(root.resolve()) or not (root / file).is_file():
        return False
    folders = [root / above for above in file.parents if above.parts]
    return not any((folder / name).exists() for folder in folders for name in _NOT_A_ZOO)


def _is_source(file: Path) -> bool:
    has_suffix = file.suffix in _SUFFIXES
    return has_suffix and file.is_file() and file.stat().st_size <= _MAX_FILE_BYTES
