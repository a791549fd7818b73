"""Where a job's checkpoints are: the names that the launcher and the ranks share."""

import contextlib
import re
from pathlib import Path

__all__ = ["others_in", "path_of", "remove_all", "remove_older", "steps_in"]

_NAME = re.compile(r"step-(\d{9,})\.safetensors")
_PARTIAL = re.compile(r"\.step-(\d{9,})\..*\.partial")


def path_of(folder: Path, step: int) -> Path:
    """The file of one checkpoint."""
    return folder / f"step-{step:09d}.safetensors"


def steps_in(folder: Path) -> list[int]:
    """The steps of all checkpoints in a folder, oldest first; damaged ones are counted too."""
    try:
        names = [path.name for path in folder.iterdir()]
    except FileNotFoundError:
        return []
    return sorted(int(match[1]) for match in map(_NAME.fullmatch, names) if match)


def remove_all(folder: Path) -> None:
    """Remove all checkpoints in a folder, and what writers left behind; nothing else in it."""
    for path in folder.iterdir():
        if _is_ours(path):
            path.unlink(missing_ok=True)


def others_in(folder: Path) -> list[Path]:
    """What is in a folder of checkpoints beside them and what writers left behind."""
    return [path for path in folder.iterdir() if not _is_ours(path)]


def _is_ours(path: Path) -> bool:
    return any(form.fullmatch(path.name) for form in (_NAME, _PARTIAL))


def remove_older(folder: Path, written: int, *, keep: int) -> None:
    """Remove what a checkpoint that was just written makes superfluous.

    Only what is older than it: a newer one, even a damaged one, must not push out those that are
    good. With them goes what writers left behind that were killed while they wrote an older one.

    Args:
        folder: Of the checkpoints.
        written: Step of the one that was just written.
        keep: How many are kept, with that one; 1 or more.
    """
    older = [step for step in steps_in(folder) if step < written]
    for step in older[: max(0, len(older) - (keep - 1))]:
        path_of(folder, step).unlink(missing_ok=True)
    for path in folder.iterdir():
        match = _PARTIAL.fullmatch(path.name)
        if match and int(match[1]) < written:  # A later one may just be written.
            with contextlib.suppress(FileNotFoundError):  # Another rank may do the same.
                path.unlink()
