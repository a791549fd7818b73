"""PyTorch models without a spec: an `nn.Module` subclass, or a function that returns a module.

Loss, metrics and optimizer are methods of the class (`loss`, `metrics`, `configure_optimizers`),
else functions of its module in ElasticDL's style, else the user's settings. The input is the class'
attribute `default_input`, a function of its module, or a setting.
"""

import inspect
import types
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from torch import nn

from edl_horovod.frameworks.torch import parts as torch_parts
from edl_horovod.models.elasticdl_module import module_parts
from edl_horovod.models.parts import DEFAULTS, METHODS, Part, Parts, part_of
from edl_horovod.spec import ElasticDLSpec

__all__ = ["framework", "is_model", "makers", "parts_of", "with_parts"]

framework = "torch"

_MAKER = "custom_model"
_OWN = ("loss", "configure_optimizers")
"""Methods by which a class says that it is to be trained."""
_MAKE = {
    "model": torch_parts.model_part,
    "input_fn": torch_parts.dataset_part,
    "loss": torch_parts.loss_part,
    "optimizer": torch_parts.optimizer_part,
    "metrics": torch_parts.metrics_part,
    "callbacks": torch_parts.callbacks_part,
}


def is_model(value: Any) -> bool:
    """Whether a value is a class of modules, or a function that may return a module."""
    return inspect.isfunction(value) or (inspect.isclass(value) and issubclass(value, nn.Module))


def makers(module: ModuleType) -> list[str]:
    """The symbols of a module that may be the model where the user names none, best ones only.

    `custom_model`, else the classes that bring a loss or an optimizer, else all classes of modules
    that the file defines.
    """
    if inspect.isfunction(vars(module).get(_MAKER)):
        return [_MAKER]
    own = {
        name: value
        for name, value in vars(module).items()
        if inspect.isclass(value)
        and issubclass(value, nn.Module)
        and value.__module__ == module.__name__
    }
    with_own = [
        name
        for name, value in own.items()
        if any(hasattr(value, each) for each in (*_OWN, *DEFAULTS.values()))
    ]
    return with_own or list(own)


def parts_of(value: Any, module: ModuleType, symbol: str, *, zoo: Path) -> Parts:
    """A model and the parts that belong to it; see `models.parts.PlainModels`."""
    defaults = {
        key: part_of(getattr(value, name), module, f"{symbol}.{name}", zoo=zoo)
        for key, name in DEFAULTS.items()
        if hasattr(value, name)
    }
    model = {"model": part_of(value, module, symbol, zoo=zoo)}
    return {**module_parts(module, zoo=zoo), **defaults, **model}


def with_parts(kind: type[ElasticDLSpec], parts: Parts) -> type[ElasticDLSpec]:
    """A spec class whose methods are made of parts, the rest as it was."""
    methods: dict[str, Any] = {
        METHODS[key]: staticmethod(_MAKE[key](part.value, label=part.label))
        for key, part in parts.items()
    }
    name, module = kind.__name__, kind.__module__
    if "model" in parts:
        model: Part = parts["model"]
        name, module = model.full_name.rpartition(".")[2], str(model.value.__module__)
    methods |= {"__module__": module}
    made = types.new_class(name, (kind,), exec_body=lambda namespace: namespace.update(methods))
    return cast(type[ElasticDLSpec], made)
