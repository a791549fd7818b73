"""Which files of a model zoo a name may mean, found by reading them without running them."""

import ast
import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from edl_horovod.errors import ConfigError, UserCodeError, did_you_mean
from edl_horovod.spec import ElasticDLSpec

__all__ = ["Place", "list_definitions", "places", "require_zoo"]


@dataclass(frozen=True)
class Place:
    """Files of which one defines the model."""

    files: tuple[Path, ...]
    symbol: str | None
    """The name that one of them defines; None means the one spec that they define together."""


def require_zoo(model_zoo: str) -> Path:
    """Return the absolute path of a model zoo.

    Raises:
        ConfigError: It is not a directory.
    """
    zoo = Path(model_zoo).expanduser().resolve()
    if not zoo.is_dir():
        raise ConfigError(
            f"The model zoo is not a directory. Received: model_zoo={model_zoo!r} ({zoo})."
            " Give the folder that holds the model files."
        )
    return zoo


def places(zoo: Path, model_def: str) -> list[Place]:
    """Where a model may be defined; a later place counts only if no earlier one has it.

    `a.b` means the spec in file `a/b.py`, else the one in the files of folder `a/b/`, else `b` in
    file `a.py`, else `b` in the files of folder `a/`.

    Raises:
        ConfigError: The name is not made of Python names joined by dots.
        UserCodeError: The zoo has nothing of that name, or a file in question is not Python.
    """
    parts = model_def.split(".")
    if not all(part.isidentifier() for part in parts):
        raise ConfigError(
            "model_def must be names joined by dots: file, folder.file or file.Symbol."
            f" Received: model_def={model_def!r}.{did_you_mean(model_def, list_definitions(zoo))}"
        )
    found = [Place(files, None) for files in _files(zoo.joinpath(*parts))]
    if len(parts) > 1:
        symbol = parts[-1]
        for files in _files(zoo.joinpath(*parts[:-1])):
            is_alone = len(files) == 1
            defining = tuple(f for f in files if _defines(f, symbol, is_alone=is_alone))
            if defining:
                found.append(Place(defining, symbol))
    if not found:
        raise UserCodeError(_nothing_found(zoo, model_def))
    return found


def list_definitions(zoo: Path) -> list[str]:
    """Every complete spec in a zoo by its `model_def`, as far as reading the files tells."""
    classes: dict[str, list[_Class]] = {}
    for file, tree in _python_files(zoo):
        module = ".".join(file.relative_to(zoo).with_suffix("").parts)
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                classes.setdefault(node.name, []).append(_class_of(node, module))
    found = (one for same_name in classes.values() for one in same_name)
    return sorted(one.model_def for one in found if _is_complete(one, classes))


@dataclass(frozen=True)
class _Class:
    model_def: str
    bases: frozenset[str]
    methods: frozenset[str]


def _class_of(node: ast.ClassDef, module: str) -> _Class:
    bases = (base.attr if isinstance(base, ast.Attribute) else base for base in node.bases)
    return _Class(
        model_def=f"{module}.{node.name}",
        bases=frozenset(base.id if isinstance(base, ast.Name) else str(base) for base in bases),
        methods=frozenset(part.name for part in node.body if isinstance(part, ast.FunctionDef)),
    )


def _is_complete(one: _Class, classes: dict[str, list[_Class]]) -> bool:
    """Whether a class extends the spec and has each required method, itself or inherited."""
    lineage, todo = {one}, [one]
    while todo:
        bases = {base for name in todo.pop().bases for base in classes.get(name, [])}
        todo += bases - lineage
        lineage |= bases
    has = {method for relative in lineage for method in relative.methods}
    return any(ElasticDLSpec.__name__ in relative.bases for relative in lineage) and (
        ElasticDLSpec.__abstractmethods__ <= has
    )


def _nothing_found(zoo: Path, model_def: str) -> str:
    names = list_definitions(zoo)
    short = {name.rpartition(".")[0] for name in names} | {name.split(".")[0] for name in names}
    shown = ", ".join(names[:20]) if names else f"no class that extends {ElasticDLSpec.__name__}"
    return (
        f"The model zoo {zoo} does not define {model_def!r}. Received: model_def={model_def}."
        f" It defines: {shown}{', ...' if len(names) > 20 else ''}."
        f"{did_you_mean(model_def, [*names, *sorted(short)])}"
    )


def _files(path: Path) -> Iterator[tuple[Path, ...]]:
    file = path.with_name(f"{path.name}.py")
    if file.is_file():
        yield (file,)
    if path.is_dir() and (files := tuple(sorted(path.glob("*.py")))):
        yield files


def _python_files(zoo: Path) -> Iterator[tuple[Path, ast.Module]]:
    """The files of a zoo that are Python; a broken one concerns nobody who asks for another."""
    for folder, folders, files in os.walk(zoo):
        folders[:] = sorted(f for f in folders if not f.startswith(".") and f != "__pycache__")
        for file in (Path(folder, name) for name in sorted(files) if name.endswith(".py")):
            with contextlib.suppress(UserCodeError):
                yield file, _parsed(file)


def _parsed(file: Path) -> ast.Module:
    try:
        return ast.parse(file.read_bytes(), filename=str(file))
    except SyntaxError as e:
        raise UserCodeError(f"{file}:{e.lineno} is not Python: {e.msg}.") from e
    except (OSError, ValueError) as e:
        raise UserCodeError(f"{file} cannot be read: {e}.") from e


def _defines(file: Path, symbol: str, *, is_alone: bool) -> bool:
    """Whether a file binds a name at its top level; one file of several must not only import it."""
    todo: list[ast.stmt] = list(_parsed(file).body)
    while todo:
        node = todo.pop()
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name):
                bound = {name}
            case ast.Assign(targets=targets):
                bound = {target.id for target in targets if isinstance(target, ast.Name)}
            case ast.ImportFrom(names=names) if is_alone or file.name == "__init__.py":
                bound = {alias.asname or alias.name for alias in names}
            case _:
                bound = set()
                todo += [child for child in ast.walk(node) if isinstance(child, ast.stmt)][1:]
        if bound & {symbol, "*"}:
            return True
    return False
