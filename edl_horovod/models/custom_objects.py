"""Import the custom classes and functions that a model's files refer to, if they may run."""

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

__all__ = ["import_object", "load_custom_objects", "may_import"]

_PREFIX = "_edl_custom_"


def may_import(path: Path, *, is_trusted: bool) -> bool:
    """Whether a Python file that a spec names may run: a trusted one, or one of the zoo in use."""
    zoo = zoo_in_use()
    return is_trusted or (zoo is not None and path.resolve().is_relative_to(import_root(zoo)))


def load_custom_objects(model: FileModel) -> dict[str, Any]:
    """The classes and functions that a model spec lists, by the names in the model's files.

    Raises:
        UserCodeError: A file may not be imported, does not exist, raises, or lacks a name.
    """
    return {
        custom_object.key: import_object(custom_object, is_trusted=model.is_trusted)
        for custom_object in model.custom_objects
    }


def import_object(custom_object: CustomObject, *, is_trusted: bool) -> Any:
    """Import a class or function from the Python file that a model spec names.

    Raises:
        UserCodeError: The file may not be imported, does not exist, raises, or lacks the name.
    """
    path = custom_object.path.resolve()
    if not path.is_file() or path.suffix != ".py":
        raise UserCodeError(
            f"{custom_object.key!r} is to come from {path}, which is not an existing Python file.",
            hint="Give the path of a .py file.",
        )
    if not may_import(path, is_trusted=is_trusted):
        raise UserCodeError(
            f"{custom_object.key!r} is to come from {path}, whose code would run here.",
            hint="Put the file into the model zoo, or set trust=model.",
        )
    names = vars(_module(path))
    if custom_object.value not in names:
        public_names = [name for name in names if not name.startswith("_")]
        raise UserCodeError(
            f"{path} does not define {custom_object.value!r}.",
            received={"key": custom_object.key, "value": custom_object.value},
            hint=f"It defines: {', '.join(public_names) or 'nothing'}."
            f"{did_you_mean(custom_object.value, public_names)}",
        )
    return names[custom_object.value]


def _module(path: Path) -> ModuleType:
    zoo = zoo_in_use()
    if zoo is not None and path.is_relative_to(zoo):
        return load_module(path, zoo=zoo)
    # `load_module` would make this folder the zoo in use, whose files must stay importable.
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
