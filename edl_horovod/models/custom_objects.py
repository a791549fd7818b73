"""Import what a model's files name and do not hold, from Python files that may be imported."""

import hashlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from edl_horovod.errors import UserCodeError, did_you_mean
from edl_horovod.models.calling import user_code
from edl_horovod.models.file_model import CustomObject, FileModel
from edl_horovod.models.lookup import import_root
from edl_horovod.models.modules import load_module, zoo_in_use

__all__ = ["imported", "load_custom_objects", "may_import"]

_PREFIX = "_edl_custom_"


def may_import(path: Path, *, is_trusted: bool) -> bool:
    """Whether a Python file that a spec names may run: a trusted one, or one of the zoo in use."""
    zoo = zoo_in_use()
    return is_trusted or (zoo is not None and path.resolve().is_relative_to(import_root(zoo)))


def load_custom_objects(model: FileModel) -> dict[str, Any]:
    """The classes and functions that a model's spec brings, by the names in its files.

    Raises:
        UserCodeError: A file may not be imported, is not there, raises, or lacks a name.
    """
    return {each.key: imported(each, is_trusted=model.is_trusted) for each in model.custom_objects}


def imported(wanted: CustomObject, *, is_trusted: bool) -> Any:
    """What a Python file defines under a name.

    Raises:
        UserCodeError: The file may not be imported, is not there, raises, or lacks the name.
    """
    path = wanted.path.resolve()
    if not path.is_file() or path.suffix != ".py":
        raise UserCodeError(
            f"{wanted.key!r} is to come from {path}, which is no Python file that is there.",
            hint="Give the path of a .py file.",
        )
    if not may_import(path, is_trusted=is_trusted):
        raise UserCodeError(
            f"{wanted.key!r} is to come from {path}, whose code would run here.",
            hint="Put the file into the model zoo, or set trust=model.",
        )
    names = vars(_module(path))
    if wanted.value not in names:
        own = [name for name in names if not name.startswith("_")]
        raise UserCodeError(
            f"{path} does not define {wanted.value!r}.",
            received={"key": wanted.key, "value": wanted.value},
            hint=f"It defines: {', '.join(own) or 'nothing'}.{did_you_mean(wanted.value, own)}",
        )
    return names[wanted.value]


def _module(path: Path) -> ModuleType:
    zoo = zoo_in_use()
    if zoo is not None and path.is_relative_to(zoo):
        return load_module(path, zoo=zoo)
    # Not by load_module: the files of the zoo in use could no longer be imported.
    name = f"{_PREFIX}{hashlib.sha256(str(path).encode()).hexdigest()[:16]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        with user_code(f"Loading {path}", root=path.parent):
            spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
