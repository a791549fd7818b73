"""Keras models without a spec: a `keras.Model` subclass, or a function that returns a model.

Their input, loss and optimizer are attributes of the class (`default_input`, `default_loss`,
`default_optimizer`), else functions of its module in ElasticDL's style, else the user's settings.
"""

import inspect
import types
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import keras

from edl_horovod.frameworks.keras import parts as keras_parts
from edl_horovod.models.elasticdl_module import module_parts
from edl_horovod.models.parts import DEFAULTS, METHODS, Part, Parts, part_of
from edl_horovod.spec import ElasticDLSpec

__all__ = ["framework", "is_model", "makers", "parts_of", "with_parts"]

framework = "keras"

_MAKER = "custom_model"
_MAKE = {
    "model": keras_parts.model_part,
    "input_fn": keras_parts.dataset_part,
    "loss": keras_parts.loss_part,
    "optimizer": keras_parts.optimizer_part,
    "metrics": keras_parts.metrics_part,
    "callbacks": keras_parts.callbacks_part,
}


def is_model(value: Any) -> bool:
    """Whether a value is a Keras class, or a function that may return a model."""
    return inspect.isfunction(value) or (inspect.isclass(value) and issubclass(value, keras.Model))


def makers(module: ModuleType) -> list[str]:
    """The symbols of a module that may be the model where the user names none, best ones only.

    `custom_model`, else the Keras classes that bring defaults, else all that the module defines.
    """
    if inspect.isfunction(vars(module).get(_MAKER)):
        return [_MAKER]
    own = {
        name: value
        for name, value in vars(module).items()
        if inspect.isclass(value)
        and issubclass(value, keras.Model)
        and value.__module__ == module.__name__
    }
    with_defaults = [
        name
        for name, value in own.items()
        if any(hasattr(value, default) for default in DEFAULTS.values())
    ]
    return with_defaults or list(own)


def parts_of(value: Any, module: ModuleType, symbol: str, *, zoo: Path) -> Parts:
    """A model and the parts that belong to it.

    Args:
        value: The class or function.
        module: The file where it was found.
        symbol: Its name there.
        zoo: Absolute path of the zoo.
    """
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
    if "input_fn" in parts:
        methods["parses_batches"] = getattr(parts["input_fn"].value, "parses_batches", False)
    name, module = kind.__name__, kind.__module__
    if "model" in parts:
        name, module = _names(parts["model"])
    methods |= {"__module__": module}
    made = types.new_class(name, (kind,), exec_body=lambda namespace: namespace.update(methods))
    return cast(type[ElasticDLSpec], made)


def _names(model: Part) -> tuple[str, str]:
    return model.full_name.rpartition(".")[2], str(model.value.__module__)
