"""Import the files of a model zoo once each, with their siblings and apart from other zoos."""

import hashlib
import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from edl_horovod.models import elasticdl_imports
from edl_horovod.models.calling import user_code
from edl_horovod.models.lookup import import_root

__all__ = ["PACKAGE", "load_module", "loaded_files", "make_importable", "zoo_in_use"]

_PREFIX = "_edl_zoo_"
_MARK = "__edl_zoo__"
PACKAGE = "model_zoo"
"""The package name through which files of ElasticDL's own zoo import each other."""


@dataclass
class _Entered:
    """A zoo whose files are imported by plain names; its modules refer to it in `_MARK`."""

    root: Path
    added_paths: list[str]
    """Entries of `sys.path` that were added for this zoo."""
    foreign: frozenset[str]
    """Modules in the zoo's folder that were loaded before, such as our own package."""
    is_left: bool = False
    """Whether another zoo has been entered since."""


def load_module(file: Path, *, zoo: Path) -> ModuleType:
    """Run a file of a zoo; a file that has been run before is not run again.

    The folders of the zoo and of the file come first on `sys.path`, so that the file can import its
    siblings at any time, also as `model_zoo.folder.file`. Modules of a zoo that was loaded before
    are removed. A zoo that is one file has no siblings, because other files beside it would not be
    copied into the trained model. Both paths are absolute.

    Raises:
        UserCodeError: The file raised an exception; the error names the line.
    """
    entered = _enter(zoo, file.parent)
    for module in list(sys.modules.values()):
        if _file_of(module) == str(file):
            return module
    digest = hashlib.sha256(str(zoo).encode()).hexdigest()[:8]
    dotted = ".".join(file.relative_to(import_root(zoo)).with_suffix("").parts)
    name = f"{_PREFIX}{digest}_{dotted.replace('.', '_')}"
    with user_code(f"Loading the model file {file}", root=zoo):
        return _run(name, file, entered)


def loaded_files(zoo: Path) -> list[Path]:
    """The files of a zoo, an absolute path, that this process has run as modules; sorted."""
    return sorted({Path(str(vars(sys.modules[name])["__file__"])) for name in _names_inside(zoo)})


def make_importable(zoo: Path) -> None:
    """Let the files of a zoo, an absolute path, be imported by their plain names."""
    _enter(zoo, zoo)


def zoo_in_use() -> Path | None:
    """The zoo whose files can be imported by their plain names; None where there is none."""
    for module in list(sys.modules.values()):
        entered = vars(module).get(_MARK)
        if entered is not None and not entered.is_left:
            return Path(entered.root)
    return None


def _run(name: str, file: Path, entered: _Entered) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    vars(module)[_MARK] = entered
    # A sibling that imports this file by its plain name must get this module.
    names = [name, *(own for own in _own_names(file, entered.root) if own not in sys.modules)]
    sys.modules.update(dict.fromkeys(names, module))
    try:
        spec.loader.exec_module(module)
    except BaseException:
        for own in names:
            sys.modules.pop(own, None)
        raise
    return module


def _own_names(file: Path, zoo: Path) -> list[str]:
    """The names under which siblings import a file."""
    if zoo == file:
        return []
    dotted = ".".join(file.relative_to(zoo).with_suffix("").parts)
    is_hidden_by_folder = zoo.joinpath(file.stem).is_dir()
    return [dotted] if is_hidden_by_folder else [dotted, file.stem]


def _enter(zoo: Path, folder: Path) -> _Entered:
    """Make the files of this zoo, and of no other one, importable by plain names."""
    entered = None
    for module in list(sys.modules.values()):
        one = vars(module).get(_MARK)
        if one is not None and one.root == zoo:
            entered = one
        elif one is not None and not one.is_left:
            _leave(one)
    if entered is None:
        entered = _Entered(zoo, added_paths=[], foreign=frozenset(_names_inside(zoo)))
        elasticdl_imports.install()
    entered.is_left = False
    for path in (str(zoo), str(folder)) if zoo.is_dir() else ():
        if path not in sys.path:
            sys.path.insert(0, path)
            entered.added_paths.append(path)
    if zoo.is_dir() and PACKAGE not in sys.modules:
        package = ModuleType(PACKAGE)
        package.__path__ = [str(zoo)]
        vars(package)[_MARK] = entered
        sys.modules[PACKAGE] = package
    importlib.invalidate_caches()
    return entered


def _leave(entered: _Entered) -> None:
    for name in _names_inside(entered.root):
        if name not in entered.foreign and not name.startswith(_PREFIX):
            del sys.modules[name]
    package = sys.modules.get(PACKAGE)
    if package is not None and vars(package).get(_MARK) is entered:
        del sys.modules[PACKAGE]
    for path in entered.added_paths:
        if path in sys.path:
            sys.path.remove(path)
    entered.added_paths.clear()
    entered.is_left = True


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
