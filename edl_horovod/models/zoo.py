"""Load a model from a zoo by its name, and make its spec with the parameters of the job."""

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
from edl_horovod.models.parts import METHODS, gives, part_of
from edl_horovod.models.plain_models import PlainModels
from edl_horovod.spec import ElasticDLSpec

__all__ = ["RATE_NAMES", "LoadedSpec", "Overrides", "list_definitions", "load_spec"]

_GIVEN_BY_US = frozenset(
    {"context", "dataset", "labels", "mode", "outputs", "predictions", "sample_weight", "self"}
)
_GIVEN_TO = {
    METHODS["optimizer"]: frozenset({"model"}),
    METHODS["loss"]: frozenset({"features"}),
    METHODS["metrics"]: frozenset({"features"}),
}
"""What is given to one method alone; elsewhere a parameter may be called so."""
RATE_NAMES = ("lr", "learning_rate")
"""Both names of the learning rate: a spec may declare one, and the parameters the other."""


@dataclass(frozen=True, kw_only=True)
class LoadedSpec(ModelDefinition):
    """A model whose spec was made."""

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
        """The user's class that processes predictions; None if there is none.

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

    def gives(self, method: str) -> bool:
        """Whether the spec has a `create_*` method of its own."""
        return gives(type(self.spec), method)

    def optimizer(self, learning_rate: float | None, *, model: Any = None) -> Any:
        """Make the optimizer of the model, a new one at each call.

        Args:
            learning_rate: Takes the place of the rate that the spec or its parameters give; None
                leaves that.
            model: What it will train, for a method that declares it; None where the framework's
                optimizers are made without it.

        Raises:
            UserCodeError: Making it raised something.
        """
        given = {} if learning_rate is None else dict.fromkeys(RATE_NAMES, learning_rate)
        if model is not None:
            given["model"] = model
        with user_code(f"create_optimizer of {self.label}", root=self.zoo):
            return call_declared(self.spec.create_optimizer, given)

    def callbacks(self) -> list[Any]:
        """Make the callbacks of the model, new ones at each call.

        Raises:
            UserCodeError: The user's function returns no list of objects, or raised an exception.
        """
        doing = f"create_callbacks of {self.label}"
        with user_code(doing, root=self.zoo):
            made = call_declared(self.spec.create_callbacks, {})
        if not isinstance(made, list | tuple):
            raise UserCodeError(
                f"{doing} must return a list.",
                received=type(made).__name__,
                hint="Return the callbacks in [ ].",
            )
        for callback in made:
            if inspect.isclass(callback):
                raise UserCodeError(
                    f"{doing} must return callbacks, not their classes.",
                    received=callback.__name__,
                    hint=f"Write {callback.__name__}(...).",
                )
        return list(made)


def load_spec(
    model_zoo: str,
    model_def: str,
    *,
    params: Mapping[str, Any],
    context: dict[str, Any] | None = None,
    overrides: Overrides | None = None,
    plain_models: PlainModels | None = None,
) -> LoadedSpec:
    """Find a model in a model zoo, load its file and make its spec.

    A parameter goes to the constructor if that declares it or has `**kwargs`, and to each
    `create_*` method that declares it.

    Args:
        model_zoo: Folder of model files, or one file.
        model_def: `file`, `folder`, `folder.file`, or one of these and `.Symbol`.
        params: Parameters of the model.
        context: Handed to the constructor if it declares it.
        overrides: What takes the place of the model's own input, loss and optimizer.
        plain_models: Knows the framework's models without a spec, and makes specs of overrides;
            None takes specs alone.

    Raises:
        ConfigError: The zoo is not there, nothing declares a parameter, or an override means
            nothing.
        UserCodeError: The model is missing, ambiguous or incomplete, or raised something.
    """
    zoo = require_zoo(model_zoo)
    found = find(zoo, model_def, overrides or Overrides(), plain_models)
    methods = {
        name: _parameters_of(getattr(found.kind, name), _GIVEN_TO.get(name, frozenset()))
        if gives(found.kind, name)
        else ()
        for name in METHODS.values()
    }
    _require_declared(found.kind, params, methods)
    spec = _make(found, zoo, params=params, context=context)
    if plain_models is not None:
        spec.framework = plain_models.framework
    for name, names in methods.items():
        if values := _declared_params(name, names, params):
            method = getattr(spec, name)
            setattr(spec, name, functools.partial(method, **_as_declared(method, values)))
    return LoadedSpec(**vars(found), spec=spec, zoo=zoo)


def _make(
    found: ModelDefinition, zoo: Path, *, params: Mapping[str, Any], context: dict[str, Any] | None
) -> ElasticDLSpec:
    constructor = declared(found.kind)
    own = {
        name: value
        for name, value in params.items()
        if constructor.takes_any or name in constructor.names
    }
    with user_code(f"Making {found.symbol} of {found.source_file}", root=zoo):
        own = _as_declared(found.kind, own)
        spec: ElasticDLSpec = call_declared(found.kind, {**own, "context": context})
    return spec


def _as_declared(function: Callable[..., Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """The same values; whole numbers as floats where the function's default is one.

    So is every learning rate: Keras refuses `SGD(1)`.
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
    for given, declared_name in (
        (RATE_NAMES, RATE_NAMES[::-1]) if method == METHODS["optimizer"] else ()
    ):
        if given in params and given not in names and declared_name in names:
            if declared_name in values:
                raise ConfigError(
                    f"params.{given} and params.{declared_name} are both the learning rate.",
                    received=f"{params[given]!r} and {values[declared_name]!r}",
                    hint="Give one.",
                )
            values[declared_name] = params[given]
    return values


def _parameters_of(
    function: Callable[..., Any], also_given: frozenset[str] = frozenset()
) -> tuple[str, ...]:
    given = _GIVEN_BY_US | also_given
    return tuple(name for name in declared(function).names if name not in given)


def _require_declared(
    kind: type[ElasticDLSpec], params: Mapping[str, Any], methods: Mapping[str, tuple[str, ...]]
) -> None:
    constructor = declared(kind)
    allowed = {*_parameters_of(kind), *(name for names in methods.values() for name in names)}
    rates = set(RATE_NAMES) if set(RATE_NAMES) & set(methods[METHODS["optimizer"]]) else set()
    for name, value in params.items():
        if name in _GIVEN_BY_US:
            raise ConfigError(
                f"{name!r} is what the framework gives to a model, not a parameter.",
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
