"""Which files of a model zoo travel with it."""

import os
from collections.abc import Iterator
from pathlib import Path

__all__ = ["walk"]

_NOT_A_ZOO = ("pyvenv.cfg", "trained_model.pb", "events.jsonl")
"""A folder that holds one of these is an environment, a trained model or a running job."""


def walk(zoo: Path) -> Iterator[Path]:
    """Every file of a folder that may belong to the zoo: nothing hidden, nothing compiled.

    Args:
        zoo: The folder.
    """
    for folder, folders, names in os.walk(zoo):
        if folder != str(zoo) and any(name in names for name in _NOT_A_ZOO):
            folders.clear()
            continue
        folders[:] = [f for f in folders if not f.startswith(".") and f != "__pycache__"]
        yield from (Path(folder, name) for name in names if not name.startswith("."))
