"""Writes a model of a zoo as the files of a model spec."""

import inspect
import shutil
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from edl_horovod.errors import UserCodeError
from edl_horovod.frameworks.torch.pt_files import unsafe_globals
from edl_horovod.frameworks.torch.pt_inspection import inspect_pt
from edl_horovod.models.calling import call_declared, user_code
from edl_horovod.models.file_model import WrittenModel
from edl_horovod.models.lookup import import_root
from edl_horovod.models.modules import loaded_files
from edl_horovod.models.zoo import LoadedSpec

__all__ = ["write"]

_FILE = "model.pt"
_PLAIN = (bool, int, float, type(None))


def write(loaded: LoadedSpec, folder: Path) -> WrittenModel:
    """Write the whole module, and the files of the zoo that define its classes.

    Raises:
        UserCodeError: The module cannot be created or saved, or a class is not defined in a file.
    """
    doing = f"Creating and saving the model of {loaded.label}"
    with user_code(doing, root=loaded.zoo):
        module = call_declared(loaded.spec.create_model, {})
        if not isinstance(module, nn.Module) or any(map(is_lazy, module.parameters())):
            raise UserCodeError(
                f"create_model of {loaded.label} must return a module whose parameters have known"
                " shapes.",
                received=type(module).__name__,
                hint="Replace lazy layers by layers with sizes.",
            )
        torch.save(module, folder / _FILE)
    spec: dict[str, Any] = {"model_definition": _FILE}
    if global_names := unsafe_globals(inspect_pt(folder / _FILE)):
        files = {name: _file_of(name, loaded) for name in global_names}
        code = loaded_files(loaded.zoo)
        if len({file.name for file in code}) < len(code):
            raise UserCodeError(
                f"The model of {loaded.label} imports files of the zoo that have the same name, but"
                " all files of a model spec are in one folder.",
                received=", ".join(map(str, code)),
                hint="Rename them so that their names differ.",
            )
        for file in code:
            shutil.copyfile(file, folder / file.name)
        spec["custom_objects"] = [
            {
                "key": _key_of(name, global_names),
                "value": name.rpartition(".")[2],
                "path": file.name,
            }
            for name, file in files.items()
        ]
    left_out = []
    if loaded.overrides_method("create_optimizer"):
        optimizer = loaded.optimizer(None, model=module)
        option = _option_of(optimizer)
        spec |= {"optimizer": option} if option else {}
        left_out += (
            [] if option else ["the optimizer, which has groups or is not a class of PyTorch"]
        )
    if loaded.overrides_method("create_loss"):
        left_out.append("the loss, which is code: set loss=... to train the model")
    return WrittenModel(spec, tuple(left_out))


def _file_of(name: str, loaded: LoadedSpec) -> Path:
    """Return the file of the zoo that defines a global."""
    module = name.rpartition(".")[0]
    file = Path(str(vars(sys.modules[module]).get("__file__"))) if module in sys.modules else None
    if file is None or file.suffix != ".py" or not file.is_relative_to(import_root(loaded.zoo)):
        raise UserCodeError(
            f"The model of {loaded.label} contains {name}, which no file of the zoo defines,"
            " so a model spec cannot name it.",
            hint="Define it in a file of the zoo.",
        )
    return file


def _key_of(name: str, global_names: list[str]) -> str:
    """Return the last part of a global's name, or the whole name if that is ambiguous."""
    symbol = name.rpartition(".")[2]
    symbols = [other.rpartition(".")[2] for other in global_names]
    return symbol if symbols.count(symbol) == 1 else name


def _is_plain(value: Any) -> bool:
    parts = value if isinstance(value, tuple) else (value,)
    return all(isinstance(part, _PLAIN) for part in parts)


def _option_of(optimizer: Any) -> dict[str, Any] | None:
    """Return the setting for an optimizer; None if it has several groups or is not PyTorch's."""
    kind = type(optimizer)
    if getattr(torch.optim, kind.__name__, None) is not kind or len(optimizer.param_groups) != 1:
        return None
    parameters = inspect.signature(kind).parameters
    arguments = {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in optimizer.defaults.items()
        if key == "lr"
        or (key in parameters and value != parameters[key].default and _is_plain(value))
    }
    return {"name": f"optim.{kind.__name__}", "args": arguments}
