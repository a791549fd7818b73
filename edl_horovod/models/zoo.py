"""Load a model from a zoo by its name, and create its spec with the parameters of the job."""

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edl_horovod.errors import ConfigError, UserCodeError, did_you_mean
from edl_horovod.models.calling import call_declared, declared, user_code
from edl_horovod.models.elasticdl_module import OUTPUTS_PROCESSOR
from edl_horovod.models.find import ModelDefinition, find
from edl_horovod.models.lookup import list_definitions, require_zoo
from edl_horovod.models.overrides import Overrides
from edl_horovod.models.parts import METHODS, overrides_method, part_of
from edl_horovod.models.plain_models import PlainModels
from edl_horovod.spec import ElasticDLSpec

__all__ = ["RATE_NAMES", "LoadedSpec", "Overrides", "list_definitions", "load_spec"]

_FRAMEWORK_ARGUMENTS = frozenset(
    {"context", "dataset", "labels", "mode", "outputs", "predictions", "sample_weight", "self"}
)
_METHOD_ARGUMENTS = {
    METHODS["optimizer"]: frozenset({"model"}),
    METHODS["loss"]: frozenset({"features"}),
    METHODS["metrics"]: frozenset({"features"}),
}
"""Arguments that the framework passes to one method alone; elsewhere the names are free."""
RATE_NAMES = ("lr", "learning_rate")
"""Both names of the learning rate: a spec may declare one, and the parameters the other."""


@dataclass(frozen=True, kw_only=True)
class LoadedSpec(ModelDefinition):
    """A model whose spec was created."""

    spec: ElasticDLSpec
    """The spec, whose methods already have the job's parameters that they declare."""
    zoo: Path
    """The folder of model files, or the only file."""

    @property
    def full_name(self) -> str:
        """The unambiguous `model_def` of this model: `folder.file.Symbol`."""
        return part_of(self.kind, self.module, self.symbol, zoo=self.zoo).full_name

    @functools.cached_property
    def label(self) -> str:
        """The model's symbol and its file, for messages."""
        return f"{self.symbol} of {self.source_file}"

    @property
    def outputs_processor(self) -> type | None:
        """The user's class that processes predictions; None where the user has none.

        It is the spec's attribute `outputs_processor`, or `PredictionOutputsProcessor` of the file.

        Raises:
            UserCodeError: The attribute is not a class with a method `process`.
        """
        kind = self.spec.outputs_processor or vars(self.module).get(OUTPUTS_PROCESSOR)
        if kind is None:
            return None
        is_usable = inspect.isclass(kind) and callable(getattr(kind, "process", None))
        if not is_usable or inspect.isabstract(kind):
            raise UserCodeError(
                f"The {OUTPUTS_PROCESSOR} of {self.source_file} must be a class with a method"
                " process(self, predictions, worker_id).",
                received=repr(kind),
            )
        assert isinstance(kind, type)
        return kind

    def overrides_method(self, method: str) -> bool:
        """Whether the spec overrides a `create_*` method of `ElasticDLSpec`."""
        return overrides_method(type(self.spec), method)

    def optimizer(self, learning_rate: float | None, *, model: Any = None) -> Any:
        """Create the optimizer of the model, a new one at each call.

        Args:
            learning_rate: Replaces the rate of the spec and its parameters; None keeps that rate.
            model: The model to train, for a method that declares it; None where the framework
                creates optimizers without a model.

        Raises:
            UserCodeError: The user's method raised an exception.
        """
        arguments = {} if learning_rate is None else dict.fromkeys(RATE_NAMES, learning_rate)
        if model is not None:
            arguments["model"] = model
        with user_code(f"create_optimizer of {self.label}", root=self.zoo):
            return call_declared(self.spec.create_optimizer, arguments)

    def callbacks(self) -> list[Any]:
        """Create the callbacks of the model, new ones at each call.

        Raises:
            UserCodeError: The user's method raised an exception, or did not return a list of
                objects.
        """
        doing = f"create_callbacks of {self.label}"
        with user_code(doing, root=self.zoo):
            callbacks = call_declared(self.spec.create_callbacks, {})
        if not isinstance(callbacks, list | tuple):
            raise UserCodeError(
                f"{doing} must return a list.",
                received=type(callbacks).__name__,
                hint="Return the callbacks in [ ].",
            )
        for callback in callbacks:
            if inspect.isclass(callback):
                raise UserCodeError(
                    f"{doing} must return callbacks, not their classes.",
                    received=callback.__name__,
                    hint=f"Write {callback.__name__}(...).",
                )
        return list(callbacks)


def load_spec(
    model_zoo: str,
    model_def: str,
    *,
    params: Mapping[str, Any],
    context: dict[str, Any] | None = None,
    overrides: Overrides | None = None,
    plain_models: PlainModels | None = None,
) -> LoadedSpec:
    """Find a model in a model zoo, load its file and create its spec.

    A parameter goes to the constructor if that declares it or has `**kwargs`, and to each
    `create_*` method that declares it.

    Args:
        model_zoo: Folder of model files, or one file.
        model_def: `file`, `folder`, `folder.file`, or one of these and `.Symbol`.
        params: Parameters of the model.
        context: Handed to the constructor if it declares it.
        overrides: The input, loss and optimizer that replace the model's own.
        plain_models: The framework's models without a spec, needed for overrides, too; None
            accepts only specs.

    Raises:
        ConfigError: The zoo does not exist, nothing declares a parameter, or an override is not
            defined.
        UserCodeError: The model is missing, ambiguous or incomplete, or raised an exception.
    """
    zoo = require_zoo(model_zoo)
    definition = find(zoo, model_def, overrides or Overrides(), plain_models)
    methods = {
        name: _parameters_of(
            getattr(definition.kind, name), _METHOD_ARGUMENTS.get(name, frozenset())
        )
        if overrides_method(definition.kind, name)
        else ()
        for name in METHODS.values()
    }
    _require_declared(definition.kind, params, methods)
    spec = _make_spec(definition, zoo, params=params, context=context)
    if plain_models is not None:
        spec.framework = plain_models.framework
    for name, names in methods.items():
        if values := _declared_params(name, names, params):
            method = getattr(spec, name)
            setattr(spec, name, functools.partial(method, **_with_float_values(method, values)))
    return LoadedSpec(**vars(definition), spec=spec, zoo=zoo)


def _make_spec(
    definition: ModelDefinition,
    zoo: Path,
    *,
    params: Mapping[str, Any],
    context: dict[str, Any] | None,
) -> ElasticDLSpec:
    constructor = declared(definition.kind)
    constructor_params = {
        name: value
        for name, value in params.items()
        if constructor.takes_any or name in constructor.names
    }
    with user_code(f"Making {definition.symbol} of {definition.source_file}", root=zoo):
        constructor_params = _with_float_values(definition.kind, constructor_params)
        spec: ElasticDLSpec = call_declared(
            definition.kind, {**constructor_params, "context": context}
        )
    return spec


def _with_float_values(function: Callable[..., Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """The same values, with integers as floats where the function's default is a float.

    Every learning rate becomes a float, too, because Keras refuses `SGD(1)`.
    """
    parameters = inspect.signature(function).parameters
    rest = inspect.Parameter("rest", inspect.Parameter.VAR_KEYWORD)
    return {
        name: float(value)
        if type(value) is int
        and (name in RATE_NAMES or isinstance(parameters.get(name, rest).default, float))
        else value
        for name, value in values.items()
    }


def _declared_params(
    method: str, names: tuple[str, ...], params: Mapping[str, Any]
) -> dict[str, Any]:
    """The parameters that a method declares, with their values."""
    values = {name: value for name, value in params.items() if name in names}
    for rate_name, declared_name in (
        (RATE_NAMES, RATE_NAMES[::-1]) if method == METHODS["optimizer"] else ()
    ):
        if rate_name in params and rate_name not in names and declared_name in names:
            if declared_name in values:
                raise ConfigError(
                    f"params.{rate_name} and params.{declared_name} are both the learning rate.",
                    received=f"{params[rate_name]!r} and {values[declared_name]!r}",
                    hint="Set one of the two.",
                )
            values[declared_name] = params[rate_name]
    return values


def _parameters_of(
    function: Callable[..., Any], method_arguments: frozenset[str] = frozenset()
) -> tuple[str, ...]:
    framework_arguments = _FRAMEWORK_ARGUMENTS | method_arguments
    return tuple(name for name in declared(function).names if name not in framework_arguments)


def _require_declared(
    kind: type[ElasticDLSpec], params: Mapping[str, Any], methods: Mapping[str, tuple[str, ...]]
) -> None:
    constructor = declared(kind)
    allowed = {*_parameters_of(kind), *(name for names in methods.values() for name in names)}
    rates = set(RATE_NAMES) if set(RATE_NAMES) & set(methods[METHODS["optimizer"]]) else set()
    for name, value in params.items():
        if name in _FRAMEWORK_ARGUMENTS:
            raise ConfigError(
                f"{name!r} is an argument that the framework passes, not a parameter of the model.",
                received={f"params.{name}": value},
                hint="Remove it.",
            )
        if name not in allowed | rates and not constructor.takes_any:
            shown = sorted(allowed)
            raise ConfigError(
                f"Nothing in {kind.__qualname__} declares the parameter {name!r}.",
                received={f"params.{name}": value},
                hint=f"It declares: {', '.join(shown) or 'none'}.{did_you_mean(name, shown)}",
            )
