"""Import the files of a model zoo once each, with their siblings and apart from other zoos."""

import hashlib
import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from edl_horovod.errors import UserCodeError
from edl_horovod.models import elasticdl_imports
from edl_horovod.models.calling import user_code
from edl_horovod.models.lookup import file_groups, import_root, require_zoo

__all__ = [
    "PACKAGE",
    "load_module",
    "loaded_files",
    "make_importable",
    "zoo_in_use",
    "load_function",
]

_PREFIX = "_edl_zoo_"
_IMPORTS_ATTRIBUTE = "__edl_zoo__"
PACKAGE = "model_zoo"
"""The package name through which files of ElasticDL's own zoo import each other."""


@dataclass
class _ZooImports:
    """The import state of a zoo; each of its modules has it as `_IMPORTS_ATTRIBUTE`."""

    root: Path
    added_paths: list[str]
    """Entries of `sys.path` that were added for this zoo."""
    foreign: frozenset[str]
    """Modules in the zoo's folder that were loaded before, such as our own package."""
    is_replaced: bool = False
    """Whether another zoo came into use since."""


def load_module(file: Path, *, zoo: Path) -> ModuleType:
    """Run a file of a zoo; a file that has been run before is not run again.

    The folders of the zoo and of the file come first on `sys.path`, so that the file can import its
    siblings at any time, also as `model_zoo.folder.file`. Modules of a zoo that was loaded before
    are removed. A zoo that is one file has no siblings, because other files beside it would not be
    copied into the trained model. Both paths are absolute.

    Raises:
        UserCodeError: The file raised an exception; the error names the line.
    """
    imports = _start_imports(zoo, file.parent)
    for module in list(sys.modules.values()):
        if _file_of(module) == str(file):
            return module
    digest = hashlib.sha256(str(zoo).encode()).hexdigest()[:8]
    dotted = ".".join(file.relative_to(import_root(zoo)).with_suffix("").parts)
    name = f"{_PREFIX}{digest}_{dotted.replace('.', '_')}"
    with user_code(f"Loading the model file {file}", root=zoo):
        return _run_file(name, file, imports)


def loaded_files(zoo: Path) -> list[Path]:
    """The files of a zoo, an absolute path, that this process has run as modules; sorted."""
    return sorted({Path(str(vars(sys.modules[name])["__file__"])) for name in _names_inside(zoo)})


def make_importable(zoo: Path) -> None:
    """Let the files of a zoo, an absolute path, be imported by their plain names."""
    _start_imports(zoo, zoo)


def zoo_in_use() -> Path | None:
    """The zoo whose files can be imported by their plain names; None for no zoo."""
    for module in list(sys.modules.values()):
        imports = vars(module).get(_IMPORTS_ATTRIBUTE)
        if imports is not None and not imports.is_replaced:
            return Path(imports.root)
    return None


def load_function(model_zoo: str, model_def: str, name: str) -> Callable[..., Any]:
    """Return a function of the file that a `model_def` means; the file need not hold a spec.

    Raises:
        ConfigError: The zoo does not exist.
        UserCodeError: The file or the function does not exist, or the file raised an exception.
    """
    zoo = require_zoo(model_zoo)
    files: list[Path] = []
    for group in file_groups(zoo, model_def):
        modules = [load_module(file, zoo=zoo) for file in group.files]
        modules_by_function: dict[Callable[..., Any], ModuleType] = {
            vars(module)[name]: module for module in modules if name in vars(module)
        }
        if len(modules_by_function) > 1:
            listed = ", ".join(
                sorted(str(module.__file__) for module in modules_by_function.values())
            )
            raise UserCodeError(
                f"{model_def!r} may mean {len(modules_by_function)} files with {name!r}: {listed}.",
                received={"model_def": model_def},
                hint="Write folder.file to name one.",
            )
        for function in modules_by_function:
            return function
        files += group.files
    raise UserCodeError(
        f"{', '.join(map(str, files))} has no function {name!r}.",
        received={"model_def": model_def},
        hint="Write it there, at the top level.",
    )


def _run_file(name: str, file: Path, imports: _ZooImports) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    vars(module)[_IMPORTS_ATTRIBUTE] = imports
    # A sibling that imports this file by its plain name must get this module.
    names = [
        name,
        *(alias for alias in _plain_names(file, imports.root) if alias not in sys.modules),
    ]
    sys.modules.update(dict.fromkeys(names, module))
    try:
        spec.loader.exec_module(module)
    except BaseException:
        for alias in names:
            sys.modules.pop(alias, None)
        raise
    return module


def _plain_names(file: Path, zoo: Path) -> list[str]:
    """The names under which siblings import a file."""
    if zoo == file:
        return []
    dotted = ".".join(file.relative_to(zoo).with_suffix("").parts)
    is_hidden_by_folder = zoo.joinpath(file.stem).is_dir()
    return [dotted] if is_hidden_by_folder else [dotted, file.stem]


def _start_imports(zoo: Path, folder: Path) -> _ZooImports:
    """Make the files of this zoo, and of no other one, importable by plain names."""
    current = None
    for module in list(sys.modules.values()):
        imports = vars(module).get(_IMPORTS_ATTRIBUTE)
        if imports is not None and imports.root == zoo:
            current = imports
        elif imports is not None and not imports.is_replaced:
            _stop_imports(imports)
    if current is None:
        current = _ZooImports(zoo, added_paths=[], foreign=frozenset(_names_inside(zoo)))
        elasticdl_imports.install()
    current.is_replaced = False
    for path in (str(zoo), str(folder)) if zoo.is_dir() else ():
        if path not in sys.path:
            sys.path.insert(0, path)
            current.added_paths.append(path)
    if zoo.is_dir() and PACKAGE not in sys.modules:
        package = ModuleType(PACKAGE)
        package.__path__ = [str(zoo)]
        vars(package)[_IMPORTS_ATTRIBUTE] = current
        sys.modules[PACKAGE] = package
    importlib.invalidate_caches()
    return current


def _stop_imports(imports: _ZooImports) -> None:
    for name in _names_inside(imports.root):
        if name not in imports.foreign and not name.startswith(_PREFIX):
            del sys.modules[name]
    package = sys.modules.get(PACKAGE)
    if package is not None and vars(package).get(_IMPORTS_ATTRIBUTE) is imports:
        del sys.modules[PACKAGE]
    for path in imports.added_paths:
        if path in sys.path:
            sys.path.remove(path)
    imports.added_paths.clear()
    imports.is_replaced = True


def _names_inside(zoo: Path) -> list[str]:
    """Modules that were loaded from a folder, except from an environment inside it."""
    inside = []
    for name, module in list(sys.modules.items()):
        file = _file_of(module)
        # Compare texts first: there are thousands of modules, and parsing paths is slow.
        if file is None or zoo.name not in file or "site-packages" in file:
            continue
        if Path(file).is_relative_to(zoo):
            inside.append(name)
    return inside


def _file_of(module: ModuleType) -> str | None:
    # Not getattr, which would trigger modules that load lazily.
    file: str | None = vars(module).get("__file__")
    return file
