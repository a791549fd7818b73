"""Classes and functions of a Python file that a model spec names."""

import hashlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from edl_horovod.errors import UserCodeError, did_you_mean
from edl_horovod.models.calling import user_code

__all__ = ["symbol_of"]


def symbol_of(file: Path, symbol: str, *, key: str) -> Any:
    """What a file defines under a name; a file that has been run before is not run again.

    Args:
        file: A Python file whose code may run.
        symbol: The name.
        key: The key of the spec that names it, for messages.

    Raises:
        UserCodeError: The file is not there, raised something, or does not define the name.
    """
    names = vars(_module_of(file))
    if symbol not in names:
        own = [name for name, value in names.items() if callable(value)]
        raise UserCodeError(
            f"{file} does not define {symbol!r}.",
            received={f"model.spec.{key}": symbol},
            cure=f"It defines {', '.join(own) or 'nothing'}.{did_you_mean(symbol, own)}",
        )
    return names[symbol]


def _module_of(file: Path) -> ModuleType:
    digest = hashlib.sha256(str(file.resolve()).encode()).hexdigest()[:12]
    name = f"_edl_file_{digest}_{file.stem}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None or not file.is_file():
        raise UserCodeError(
            f"{file} is not a Python file.", cure="Give the path of one that ends in .py."
        )
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        with user_code(f"Loading {file}", root=file.parent):
            spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(name, None)
        raise
    return module
