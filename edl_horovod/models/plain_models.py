"""Models without a spec: a class of a framework's models, or a function that returns one."""

import inspect
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from edl_horovod.models.elasticdl_module import module_parts
from edl_horovod.models.parts import DEFAULTS, METHODS, Part, Parts, part_of
from edl_horovod.spec import ElasticDLSpec

__all__ = ["PlainModels"]

_MAKER = "custom_model"


@dataclass(frozen=True)
class PlainModels:
    """A framework's models that are written without a spec.

    What belongs to one are attributes of its class (`default_input`, `default_loss`,
    `default_optimizer`), else functions of its module in ElasticDL's style, else the user's
    settings.
    """

    framework: str
    """Its name."""
    kind: type
    """The base class of the framework's models."""
    make: Mapping[str, Callable[..., Any]]
    """By the keys of `METHODS`: makes the method of a spec from a part's value and its `label`."""
    hints: Mapping[str, str]
    """By the names of parts that a model needs: where the framework's users write one."""
    own_methods: Mapping[str, str] = field(default_factory=dict)
    """Methods by which a class says that it is to be trained, and the part that each one is."""

    def is_model(self, value: Any) -> bool:
        """Whether a value is such a class, or a function that may return a model."""
        return inspect.isfunction(value) or self._is_kind(value)

    def makers(self, module: ModuleType) -> list[str]:
        """The symbols of a module that may be the model where the user names none, best ones only.

        `custom_model`, else the classes that bring parts of a training, else all classes of models
        that the module defines.
        """
        if inspect.isfunction(vars(module).get(_MAKER)):
            return [_MAKER]
        own = {
            name: value
            for name, value in vars(module).items()
            if self._is_kind(value) and value.__module__ == module.__name__
        }
        signs = (*self.own_methods, *DEFAULTS.values())
        best = [name for name, value in own.items() if any(hasattr(value, sign) for sign in signs)]
        return best or list(own)

    def parts_of(self, value: Any, module: ModuleType, symbol: str, *, zoo: Path) -> Parts:
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

    def own_parts(self, value: Any) -> set[str]:
        """The parts that a class brings as methods."""
        return {part for method, part in self.own_methods.items() if hasattr(value, method)}

    def with_parts(self, kind: type[ElasticDLSpec], parts: Parts) -> type[ElasticDLSpec]:
        """A spec class whose methods are made of parts, the rest as it was."""
        methods: dict[str, Any] = {
            METHODS[key]: staticmethod(self.make[key](part.value, label=part.label))
            for key, part in parts.items()
        }
        if "input_fn" in parts:
            methods["parses_batches"] = getattr(parts["input_fn"].value, "parses_batches", False)
        name, module = kind.__name__, kind.__module__
        if "model" in parts:
            model: Part = parts["model"]
            name, module = model.full_name.rpartition(".")[2], str(model.value.__module__)
        methods |= {"__module__": module}
        made = types.new_class(name, (kind,), exec_body=lambda namespace: namespace.update(methods))
        return cast(type[ElasticDLSpec], made)

    def _is_kind(self, value: Any) -> bool:
        return inspect.isclass(value) and issubclass(value, self.kind)
