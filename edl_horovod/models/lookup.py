"""Find the files of a model zoo that a name may mean, by parsing them without running them."""

import ast
import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from edl_horovod.errors import ConfigError, UserCodeError, did_you_mean
from edl_horovod.files.url_secrets import without_secrets
from edl_horovod.spec import ElasticDLSpec

_MODEL_BASES = frozenset({"LightningModule", "Model", "Module", "Sequential"})
_MODEL_FUNCTION = "custom_model"


@dataclass(frozen=True)
class FileGroup:
    """Files of which one defines the model."""

    files: tuple[Path, ...]
    symbol: str | None
    """Name of the model in its file; None means the only model that the files define."""


def require_zoo(model_zoo: str) -> Path:
    """Return the absolute path of a model zoo.

    Raises:
        ConfigError: It is neither a folder nor a Python file.
    """
    zoo = Path(model_zoo).expanduser().resolve()
    if zoo.is_dir() or (zoo.suffix == ".py" and zoo.is_file()):
        return zoo
    if "://" in model_zoo:
        raise ConfigError(
            "A URL is fetched by the command that starts a job, not by what runs in it.",
            received={"model_zoo": without_secrets(model_zoo)},
            hint="Fetch it, and give the folder.",
        )
    raise ConfigError(
        f"The model zoo is neither a folder nor a .py file: {zoo}.",
        received={"model_zoo": model_zoo},
        hint="Give the folder that holds the model files, one model file, or a Git URL.",
    )


def import_root(zoo: Path) -> Path:
    """The folder to which the names of a zoo's files are relative."""
    return zoo if zoo.is_dir() else zoo.parent


def file_groups(zoo: Path, model_def: str) -> list[FileGroup]:
    """The groups of files that may define a model, in the order in which they are searched.

    `a.b` means the model in file `a/b.py`, else the one in the files of folder `a/b/`, else `b` in
    file `a.py`, else `b` in the files of folder `a/`. If the zoo is one file `a.py`, `b` also means
    `b` in that file, and an empty name means its only model.

    Raises:
        ConfigError: The name is not made of Python names joined by dots.
        UserCodeError: The zoo has nothing of that name, or a file in question is not Python.
    """
    if zoo.is_file() and not model_def:
        return [FileGroup((zoo,), None)]
    parts = model_def.split(".")
    if not all(part.isidentifier() for part in parts):
        raise ConfigError(
            "model_def must be names joined by dots: file, folder.file or file.Symbol.",
            received={"model_def": model_def},
            hint=did_you_mean(model_def, list_definitions(zoo)),
        )
    groups = [FileGroup(files, None) for files in _file_groups(zoo, parts)]
    groups += [FileGroup(files, parts[-1]) for files in files_defining(zoo, model_def)]
    if not groups:
        raise _unknown_model(zoo, model_def)
    return groups


def files_defining(zoo: Path, name: str) -> list[tuple[Path, ...]]:
    """The files that define a dotted name; a group holds the files of one folder.

    Raises:
        UserCodeError: A file in question is not Python.
    """
    *parts, symbol = name.split(".")
    candidates = list(_file_groups(zoo, parts)) if parts else []
    if zoo.is_file() and not parts:
        candidates = [(zoo,)]
    groups = (
        tuple(file for file in files if _defines(file, symbol, is_alone=len(files) == 1))
        for files in candidates
    )
    return [group for group in groups if group]


def list_definitions(zoo: Path) -> list[str]:
    """The `model_def` of each model in a zoo, as far as parsing the files shows.

    Models are complete specs, classes of Keras or PyTorch with a loss of their own or in the same
    file, and functions named `custom_model`.
    """
    classes, functions = _definitions(zoo)
    models = [kind for kind in chain.from_iterable(classes.values()) if _is_model(kind, classes)]
    return sorted([*functions, *(kind.model_def for kind in models)])


def list_parameters(zoo: Path, model_def: str) -> frozenset[str] | None:
    """The parameters that the methods of a spec declare, as far as parsing the files shows.

    They include names that a user may not set, such as `dataset`, and all names that a user may.
    None where the files do not tell: the name does not mean one class, a method takes any name, or
    a class extends classes from outside the zoo.
    """
    classes, _ = _definitions(zoo)
    lineage = _lineage_of(model_def, classes)
    if not lineage:
        return None
    outside = {base for model_class in lineage for base in model_class.bases} - classes.keys()
    parameters = [model_class.parameters for model_class in lineage]
    if outside - {ElasticDLSpec.__name__} or None in parameters:
        return None
    return frozenset[str]().union(*(names for names in parameters if names is not None))


def list_bases(zoo: Path, model_def: str) -> frozenset[str]:
    """The names of all classes that a model extends, as far as parsing the files shows."""
    classes, _ = _definitions(zoo)
    lineage = _lineage_of(model_def, classes)
    return frozenset(base for model_class in lineage for base in model_class.bases)


def imported_names(file: Path, *, in_functions: bool) -> list[str]:
    """The dotted names that a file imports; none where it is not Python.

    Args:
        file: A Python file.
        in_functions: Whether imports inside functions count.
    """
    names: list[str] = []
    pending: list[ast.AST] = []
    with contextlib.suppress(UserCodeError):
        pending.append(_parsed(file))
    while pending:
        node = pending.pop()
        match node:
            case ast.Import():
                names += [alias.name for alias in node.names]
            case ast.ImportFrom(level=0, module=str(module)):
                names += [module, *(f"{module}.{alias.name}" for alias in node.names)]
        if in_functions or not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            pending += ast.iter_child_nodes(node)
    return names


def list_functions(file: Path) -> list[str]:
    """The functions that a file defines at its top level.

    Raises:
        UserCodeError: The file is not Python.
    """
    return [node.name for node in _parsed(file).body if isinstance(node, ast.FunctionDef)]


@dataclass(frozen=True)
class _Class:
    """A class of a zoo, as parsing its file shows it."""

    model_def: str
    bases: frozenset[str]
    methods: frozenset[str]
    """All names that the body of the class binds."""
    parameters: frozenset[str] | None
    """What its methods declare; None where one takes any name."""
    has_loss: bool
    """Whether the file of the class has a function `loss`."""


def _definitions(zoo: Path) -> tuple[dict[str, list[_Class]], list[str]]:
    """All classes of a zoo by their names, and the `model_def` of each function that is a model."""
    classes: dict[str, list[_Class]] = {}
    functions = []
    for file, tree in _python_files(zoo):
        module = ".".join(file.relative_to(import_root(zoo)).with_suffix("").parts)
        defined = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        if _MODEL_FUNCTION in defined:
            functions.append(f"{module}.{_MODEL_FUNCTION}")
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                has_loss = "loss" in defined and _MODEL_FUNCTION not in defined
                classes.setdefault(node.name, []).append(_class_of(node, module, has_loss))
    return classes, functions


def _class_of(node: ast.ClassDef, module: str, has_loss: bool) -> _Class:
    bases = (base.attr if isinstance(base, ast.Attribute) else base for base in node.bases)
    return _Class(
        model_def=f"{module}.{node.name}",
        bases=frozenset(base.id if isinstance(base, ast.Name) else str(base) for base in bases),
        methods=frozenset(name for statement in node.body for name in _bound_names(statement)),
        parameters=_parameters_of(node),
        has_loss=has_loss,
    )


def _parameters_of(node: ast.ClassDef) -> frozenset[str] | None:
    # A job calls only the methods of a spec; the spec itself calls all its other methods.
    signatures = [
        statement.args
        for statement in node.body
        if isinstance(statement, ast.FunctionDef) and hasattr(ElasticDLSpec, statement.name)
    ]
    if any(signature.kwarg for signature in signatures):
        return None
    arguments = (a for s in signatures for a in (*s.posonlyargs, *s.args, *s.kwonlyargs))
    return frozenset(argument.arg for argument in arguments) - {"self"}


def _lineage(model_class: _Class, classes: dict[str, list[_Class]]) -> set[_Class]:
    """A class and all classes of the zoo that it inherits from."""
    lineage, pending = {model_class}, [model_class]
    while pending:
        bases = {base for name in pending.pop().bases for base in classes.get(name, [])}
        pending += bases - lineage
        lineage |= bases
    return lineage


def _lineage_of(model_def: str, classes: dict[str, list[_Class]]) -> set[_Class]:
    """The lineage of the one model class that a name means; empty where it does not mean one."""
    models = [
        kind
        for kind in chain.from_iterable(classes.values())
        if f"{kind.model_def}.".startswith(f"{model_def}.") and _is_model(kind, classes)
    ]
    return _lineage(models[0], classes) if len(models) == 1 else set()


def _is_model(model_class: _Class, classes: dict[str, list[_Class]]) -> bool:
    """Whether a class is a complete model, including what it inherits."""
    lineage = _lineage(model_class, classes)
    bound_names = {method for relative in lineage for method in relative.methods}
    base_names = {base for relative in lineage for base in relative.bases}
    if ElasticDLSpec.__name__ in base_names:
        return ElasticDLSpec.__abstractmethods__ <= bound_names
    has_loss = model_class.has_loss or not bound_names.isdisjoint(
        {"default_loss", "loss", "training_step"}
    )
    return bool(base_names & _MODEL_BASES) and has_loss


def _unknown_model(zoo: Path, model_def: str) -> UserCodeError:
    names = list_definitions(zoo)
    short = {name.rpartition(".")[0] for name in names} | {name.split(".")[0] for name in names}
    symbols = {name.rpartition(".")[2]: name for name in names}
    near = did_you_mean(model_def, [*names, *sorted(short)])
    near = near or did_you_mean(model_def.rpartition(".")[2], symbols, instead=symbols)
    shown = ", ".join(names[:20]) if names else "no model"
    more = ", ..." if len(names) > 20 else ""
    return UserCodeError(
        f"The model zoo {zoo} does not define {model_def!r}.",
        received={"model_def": model_def},
        hint=f"It defines: {shown}{more}.{near}",
    )


def _file_groups(zoo: Path, parts: list[str]) -> Iterator[tuple[Path, ...]]:
    """The groups of files that a dotted name means: a file, then the files of a folder."""
    path = import_root(zoo).joinpath(*parts)
    file = path.with_name(f"{path.name}.py")
    if zoo.is_file():
        if file == zoo:
            yield (zoo,)
        return
    if file.is_file():
        yield (file,)
    if path.is_dir() and (files := tuple(sorted(path.glob("*.py")))):
        yield files


def _python_files(zoo: Path) -> Iterator[tuple[Path, ast.Module]]:
    """The Python files of a zoo; files with syntax errors are skipped."""
    for file in [zoo] if zoo.is_file() else _walk(zoo):
        with contextlib.suppress(UserCodeError):
            yield file, _parsed(file)


def _walk(zoo: Path) -> Iterator[Path]:
    for folder, folders, files in os.walk(zoo):
        folders[:] = sorted(f for f in folders if not f.startswith(".") and f != "__pycache__")
        yield from (Path(folder, name) for name in sorted(files) if name.endswith(".py"))


def _parsed(file: Path) -> ast.Module:
    try:
        return ast.parse(file.read_bytes(), filename=str(file))
    except SyntaxError as e:
        raise UserCodeError(f"{file}:{e.lineno} is not Python: {e.msg}.") from e
    except (OSError, ValueError) as e:
        raise UserCodeError(f"{file} cannot be read: {e}.") from e


def _defines(file: Path, symbol: str, *, is_alone: bool) -> bool:
    """Whether a file binds a name at its top level; in a group an import does not count."""
    pending: list[ast.stmt] = list(_parsed(file).body)
    while pending:
        node = pending.pop()
        bound = _bound_names(node)
        if isinstance(node, ast.ImportFrom) and (is_alone or file.name == "__init__.py"):
            bound = {alias.asname or alias.name for alias in node.names}
        elif not isinstance(node, ast.ClassDef | ast.FunctionDef):
            pending += [child for child in ast.walk(node) if isinstance(child, ast.stmt)][1:]
        if bound & {symbol, "*"}:
            return True
    return False


def _bound_names(node: ast.stmt) -> set[str]:
    match node:
        case ast.ClassDef(name=name) | ast.FunctionDef(name=name):
            return {name}
        case ast.Assign(targets=targets):
            return {target.id for target in targets if isinstance(target, ast.Name)}
        case ast.AnnAssign(target=ast.Name(id=name), value=value) if value is not None:
            return {name}
    return set()
