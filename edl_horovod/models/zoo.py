"""Find a model in a zoo by its name, and create its spec with the parameters of the job.

A model is a spec, a class of the framework, or a function that returns a model. The settings
`input_fn`, `loss` and `optimizer` replace parts of it.
"""

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from edl_horovod.config.schema import JobConfig
from edl_horovod.errors import ConfigError, UserCodeError, did_you_mean
from edl_horovod.models.calling import call_declared, declared, user_code
from edl_horovod.models.lookup import (
    FileGroup,
    file_groups,
    files_defining,
    list_definitions,
    list_functions,
    require_zoo,
)
from edl_horovod.models.modules import definitions_in, load_module
from edl_horovod.models.parts import (
    METHODS,
    OUTPUTS_PROCESSOR,
    REQUIRED,
    Part,
    PlainModels,
    overrides_method,
    part_of,
)
from edl_horovod.records import user_dataset
from edl_horovod.spec import ElasticDLSpec

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

_PROVIDED_BY_COMPILED_MODEL = frozenset(
    name for key in ("loss", "optimizer") for name in (key, METHODS[key])
)
"""The parts, and the methods of a spec, that a compiled Keras model provides itself."""


@dataclass(frozen=True, kw_only=True)
class Overrides:
    """The parts that the user set, by name; an empty name keeps the model's own part."""

    input_fn: str = ""
    loss: str = ""
    optimizer: str = ""
    has_own_dataset: bool = False
    """Whether the user's code provides the job's data, whose records may be examples already."""

    @classmethod
    def of(cls, config: JobConfig) -> "Overrides":
        """The overrides of a job."""
        return cls(
            input_fn=config.input_fn,
            loss=config.loss,
            optimizer=config.optimizer,
            has_own_dataset=config.data.startswith(f"{user_dataset.SCHEME}:"),
        )

    @property
    def names(self) -> dict[str, str]:
        """The names that the user set, by the part's key."""
        return {key: getattr(self, key) for key in REQUIRED if getattr(self, key)}

    @property
    def required(self) -> tuple[str, ...]:
        """The parts that a model must have unless the user sets them."""
        return tuple(key for key in REQUIRED if not (self.has_own_dataset and key == "input_fn"))

    @property
    def methods(self) -> frozenset[str]:
        """The methods of a spec that the overrides replace."""
        return frozenset(METHODS[key] for key in self.names)


@dataclass(frozen=True, kw_only=True)
class LoadedSpec:
    """A model whose file was loaded, and whose spec was created."""

    spec: ElasticDLSpec
    """The spec, whose methods already have the job's parameters that they declare."""
    zoo: Path
    """The folder of model files, or the only file."""
    kind: type[ElasticDLSpec]
    module: ModuleType
    symbol: str
    """Its name in its file: a spec, a class of the framework's models or a function."""
    parts: Mapping[str, str]
    """Where `input_fn`, `loss` and `optimizer` come from: `folder.file.symbol`, or a Keras name.

    The model's own name where it brings its loss or optimizer itself.
    """

    @property
    def source_file(self) -> Path:
        """The file that defines it."""
        return Path(str(self.module.__file__))

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

    def outer_optimizer(self, model: Any) -> Any:
        """Create the outer optimizer of local rounds; None if the spec does not have one.

        Raises:
            UserCodeError: The user's method raised an exception.
        """
        if not self.overrides_method("create_outer_optimizer"):
            return None
        with user_code(f"create_outer_optimizer of {self.label}", root=self.zoo):
            return call_declared(self.spec.create_outer_optimizer, {"model": model})

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


@dataclass(frozen=True)
class _Candidate:
    """Something that may be the model."""

    value: Any
    module: ModuleType
    symbol: str
    missing: tuple[str, ...]
    """The required parts that it lacks."""


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
    zoo, overrides = require_zoo(model_zoo), overrides or Overrides()
    model = _find_model(zoo, model_def, overrides, plain_models)
    kind, parts = _spec_class(model, overrides, zoo, plain_models)
    methods = {
        name: _parameters_of(getattr(kind, name), _METHOD_ARGUMENTS.get(name, frozenset()))
        if overrides_method(kind, name)
        else ()
        for name in METHODS.values()
    }
    _require_declared(kind, params, methods)
    constructor = declared(kind)
    accepted = set(params) if constructor.takes_any else set(constructor.names)
    constructor_params = {name: value for name, value in params.items() if name in accepted}
    with user_code(f"Making {model.symbol} of {model.module.__file__}", root=zoo):
        constructor_params = _with_float_values(kind, constructor_params)
        spec: ElasticDLSpec = call_declared(kind, {**constructor_params, "context": context})
    if plain_models is not None:
        spec.framework = plain_models.framework
    for name, names in methods.items():
        if values := _declared_params(name, names, params):
            method = getattr(spec, name)
            setattr(spec, name, functools.partial(method, **_with_float_values(method, values)))
    return LoadedSpec(
        spec=spec, zoo=zoo, kind=kind, module=model.module, symbol=model.symbol, parts=parts
    )


def _find_model(
    zoo: Path, model_def: str, overrides: Overrides, plain_models: PlainModels | None
) -> _Candidate:
    """Find the one model of this name and load its file.

    An `ElasticDLSpec` counts first; only where there is none, a model without a spec.

    Args:
        zoo: Absolute path of the zoo.
        model_def: As the user wrote it.
        overrides: Parts that the user set, which the model does not need to have.
        plain_models: The framework's models without a spec; None accepts only specs.

    Raises:
        UserCodeError: There is no such model, there are several, or it lacks a part.
    """
    files: list[Path] = []
    incomplete: _Candidate | None = None
    for group in file_groups(zoo, model_def):
        modules = [load_module(file, zoo=zoo) for file in group.files]
        candidates = _spec_candidates(group, modules, overrides)
        if not candidates and plain_models is not None:
            candidates = _plain_candidates(group, modules, overrides, zoo, plain_models)
        complete = {id(model.value): model for model in candidates if not model.missing}
        # A compiled model has its own loss and optimizer, which shows only once it is created.
        complete = complete or {
            id(model.value): model
            for model in candidates
            if _PROVIDED_BY_COMPILED_MODEL.issuperset(model.missing)
        }
        if len(complete) == 1:
            return next(iter(complete.values()))
        if complete:
            raise _ambiguous(model_def, complete.values(), zoo)
        incomplete = candidates[-1] if candidates else incomplete
        files += group.files
    if incomplete is not None:
        raise UserCodeError(_missing_message(incomplete, plain_models))
    names = list_definitions(zoo)
    raise UserCodeError(
        f"{model_def!r} is neither a class that extends ElasticDLSpec, keras.Model or"
        f" torch.nn.Module nor a function that returns a model, and {', '.join(map(str, files))}"
        " holds none.",
        received={"model_def": model_def},
        hint=f"The zoo defines: {', '.join(names) or 'none'}.{did_you_mean(model_def, names)}",
    )


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


def _find_part(key: str, name: str, module: ModuleType, zoo: Path) -> Part:
    if name in vars(module):
        return part_of(vars(module)[name], module, name, zoo=zoo)
    symbol = name.rpartition(".")[2]
    is_dotted = all(part.isidentifier() for part in name.split("."))
    for files in files_defining(zoo, name) if is_dotted else []:
        definitions = definitions_in(files, symbol, zoo=zoo)
        if len(definitions) > 1:
            listed = ", ".join(sorted(map(str, files)))
            raise UserCodeError(
                f"{name!r} may mean {len(definitions)} objects: {symbol} in {listed}.",
                received={key: name},
                hint="Write folder.file.symbol to name one.",
            )
        for value, zoo_module in definitions:
            return part_of(value, zoo_module, symbol, zoo=zoo)
    if key != "input_fn" and "." not in name:
        return Part(name, name, f"{key}={name}")  # Keras checks the name later.
    file = Path(str(module.__file__))
    functions = list_functions(file)
    raise ConfigError(
        f"The model zoo {zoo} does not define {name!r}.",
        received={key: name},
        hint=f"Write file.function or a function of {file}:"
        f" {', '.join(functions) or 'it has none'}.{did_you_mean(name, functions)}",
    )


def _spec_candidates(
    group: FileGroup, modules: list[ModuleType], overrides: Overrides
) -> list[_Candidate]:
    return [
        _Candidate(value, module, symbol, _missing_methods(value, overrides))
        for symbol, value, module in _symbols_in(group, modules)
        if _is_spec(value) and value is not ElasticDLSpec
    ]


def _is_spec(value: Any) -> bool:
    return inspect.isclass(value) and issubclass(value, ElasticDLSpec)


def _missing_methods(kind: type[ElasticDLSpec], overrides: Overrides) -> tuple[str, ...]:
    required = {
        METHODS[key] for key in overrides.required if not overrides_method(kind, METHODS[key])
    }
    provided = set(overrides.methods)
    if overrides_method(kind, "create_phases"):
        provided.add(METHODS["loss"])
    return tuple(sorted((kind.__abstractmethods__ | required) - provided))


def _plain_candidates(
    group: FileGroup,
    modules: list[ModuleType],
    overrides: Overrides,
    zoo: Path,
    plain_models: PlainModels,
) -> list[_Candidate]:
    def missing(value: Any, module: ModuleType) -> tuple[str, ...]:
        present = {*plain_models.parts_of(value, module, "", zoo=zoo), *overrides.names}
        present |= plain_models.parts_in_methods(value)
        return tuple(key for key in overrides.required if key not in present)

    if group.symbol is None:
        named = [(name, module) for module in modules for name in plain_models.candidates(module)]
    else:
        named = [(group.symbol, module) for module in modules if group.symbol in vars(module)]
    return [
        _Candidate(value, module, symbol, missing(value, module))
        for symbol, module in named
        if plain_models.is_model(value := vars(module)[symbol])
    ]


def _symbols_in(group: FileGroup, modules: list[ModuleType]) -> list[tuple[str, Any, ModuleType]]:
    """The symbol of a group, or all that its modules define themselves."""
    if group.symbol is not None:
        return [(group.symbol, vars(module).get(group.symbol), module) for module in modules]
    return [
        (name, value, module)
        for module in modules
        for name, value in vars(module).items()
        if getattr(value, "__module__", None) == module.__name__
    ]


def _spec_class(
    model: _Candidate, overrides: Overrides, zoo: Path, plain_models: PlainModels | None
) -> tuple[type[ElasticDLSpec], Mapping[str, str]]:
    """The spec class of a model, and where its required parts come from; see `LoadedSpec.parts`.

    Raises:
        ConfigError: An override is not defined.
        UserCodeError: The name of an override is ambiguous, or its file raised an exception.
    """
    set_by_user = {
        key: _find_part(key, name, model.module, zoo) for key, name in overrides.names.items()
    }
    model_name = part_of(model.value, model.module, model.symbol, zoo=zoo).full_name
    part_names = dict.fromkeys(REQUIRED, model_name)
    if _is_spec(model.value):
        kind, parts = model.value, set_by_user
        part_names |= {
            key: f"{model_name}.{METHODS[key]}"
            for key in REQUIRED
            if overrides_method(model.value, METHODS[key])
        }
    else:
        assert plain_models is not None
        kind = ElasticDLSpec  # Made concrete below.
        parts = {
            **plain_models.parts_of(model.value, model.module, model.symbol, zoo=zoo),
            **set_by_user,
        }
        part_names |= {key: parts[key].full_name for key in REQUIRED if key in parts}
    if parts:
        assert plain_models is not None, "only a framework makes a spec of parts"
        kind = plain_models.with_parts(kind, parts)
    return kind, part_names | {key: part.full_name for key, part in set_by_user.items()}


def _ambiguous(model_def: str, candidates: Iterable[_Candidate], zoo: Path) -> UserCodeError:
    parts = [part_of(model.value, model.module, model.symbol, zoo=zoo) for model in candidates]
    listed = sorted(f"{part.full_name} ({part.label})" for part in parts)
    return UserCodeError(
        f"{model_def!r} may mean {len(listed)} models: {', '.join(listed)}.",
        received={"model_def": model_def},
        hint="Write the full name of one.",
    )


def _missing_message(candidate: _Candidate, plain_models: PlainModels | None) -> str:
    start = f"{candidate.symbol} of {candidate.module.__file__} lacks"
    if _is_spec(candidate.value):
        return (
            f"{start} the method(s) {', '.join(candidate.missing)} that an ElasticDLSpec must have."
        )
    assert plain_models is not None
    settings = ", ".join(f"{key}=..." for key in candidate.missing)
    hints = "; ".join(plain_models.hints[key] for key in candidate.missing)
    return f"{start} {', '.join(candidate.missing)}. Give {hints}; or set {settings}."
