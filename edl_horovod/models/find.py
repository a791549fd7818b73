"""Which model a `model_def` means, of the three kinds there are."""

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
from edl_horovod.models.parts import METHODS, REQUIRED, gives, part_of
from edl_horovod.models.plain_models import PlainModels
from edl_horovod.spec import ElasticDLSpec

__all__ = ["ModelDefinition", "find"]

_OF_MODEL = frozenset(name for key in ("loss", "optimizer") for name in (key, METHODS[key]))
"""Parts, and methods of a spec, that a compiled model has itself."""


@dataclass(frozen=True, kw_only=True)
class ModelDefinition:
    """A model as a spec class that can be made."""

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
    """What it lacks to be one."""


def find(
    zoo: Path, model_def: str, overrides: Overrides, plain_models: PlainModels | None
) -> ModelDefinition:
    """Find the one model of this name and load its file.

    An `ElasticDLSpec` counts first; only where there is none, a model without a spec.

    Args:
        zoo: Absolute path of the zoo.
        model_def: As the user wrote it.
        overrides: Parts that the model need not have.
        plain_models: Knows the framework's models without a spec; None takes specs alone.

    Raises:
        ConfigError: An override means nothing.
        UserCodeError: There is no such model, there are several, or it lacks something.
    """
    files: list[Path] = []
    incomplete: _Candidate | None = None
    for group in file_groups(zoo, model_def):
        modules = [load_module(file, zoo=zoo) for file in group.files]
        candidates = _specs(group, modules, overrides)
        if not candidates and plain_models is not None:
            candidates = _plain(group, modules, overrides, zoo, plain_models)
        complete = {id(one.value): one for one in candidates if not one.missing}
        # A loss and an optimizer may be the model's own, which only the model itself can say.
        complete = complete or {
            id(one.value): one for one in candidates if _OF_MODEL.issuperset(one.missing)
        }
        if len(complete) == 1:
            return _definition(next(iter(complete.values())), overrides, zoo, plain_models)
        if complete:
            raise _ambiguous(model_def, complete.values(), zoo)
        incomplete = candidates[-1] if candidates else incomplete
        files += group.files
    if incomplete is not None:
        raise UserCodeError(_what_is_missing(incomplete, plain_models))
    names = list_definitions(zoo)
    raise UserCodeError(
        f"{model_def!r} is neither a class that extends ElasticDLSpec, keras.Model or"
        f" torch.nn.Module nor a function that returns a model, and {', '.join(map(str, files))}"
        " holds none.",
        received={"model_def": model_def},
        hint=f"The zoo defines: {', '.join(names) or 'none'}.{did_you_mean(model_def, names)}",
    )


def _specs(group: FileGroup, modules: list[ModuleType], overrides: Overrides) -> list[_Candidate]:
    return [
        _Candidate(value, module, symbol, _missing_methods(value, overrides))
        for symbol, value, module in _values(group, modules)
        if inspect.isclass(value)
        and issubclass(value, ElasticDLSpec)
        and value is not ElasticDLSpec
    ]


def _missing_methods(kind: type[ElasticDLSpec], overrides: Overrides) -> tuple[str, ...]:
    required = {METHODS[key] for key in overrides.required if not gives(kind, METHODS[key])}
    return tuple(sorted((kind.__abstractmethods__ | required) - overrides.methods))


def _plain(
    group: FileGroup,
    modules: list[ModuleType],
    overrides: Overrides,
    zoo: Path,
    plain_models: PlainModels,
) -> list[_Candidate]:
    def missing(value: Any, module: ModuleType) -> tuple[str, ...]:
        has = {*plain_models.parts_of(value, module, "", zoo=zoo), *overrides.given}
        has |= plain_models.own_parts(value)
        return tuple(key for key in overrides.required if key not in has)

    if group.symbol is None:
        named = [(name, module) for module in modules for name in plain_models.makers(module)]
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
    one: _Candidate, overrides: Overrides, zoo: Path, plain_models: PlainModels | None
) -> ModelDefinition:
    set_by_user = find_parts(overrides, one.module, zoo=zoo)
    own = part_of(one.value, one.module, one.symbol, zoo=zoo).full_name
    names = dict.fromkeys(REQUIRED, own)
    if inspect.isclass(one.value) and issubclass(one.value, ElasticDLSpec):
        kind, parts = one.value, set_by_user
        names |= {
            key: f"{own}.{METHODS[key]}" for key in REQUIRED if gives(one.value, METHODS[key])
        }
    else:
        assert plain_models is not None
        kind = ElasticDLSpec  # type: ignore[type-abstract]  # Made concrete below.
        parts = {**plain_models.parts_of(one.value, one.module, one.symbol, zoo=zoo), **set_by_user}
        names |= {key: parts[key].full_name for key in REQUIRED if key in parts}
    if parts:
        assert plain_models is not None, "only a framework makes a spec of parts"
        kind = plain_models.with_parts(kind, parts)
    names |= {key: part.full_name for key, part in set_by_user.items()}
    return ModelDefinition(kind=kind, module=one.module, symbol=one.symbol, parts=names)


def _ambiguous(model_def: str, found: Iterable[_Candidate], zoo: Path) -> UserCodeError:
    parts = [part_of(one.value, one.module, one.symbol, zoo=zoo) for one in found]
    listed = sorted(f"{part.full_name} ({part.label})" for part in parts)
    return UserCodeError(
        f"{model_def!r} may mean {len(listed)} models: {', '.join(listed)}.",
        received={"model_def": model_def},
        hint="Write the full name of one.",
    )


def _what_is_missing(one: _Candidate, plain_models: PlainModels | None) -> str:
    start = f"{one.symbol} of {one.module.__file__} lacks"
    if inspect.isclass(one.value) and issubclass(one.value, ElasticDLSpec):
        return f"{start} the method(s) {', '.join(one.missing)} that an ElasticDLSpec must have."
    assert plain_models is not None
    settings = ", ".join(f"{key}=..." for key in one.missing)
    hints = "; ".join(plain_models.hints[key] for key in one.missing)
    return f"{start} {', '.join(one.missing)}. Give {hints}; or set {settings}."
