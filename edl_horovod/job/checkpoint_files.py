"""The names and headers of a job's checkpoint files, which the launcher and the ranks share."""

import contextlib
import json
import re
from pathlib import Path
from typing import Any, BinaryIO

_NAME = re.compile(r"step-(\d{9,})\.safetensors")
_PARTIAL = re.compile(r"\.step-(\d{9,})\..*\.partial")
_LOCAL = "local.safetensors"
_LOCAL_OR_PARTIAL = re.compile(rf"{re.escape(_LOCAL)}|\.{re.escape(_LOCAL)}\..*\.partial")
LENGTH_BYTES = 8
"""Size of the length of the header: a little-endian integer at the start of the file."""
METADATA = "__metadata__"
"""The header's key of text about the whole file."""


def path_of(folder: Path, step: int) -> Path:
    """The file of one checkpoint."""
    return folder / f"step-{step:09d}.safetensors"


def local_path_of(folder: Path) -> Path:
    """The file of the variables that only this party of a federated training has."""
    return folder / _LOCAL


def steps_in(folder: Path) -> list[int]:
    """The steps of all checkpoints in a folder, oldest first, including damaged ones."""
    try:
        names = [path.name for path in folder.iterdir()]
    except FileNotFoundError:
        return []
    return sorted(int(match[1]) for match in map(_NAME.fullmatch, names) if match)


def remove_all(folder: Path) -> None:
    """Remove all checkpoints in a folder, and files of killed writers, but no other files.

    The file of a party's own variables is removed, too.
    """
    for path in folder.iterdir():
        if _is_ours(path):
            path.unlink(missing_ok=True)


def others_in(folder: Path) -> list[Path]:
    """The paths in a folder that are neither checkpoints nor files of killed writers."""
    return [path for path in folder.iterdir() if not _is_ours(path)]


def _is_ours(path: Path) -> bool:
    patterns = (_NAME, _PARTIAL, _LOCAL_OR_PARTIAL)
    return any(pattern.fullmatch(path.name) for pattern in patterns)


def remove_older(folder: Path, written: int, *, keep: int) -> None:
    """Remove the checkpoints that a new checkpoint makes superfluous.

    Only older checkpoints are removed: a newer one, which may be damaged, must not displace good
    ones. Files of writers that were killed while they wrote an older checkpoint are removed, too.

    Args:
        folder: The folder of the checkpoints.
        written: The step of the checkpoint that was just written.
        keep: How many checkpoints to keep, including the new one; 1 or more.
    """
    older = [step for step in steps_in(folder) if step < written]
    for step in older[: max(0, len(older) - (keep - 1))]:
        path_of(folder, step).unlink(missing_ok=True)
    for path in folder.iterdir():
        match = _PARTIAL.fullmatch(path.name)
        if match and int(match[1]) < written:  # Another rank may be writing a later one.
            with contextlib.suppress(FileNotFoundError):  # Another rank may do the same.
                path.unlink()


def read_metadata(stream: BinaryIO) -> dict[str, Any]:
    """Read the metadata of a file from its header, without checking the values.

    Raises:
        OSError: The file cannot be read.
        ValueError: The header is invalid or truncated.
    """
    length = int.from_bytes(stream.read(LENGTH_BYTES), "little")
    try:
        metadata: dict[str, Any] = dict(json.loads(stream.read(length))[METADATA])
    except (KeyError, TypeError, OverflowError, MemoryError) as error:
        raise ValueError(f"not a valid header of a tensor file: {error!r}") from error
    return metadata
