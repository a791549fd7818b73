"""A digest of a user's module and of the user's other modules that it imports."""

import ast
import hashlib
import os
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType

_OURS = __name__.partition(".")[0]


def digest_of(module: ModuleType) -> str:
    """Return a digest of a user's module and of the user's code that it imports.

    It covers the module's file and all files that are imported from it, directly or indirectly,
    except from folders where packages are installed. Files that the code reads in other ways are
    not covered. A module that is not a Python file has the digest of its name.
    """
    file = getattr(module, "__file__", None)
    if file is None or not file.endswith(".py"):
        return hashlib.sha256(module.__name__.encode()).hexdigest()
    contents = imported_files([Path(file).resolve()], _roots())
    digests = sorted(hashlib.sha256(content).hexdigest() for content in contents.values())
    return hashlib.sha256(" ".join(digests).encode()).hexdigest()


def imported_files(first: Sequence[Path], roots: Sequence[Path]) -> dict[Path, bytes]:
    """Return the contents of Python files and of all files that they import, by path.

    Args:
        first: The files to begin with.
        roots: Folders that modules are imported from; modules elsewhere are left out.
    """
    contents = {file: file.read_bytes() for file in first}
    pending = [*first]
    while pending:
        importing = pending.pop()
        for other in _imported(contents[importing], importing, roots):
            if other not in contents:
                contents[other] = other.read_bytes()
                pending.append(other)
    return contents


def _roots() -> list[Path]:
    """Return the folders that the user's own modules are imported from."""
    standard = [Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib")]
    folders = dict.fromkeys(Path(os.path.realpath(folder or ".")) for folder in sys.path)
    return [
        folder
        for folder in folders
        if not any(word in str(folder) for word in ("site-packages", "dist-packages"))
        and not any(folder.is_relative_to(library) for library in standard)
        # Unlike `Path.is_dir`, it is false for one below a folder that this user may not search.
        and os.path.isdir(folder)
    ]


def _imported(code: bytes, importing: Path, roots: Sequence[Path]) -> Iterator[Path]:
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError):
        return  # The import itself reports the error.
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
        base = folder.joinpath(*name.split("."))
        for file in (base.with_name(f"{base.name}.py"), base / "__init__.py"):
            if file.is_file():
                yield file.resolve()
