"""Load single functions of a model zoo, such as `prepare_data_for_a_single_file`, without Keras."""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from edl_horovod.errors import UserCodeError
from edl_horovod.models.lookup import file_groups, require_zoo
from edl_horovod.models.modules import load_module

__all__ = ["load_function"]


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
