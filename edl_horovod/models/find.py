"""Find the model that a `model_def` means: a spec, a class of the framework, or a function."""

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from edl_horovod.errors import UserCodeError, did_you_mean
from edl_horovod.models.lookup import FileGroup, file_groups, list_definitions
from edl_horovod.models.modules import load_module
from edl_horovod.models.overrides import Overrides, find_parts
from edl_horovod.models.parts import METHODS, REQUIRED, overrides_method, part_of
from edl_horovod.models.plain_models import PlainModels
from edl_horovod.spec import ElasticDLSpec

__all__ = ["ModelDefinition", "find"]

_PROVIDED_BY_COMPILED_MODEL = frozenset(
    name for key in ("loss", "optimizer") for name in (key, METHODS[key])
)
"""The parts, and the methods of a spec, that a compiled Keras model provides itself."""


@dataclass(frozen=True, kw_only=True)
class ModelDefinition:
    """A model as a spec class, ready to be created."""

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


@dataclass(frozen=True)
class _Candidate:
    """Something that may be the model."""

    value: Any
    module: ModuleType
    symbol: str
    missing: tuple[str, ...]
    """The required parts that it lacks."""


def find(
    zoo: Path, model_def: str, overrides: Overrides, plain_models: PlainModels | None
) -> ModelDefinition:
    """Find the one model of this name and load its file.

    An `ElasticDLSpec` counts first; only where there is none, a model without a spec.

    Args:
        zoo: Absolute path of the zoo.
        model_def: As the user wrote it.
        overrides: Parts that the user set, which the model does not need to have.
        plain_models: The framework's models without a spec; None accepts only specs.

    Raises:
        ConfigError: An override is not defined.
        UserCodeError: There is no such model, there are several, or it lacks a part.
    """
    files: list[Path] = []
    incomplete: _Candidate | None = None
    for group in file_groups(zoo, model_def):
        modules = [load_module(file, zoo=zoo) for file in group.files]
        candidates = _spec_candidates(group, modules, overrides)
        if not candidates and plain_models is not None:
            candidates = _plain_candidates(group, modules, overrides, zoo, plain_models)
        complete = {
            id(candidate.value): candidate for candidate in candidates if not candidate.missing
        }
        # A compiled model has its own loss and optimizer, which shows only once it is created.
        complete = complete or {
            id(candidate.value): candidate
            for candidate in candidates
            if _PROVIDED_BY_COMPILED_MODEL.issuperset(candidate.missing)
        }
        if len(complete) == 1:
            return _definition(next(iter(complete.values())), overrides, zoo, plain_models)
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


def _spec_candidates(
    group: FileGroup, modules: list[ModuleType], overrides: Overrides
) -> list[_Candidate]:
    return [
        _Candidate(value, module, symbol, _missing_methods(value, overrides))
        for symbol, value, module in _values(group, modules)
        if inspect.isclass(value)
        and issubclass(value, ElasticDLSpec)
        and value is not ElasticDLSpec
    ]


def _missing_methods(kind: type[ElasticDLSpec], overrides: Overrides) -> tuple[str, ...]:
    required = {
        METHODS[key] for key in overrides.required if not overrides_method(kind, METHODS[key])
    }
    return tuple(sorted((kind.__abstractmethods__ | required) - overrides.methods))


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


def _values(group: FileGroup, modules: list[ModuleType]) -> list[tuple[str, Any, ModuleType]]:
    """The symbol of a group, or all that its modules define themselves."""
    if group.symbol is not None:
        return [(group.symbol, vars(module).get(group.symbol), module) for module in modules]
    return [
        (name, value, module)
        for module in modules
        for name, value in vars(module).items()
        if getattr(value, "__module__", None) == module.__name__
    ]


def _definition(
    candidate: _Candidate, overrides: Overrides, zoo: Path, plain_models: PlainModels | None
) -> ModelDefinition:
    set_by_user = find_parts(overrides, candidate.module, zoo=zoo)
    model_name = part_of(candidate.value, candidate.module, candidate.symbol, zoo=zoo).full_name
    part_names = dict.fromkeys(REQUIRED, model_name)
    if inspect.isclass(candidate.value) and issubclass(candidate.value, ElasticDLSpec):
        kind, parts = candidate.value, set_by_user
        part_names |= {
            key: f"{model_name}.{METHODS[key]}"
            for key in REQUIRED
            if overrides_method(candidate.value, METHODS[key])
        }
    else:
        assert plain_models is not None
        kind = ElasticDLSpec  # type: ignore[type-abstract]  # Made concrete below.
        parts = {
            **plain_models.parts_of(candidate.value, candidate.module, candidate.symbol, zoo=zoo),
            **set_by_user,
        }
        part_names |= {key: parts[key].full_name for key in REQUIRED if key in parts}
    if parts:
        assert plain_models is not None, "only a framework makes a spec of parts"
        kind = plain_models.with_parts(kind, parts)
    part_names |= {key: part.full_name for key, part in set_by_user.items()}
    return ModelDefinition(
        kind=kind, module=candidate.module, symbol=candidate.symbol, parts=part_names
    )


def _ambiguous(model_def: str, candidates: Iterable[_Candidate], zoo: Path) -> UserCodeError:
    parts = [
        part_of(candidate.value, candidate.module, candidate.symbol, zoo=zoo)
        for candidate in candidates
    ]
    listed = sorted(f"{part.full_name} ({part.label})" for part in parts)
    return UserCodeError(
        f"{model_def!r} may mean {len(listed)} models: {', '.join(listed)}.",
        received={"model_def": model_def},
        hint="Write the full name of one.",
    )


def _missing_message(candidate: _Candidate, plain_models: PlainModels | None) -> str:
    start = f"{candidate.symbol} of {candidate.module.__file__} lacks"
    if inspect.isclass(candidate.value) and issubclass(candidate.value, ElasticDLSpec):
        return (
            f"{start} the method(s) {', '.join(candidate.missing)} that an ElasticDLSpec must have."
        )
    assert plain_models is not None
    settings = ", ".join(f"{key}=..." for key in candidate.missing)
    hints = "; ".join(plain_models.hints[key] for key in candidate.missing)
    return f"{start} {', '.join(candidate.missing)}. Give {hints}; or set {settings}."
