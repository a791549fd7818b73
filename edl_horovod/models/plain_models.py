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

    Its input, loss and optimizer are attributes of its class (`default_input`, `default_loss`,
    `default_optimizer`), else functions of its module in ElasticDL's style, else the user's
    settings.
    """

    framework: str
    """Its name."""
    kind: type
    """The base class of the framework's models."""
    make: Mapping[str, Callable[..., Any]]
    """By the keys of `METHODS`: a function that turns a part into the method of a spec.

    It takes the part's value and, by keyword, its `label`.
    """
    hints: Mapping[str, str]
    """By the names of required parts: where the framework's users write the part."""
    own_methods: Mapping[str, str] = field(default_factory=dict)
    """Methods of a model class that provide a part of its training, with that part's key."""

    def is_model(self, value: Any) -> bool:
        """Whether a value is such a class, or a function that may return a model."""
        return inspect.isfunction(value) or self._is_kind(value)

    def candidates(self, module: ModuleType) -> list[str]:
        """The symbols of a module that may be the model where the user does not name it.

        These are `custom_model`, else the model classes with parts of a training, else all model
        classes that the module defines.
        """
        if inspect.isfunction(vars(module).get(_MAKER)):
            return [_MAKER]
        model_classes = {
            name: value
            for name, value in vars(module).items()
            if self._is_kind(value) and value.__module__ == module.__name__
        }
        training_attributes = (*self.own_methods, *DEFAULTS.values())
        trainable = [
            name
            for name, value in model_classes.items()
            if any(hasattr(value, attribute) for attribute in training_attributes)
        ]
        return trainable or list(model_classes)

    def parts_of(self, value: Any, module: ModuleType, symbol: str, *, zoo: Path) -> Parts:
        """The parts of a model, with the model itself as the part `model`.

        Args:
            value: The class or function.
            module: The file where it was found.
            symbol: Its name in that file.
            zoo: Absolute path of the zoo.
        """
        defaults = {
            key: part_of(getattr(value, name), module, f"{symbol}.{name}", zoo=zoo)
            for key, name in DEFAULTS.items()
            if hasattr(value, name)
        }
        model = {"model": part_of(value, module, symbol, zoo=zoo)}
        return {**module_parts(module, zoo=zoo), **defaults, **model}

    def parts_in_methods(self, value: Any) -> set[str]:
        """The keys of the parts that a model class provides by methods."""
        return {part for method, part in self.own_methods.items() if hasattr(value, method)}

    def with_parts(self, base: type[ElasticDLSpec], parts: Parts) -> type[ElasticDLSpec]:
        """A subclass of a spec class, with methods made of the parts."""
        methods: dict[str, Any] = {
            METHODS[key]: staticmethod(self.make[key](part.value, label=part.label))
            for key, part in parts.items()
        }
        if "input_fn" in parts:
            methods["parses_batches"] = getattr(parts["input_fn"].value, "parses_batches", False)
        name, module = base.__name__, base.__module__
        if "model" in parts:
            model: Part = parts["model"]
            name, module = model.full_name.rpartition(".")[2], str(model.value.__module__)
        methods |= {"__module__": module}
        spec_class = types.new_class(
            name, (base,), exec_body=lambda namespace: namespace.update(methods)
        )
        return cast(type[ElasticDLSpec], spec_class)

    def _is_kind(self, value: Any) -> bool:
        return inspect.isclass(value) and issubclass(value, self.kind)
