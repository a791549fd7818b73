"""From a model zoo, a name and parameters to the spec object that the framework works with."""

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from edl_horovod.errors import ConfigError, UserCodeError, did_you_mean
from edl_horovod.models.calling import call_declared, declared, user_code
from edl_horovod.models.lookup import Place, list_definitions, places, require_zoo
from edl_horovod.models.modules import load_module
from edl_horovod.spec import ElasticDLSpec

__all__ = ["LoadedSpec", "list_definitions", "load_function", "load_spec"]

_METHODS = ("create_model", "create_optimizer", "create_loss", "create_dataset", "create_metrics")
_GIVEN_BY_US = frozenset({"context", "dataset", "labels", "mode", "outputs", "predictions", "self"})


@dataclass(frozen=True)
class LoadedSpec:
    """A spec and where it comes from."""

    spec: ElasticDLSpec
    """Its methods already hold the job's parameters that they declare."""
    module: ModuleType
    zoo: Path
    source_file: Path
    symbol: str
    """Name of the spec's class in its file."""

    @property
    def full_name(self) -> str:
        """The one `model_def` that means this spec and no other: `folder.file.Symbol`."""
        module = self.source_file.relative_to(self.zoo).with_suffix("")
        return ".".join((*module.parts, self.symbol))


def load_spec(
    model_zoo: str,
    model_def: str,
    *,
    params: Mapping[str, Any],
    context: dict[str, Any] | None = None,
) -> LoadedSpec:
    """Find a spec in a model zoo, load its file and make it.

    A parameter goes to the constructor if that declares it or has `**kwargs`, and to each
    `create_*` method that declares it.

    Args:
        model_zoo: Directory of model files.
        model_def: `file`, `folder`, `folder.file`, or one of these and `.Symbol`.
        params: Parameters of the model.
        context: Handed to the constructor if it declares it.

    Raises:
        ConfigError: The zoo is no directory, or nothing declares a parameter.
        UserCodeError: The model is missing, ambiguous or incomplete, or raised something.
    """
    zoo = require_zoo(model_zoo)
    found = _find(zoo, model_def)
    kind, source_file = found.kind, Path(str(found.module.__file__))
    methods = {name: _parameters_of(getattr(kind, name)) for name in _METHODS}
    _require_declared(kind, params, methods)
    constructor = declared(kind)
    with user_code(f"Making {kind.__qualname__} of {source_file}", root=zoo):
        own = {
            name: value
            for name, value in params.items()
            if constructor.takes_any or name in constructor.names
        }
        spec = call_declared(kind, {**own, "context": context})
    for name, names in methods.items():
        held = {key: value for key, value in params.items() if key in names}
        if held:
            setattr(spec, name, functools.partial(getattr(spec, name), **held))
    return LoadedSpec(
        spec=spec, module=found.module, zoo=zoo, source_file=source_file, symbol=found.symbol
    )


def load_function(model_zoo: str, model_def: str, name: str) -> Callable[..., Any]:
    """Return a function of the file that a `model_def` means.

    Args:
        model_zoo: Directory of model files.
        model_def: As in `load_spec`; the file need not hold a spec.
        name: The function's name.

    Raises:
        ConfigError: The zoo is no directory.
        UserCodeError: The file or the function is not there, or the file raised something.
    """
    zoo = require_zoo(model_zoo)
    files: list[Path] = []
    for place in places(zoo, model_def):
        modules = [load_module(file, zoo=zoo) for file in place.files]
        found: dict[Callable[..., Any], ModuleType] = {
            vars(module)[name]: module for module in modules if name in vars(module)
        }
        if len(found) > 1:
            listed = ", ".join(sorted(str(module.__file__) for module in found.values()))
            raise UserCodeError(
                f"{model_def!r} may mean {len(found)} files with {name!r}: {listed}."
                f" Received: model_def={model_def}. Write folder.file to name one."
            )
        for function in found:
            return function
        files += place.files
    raise UserCodeError(
        f"{', '.join(map(str, files))} has no function {name!r}."
        f" Received: model_def={model_def}. Write it there, at the top level."
    )


@dataclass(frozen=True)
class _Found:
    kind: type[ElasticDLSpec]
    module: ModuleType
    symbol: str


def _find(zoo: Path, model_def: str) -> _Found:
    incomplete: list[type[ElasticDLSpec]] = []
    files: list[Path] = []
    for place in places(zoo, model_def):
        found = _specs(place, [load_module(file, zoo=zoo) for file in place.files])
        complete = {one.kind: one for one in found if not inspect.isabstract(one.kind)}
        if len(complete) == 1:
            return next(iter(complete.values()))
        if complete:
            raise UserCodeError(_ambiguous(model_def, list(complete.values())))
        incomplete += [one.kind for one in found if one.kind is not ElasticDLSpec]
        files += place.files
    if incomplete:
        kind = incomplete[-1]
        raise UserCodeError(
            f"{kind.__qualname__} of {inspect.getsourcefile(kind)} lacks the method(s)"
            f" {', '.join(sorted(kind.__abstractmethods__))} that an ElasticDLSpec must have."
        )
    raise UserCodeError(
        f"{model_def!r} is not a class that extends ElasticDLSpec, nor has"
        f" {', '.join(map(str, files))} one. Received: model_def={model_def}."
        f" The zoo defines: {', '.join(list_definitions(zoo)) or 'none'}."
    )


def _specs(place: Place, modules: list[ModuleType]) -> list[_Found]:
    if place.symbol is not None:
        values = [(place.symbol, vars(module).get(place.symbol), module) for module in modules]
    else:
        values = [
            (name, value, module)
            for module in modules
            for name, value in vars(module).items()
            if getattr(value, "__module__", None) == module.__name__
        ]
    return [
        _Found(kind=value, module=module, symbol=symbol)
        for symbol, value, module in values
        if inspect.isclass(value) and issubclass(value, ElasticDLSpec)
    ]


def _ambiguous(model_def: str, found: list[_Found]) -> str:
    listed = sorted(f"{one.symbol} in {one.module.__file__}" for one in found)
    return (
        f"{model_def!r} may mean {len(found)} models: {', '.join(listed)}."
        f" Received: model_def={model_def}. Write file.Symbol to name one."
    )


def _parameters_of(function: Callable[..., Any]) -> tuple[str, ...]:
    return tuple(name for name in declared(function).names if name not in _GIVEN_BY_US)


def _require_declared(
    kind: type[ElasticDLSpec], params: Mapping[str, Any], methods: Mapping[str, tuple[str, ...]]
) -> None:
    constructor = declared(kind)
    own = _parameters_of(kind)
    allowed = sorted({*own, *(name for names in methods.values() for name in names)})
    for name, value in params.items():
        if name in _GIVEN_BY_US:
            raise ConfigError(
                f"{name!r} is what the framework gives to a model, not a parameter."
                f" Received: params.{name}={value!r}. Remove it."
            )
        if name not in allowed and not constructor.takes_any:
            raise ConfigError(
                f"Nothing in {kind.__qualname__} declares the parameter {name!r}."
                f" Received: params.{name}={value!r}. It declares: {', '.join(allowed) or 'none'}."
                f"{did_you_mean(name, allowed)}"
            )
