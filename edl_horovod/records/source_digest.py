"""A digest of a user's module and of the modules of theirs that it imports."""

import ast
import hashlib
import os
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType

__all__ = ["digest_of", "imported_files"]

_OURS = __name__.partition(".")[0]


def digest_of(module: ModuleType) -> str:
    """The digest of the code that makes what a module gives, as far as the user wrote it.

    That is its file, and the files that it and these import, anywhere in them, from folders on the
    module search path where no packages are installed. What they read besides is not seen. A module
    that is no Python file has the digest of its name.
    """
    file = getattr(module, "__file__", None)
    if file is None or not file.endswith(".py"):
        return hashlib.sha256(module.__name__.encode()).hexdigest()
    found = imported_files([Path(file).resolve()], _roots())
    digests = sorted(hashlib.sha256(content).hexdigest() for content in found.values())
    return hashlib.sha256(" ".join(digests).encode()).hexdigest()


def imported_files(first: Sequence[Path], roots: Sequence[Path]) -> dict[Path, bytes]:
    """What some Python files and the files that they and these import contain, by their paths.

    Args:
        first: The files.
        roots: Folders from which modules are imported; what is imported from elsewhere is left out.
    """
    found = {file: file.read_bytes() for file in first}
    todo = [*first]
    while todo:
        importing = todo.pop()
        for other in _imported(found[importing], importing, roots):
            if other not in found:
                found[other] = other.read_bytes()
                todo.append(other)
    return found


def _roots() -> list[Path]:
    """Where the user's own modules are imported from."""
    standard = {os.path.realpath(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")}
    places = [os.path.realpath(place or ".") for place in sys.path]
    own = [
        place
        for place in dict.fromkeys(places)
        if "site-packages" not in place
        and "dist-packages" not in place
        and not any(place == each or place.startswith(each + os.sep) for each in standard)
    ]
    return [Path(place) for place in own if os.path.isdir(place)]


def _imported(code: bytes, importing: Path, roots: Sequence[Path]) -> Iterator[Path]:
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError):
        return  # Who runs it will be told.
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
            folders = roots
        elif isinstance(node, ast.ImportFrom):
            start = f"{node.module}." if node.module else ""
            names = [f"{start}{alias.name}" for alias in node.names]
            names += [node.module] if node.module else []
            folders = [importing.parents[node.level - 1]] if node.level else roots
        else:
            continue
        for name in names:
            if name.partition(".")[0] != _OURS:
                yield from _files_of(name, folders)


def _files_of(name: str, folders: Sequence[Path]) -> Iterator[Path]:
    for folder in folders:
        place = folder.joinpath(*name.split("."))
        for file in (place.with_name(f"{place.name}.py"), place / "__init__.py"):
            if file.is_file():
                yield file.resolve()
