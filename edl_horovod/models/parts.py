"""The parts of a model, and where they are found if the model has no spec.

A model without a spec is a class of a framework's models, or a function that returns one. Its parts
are attributes of the class, or functions of its module with ElasticDL's names. ElasticDL called its
functions by position, so their authors chose any names for the parameters: `loss(labels,
predictions)`, `loss(output, labels)`, `feed(dataset, mode, _)`; these become methods of a spec.
"""

import inspect
import re
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from edl_horovod.errors import ConfigError, UserCodeError
from edl_horovod.models.lookup import file_groups, import_root
from edl_horovod.spec import ElasticDLSpec

METHODS = {
    "model": "create_model",
    "input_fn": "create_dataset",
    "loss": "create_loss",
    "optimizer": "create_optimizer",
    "metrics": "create_metrics",
    "callbacks": "create_callbacks",
}
"""The method of a spec that each part becomes."""
DEFAULTS = {"input_fn": "default_input", "loss": "default_loss", "optimizer": "default_optimizer"}
"""The attribute of a Keras class that provides each part."""
REQUIRED = tuple(DEFAULTS)
"""Parts that every model needs; the user can set them by these names."""

_MODEL_FUNCTION = "custom_model"

OUTPUTS_PROCESSOR = "PredictionOutputsProcessor"
_MAY_BIND = re.compile(rf"\b{OUTPUTS_PROCESSOR}\b|\bimport \*")
_ATTRIBUTE = re.compile(r"\boutputs_processor\b")
_FUNCTION_NAMES = {
    "input_fn": ("feed", "dataset_fn", "input_fn"),
    "loss": ("loss",),
    "optimizer": ("optimizer",),
    "metrics": ("eval_metrics_fn",),
    "callbacks": ("callbacks",),
}
"""The function names of each part of a model; the first name that exists is used."""
Roles = Mapping[str, frozenset[str]]

DATASET_ROLES: Roles = {
    "dataset": frozenset({"dataset", "ds", "records"}),
    "mode": frozenset({"mode"}),
    "metadata": frozenset({"metadata"}),
}
"""Usual parameter names of `feed` by role, in ElasticDL's order."""
LOSS_ROLES: Roles = {
    "labels": frozenset({"labels", "label", "targets", "target", "y_true", "y"}),
    "outputs": frozenset(
        {"outputs", "output", "predictions", "prediction", "preds", "y_pred", "logits"}
    ),
}
"""Usual parameter names of `loss` and metrics by role."""


@dataclass(frozen=True)
class Part:
    """One part of a model: the user's object, and its name."""

    value: Any
    full_name: str
    """`folder.file.symbol`, or a name in Keras."""
    label: str
    """Name and file of the part, for messages."""


Parts = Mapping[str, Part]
"""Parts by the keys of `METHODS`."""


def overrides_method(kind: type[ElasticDLSpec], method: str) -> bool:
    """Whether a spec class overrides a `create_*` method of `ElasticDLSpec`."""
    return getattr(kind, method) is not getattr(ElasticDLSpec, method)


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
        if inspect.isfunction(vars(module).get(_MODEL_FUNCTION)):
            return [_MODEL_FUNCTION]
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


def part_of(value: Any, module: ModuleType, symbol: str, *, zoo: Path) -> Part:
    """A part that a file of a zoo defines; a symbol inside a class has dots."""
    file = Path(str(module.__file__))
    inside = file.relative_to(import_root(zoo)).with_suffix("").parts
    return Part(value, ".".join((*inside, symbol)), f"{symbol} of {file}")


def module_parts(module: ModuleType, *, zoo: Path) -> Parts:
    """The parts that a module defines or imports under the names of ElasticDL."""
    return {
        key: part_of(vars(module)[name], module, name, zoo=zoo)
        for key, names in _FUNCTION_NAMES.items()
        for name in [name for name in names if name in vars(module)][:1]
    }


def may_process_outputs(zoo: Path, model_def: str) -> bool:
    """Whether the text of a model's files mentions a processor of predictions.

    Raises:
        EdlError: The zoo does not have the model.
    """
    model_files = {file for group in file_groups(zoo, model_def) for file in group.files}
    if any(_MAY_BIND.search(file.read_text(errors="replace")) for file in model_files):
        return True
    # The attribute may come from a base class in another file.
    texts = (file.read_text(errors="replace") for file in zoo.rglob("*.py"))
    return any(map(_ATTRIBUTE.search, texts))


def no_place_for_outputs(model_file: Path) -> ConfigError:
    """The error for a prediction without an output whose model has no such processor."""
    return ConfigError(
        f"output must name where predictions go: the model's file has no {OUTPUTS_PROCESSOR} that"
        " takes them.",
        received={"output": "", "model file": model_file},
        hint="Write output=... .",
    )


def with_roles(function: Callable[..., Any], roles: Roles, *, label: str) -> Callable[..., Any]:
    """Wrap a function so that it can be called with roles as parameters.

    A parameter with an unknown name takes the first free role if it has no default; with a default
    it is a parameter of the model, which the user may set in `params`.

    Args:
        function: The user's function.
        roles: Known parameter names by role, in the order of ElasticDL's calls.
        label: Names the function in messages.

    Returns:
        A function that declares the roles as parameters, followed by the model's parameters.

    Raises:
        UserCodeError: The function requires more parameters than there are roles.
    """
    roles_by_name = _roles_by_name(function, roles, label)
    model_parameters = [p for p in _parameters(function) if p.name not in roles_by_name]
    signature = inspect.Signature(
        [inspect.Parameter(role, inspect.Parameter.POSITIONAL_OR_KEYWORD) for role in roles]
        + [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in model_parameters]
    )
    user_signature = inspect.signature(function)

    def adapted(*args: Any, **kwargs: Any) -> Any:
        values = signature.bind_partial(*args, **kwargs).arguments
        call = user_signature.bind_partial()
        for parameter in _parameters(function):
            argument = roles_by_name.get(parameter.name, parameter.name)
            if argument in values:
                call.arguments[parameter.name] = values[argument]
        return function(*call.args, **call.kwargs)

    adapted.__signature__ = signature  # type: ignore[attr-defined]  # What inspect looks for.
    adapted.__qualname__ = adapted.__name__ = label
    return adapted


def declares_roles(function: Callable[..., Any]) -> bool:
    """Whether a function takes labels and outputs itself, instead of no arguments."""
    return any(p.default is inspect.Parameter.empty for p in _parameters(function))


def _roles_by_name(function: Callable[..., Any], roles: Roles, label: str) -> dict[str, str]:
    """The roles that the function's parameters have, by parameter name."""
    parameters = _parameters(function)
    assigned = {
        p.name: role for p in parameters for role, names in roles.items() if p.name in names
    }
    free_roles = [role for role in roles if role not in assigned.values()]
    for parameter in parameters:
        if parameter.name in assigned or parameter.default is not inspect.Parameter.empty:
            continue
        if not free_roles:
            raise UserCodeError(
                f"{label} requires the parameter {parameter.name!r}, which it is not given."
                f" It is given: {', '.join(roles)}.",
                hint="Give the parameter a default.",
            )
        assigned[parameter.name] = free_roles.pop(0)
    return assigned


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p for p in inspect.signature(function).parameters.values() if p.kind not in variable]
