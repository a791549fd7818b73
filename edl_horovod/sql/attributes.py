"""Sorts the attributes of a WITH clause: model parameters, settings of jobs, and options."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import UnionType
from typing import Any

from edl_horovod.config.fields import dict_key_of, settings
from edl_horovod.config.schema import JobConfig
from edl_horovod.errors import did_you_mean
from edl_horovod.sql.statements import (
    Attribute,
    Hparam,
    HparamCandidates,
    HparamRange,
    StatementError,
)

__all__ = ["PERMITTED_SETTINGS", "SortedAttributes", "sort_attributes"]

_MODEL_SETTINGS = ("loss", "optimizer")
"""Attributes with the prefix `model` that are settings of a job."""
_RENAMED = {
    "engine.num_workers": "launch.np",
    "predict.batch_size": "train.batch_size",
    "predict.num_workers": "launch.np",
    "validation.batch_size": "train.batch_size",
    "validation.steps": "train.evaluate_steps",
}
_ENGINE_SETTINGS = (
    "callbacks",
    "checkpoint",
    "data_plan",
    "debug",
    "elastic",
    "framework",
    "kubernetes",
    "launch",
)
"""Settings and sections that attributes name with the prefix `engine`."""
_MAX_STEPS = 1_000_000
_MAX_TRIALS = 100
PERMITTED_SETTINGS: dict[str, tuple[int, int] | None] = {
    "data_plan.seed": None,
    "data_plan.shuffle": None,
    "framework": None,
    "launch.np": (1, 8),
    "loss": None,
    "optimizer": None,
    "sweep.num_trials": (1, _MAX_TRIALS),
    "train.batch_size": (1, 100_000),
    "train.class_weight": None,
    "train.clip_norm": None,
    "train.clip_value": None,
    "train.early_stopping.metric": None,
    "train.early_stopping.min_delta": None,
    "train.early_stopping.mode": None,
    "train.early_stopping.patience": None,
    "train.early_stopping.restore_best": None,
    "train.epochs": (1, 1_000),
    "train.evaluate_steps": (0, _MAX_STEPS),
    "train.learning_rate": None,
    "train.max_steps": (0, _MAX_STEPS),
    "train.precision": None,
}
"""Settings of a job that clients of a service may set, with their bounds, if they are numbers.
Clients may also set parameters of models, and the options of statements."""


@dataclass(frozen=True, kw_only=True)
class SortedAttributes:
    """The attributes of a statement by their use."""

    params: dict[str, Any] = field(default_factory=dict)
    """Parameters of the model."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Settings of the job, by keys with dots."""
    varied: dict[str, Attribute] = field(default_factory=dict)
    """Attributes with several values, by setting: `train.learning_rate`, `params.x`."""
    options: dict[str, Attribute] = field(default_factory=dict)
    """Attributes that the statement itself evaluates, by their whole names: `train.split`."""

    @property
    def param_names(self) -> tuple[str, ...]:
        """The names of the model parameters that are set, with one value or several."""
        varied = (key.partition(".") for key in self.varied)
        return (*self.params, *(name for section, _, name in varied if section == "params"))


def sort_attributes(
    attributes: Sequence[Attribute],
    *,
    prefixes: Sequence[str],
    option_types: Mapping[str, type | UnionType],
    is_confined: bool = False,
) -> SortedAttributes:
    """Sort the attributes of a statement.

    Args:
        attributes: The attributes as written.
        prefixes: The allowed prefixes; `model` may also be left out.
        option_types: The options of the statement with their types.
        is_confined: Whether only `PERMITTED_SETTINGS` may be set.

    Raises:
        StatementError: An attribute is unknown, not permitted, of the wrong type, or set twice
            under two names.
    """
    attributes_by_use = SortedAttributes()
    attributes_by_key: dict[str, Attribute] = {}
    for attribute in attributes:
        prefix, rest = "", attribute.name
        if "." in rest:
            prefix, _, rest = rest.partition(".")
        if (prefix or "model") not in prefixes:
            beginnings = [f"{known_prefix}." for known_prefix in prefixes]
            suggestion = did_you_mean(attribute.name, [*option_types, *beginnings])
            hint = f"{suggestion} Attributes begin with {', '.join(beginnings)}"
            raise StatementError(
                f"There is no attribute {attribute.name} here.", attribute.position, hint=f"{hint}."
            )
        if attribute.name in option_types:
            _check_type(attribute, option_types[attribute.name])
            if is_confined:
                _check_bounds(attribute, attribute.name)
            attributes_by_use.options[attribute.name] = attribute
            continue
        if prefix in ("", "model"):
            target, key = _model_target(attributes_by_use, rest, attribute)
        else:
            target = attributes_by_use.settings
            key = _setting(attribute, prefix, rest, option_types)
        if is_confined and target is attributes_by_use.settings:
            _check_permitted(attribute, key)
        if earlier := attributes_by_key.get(key):
            problem = f"{attribute.name} and {earlier.name} are names of the same attribute."
            raise StatementError(problem, attribute.position, hint="Leave one of them out.")
        attributes_by_key[key] = attribute
        if isinstance(attribute.value, Hparam):
            is_param = target is attributes_by_use.params
            attributes_by_use.varied[f"params.{key}" if is_param else key] = attribute
        else:
            target[key] = attribute.value
    if is_confined:
        _check_number_of_trials(attributes_by_use)
    return attributes_by_use


def _model_target(
    sorted_attributes: SortedAttributes, name: str, attribute: Attribute
) -> tuple[dict[str, Any], str]:
    """The values that an attribute of the model belongs to, and its key among them."""
    if "." in name:
        problem = f"Names of model parameters have no dots: {name} has one."
        raise StatementError(problem, attribute.position, hint="Write model.name=value.")
    is_setting = name in _MODEL_SETTINGS
    return (sorted_attributes.settings if is_setting else sorted_attributes.params), name


def _setting(attribute: Attribute, prefix: str, rest: str, option_types: Collection[str]) -> str:
    """The key of the job setting that an attribute sets."""
    setting_types = {field.key: field.annotation for field in settings(JobConfig)}
    key = _RENAMED.get(attribute.name, attribute.name)
    if prefix == "engine" and key == attribute.name:
        key = rest if rest.partition(".")[0] in _ENGINE_SETTINGS else ""
    if key in setting_types or dict_key_of(key, setting_types):
        return key
    # The error lists the attributes with this prefix.
    options = [name for name in option_types if name.startswith(f"{prefix}.")]
    section_settings = [name for name in setting_types if name.startswith(f"{prefix}.")]
    renamed_settings = [name for name in _RENAMED if name.startswith(f"{prefix}.")]
    engine_settings = [
        f"engine.{name}" for name in setting_types if name.partition(".")[0] in _ENGINE_SETTINGS
    ]
    allowed = [
        *options,
        *renamed_settings,
        *(engine_settings if prefix == "engine" else section_settings),
    ]
    hint = f"{did_you_mean(attribute.name, allowed)} Allowed: {', '.join(allowed)}."
    raise StatementError(f"There is no attribute {attribute.name}.", attribute.position, hint=hint)


def _check_permitted(attribute: Attribute, key: str) -> None:
    """Refuse a setting that clients of a service may not set, or a value out of bounds."""
    if key not in PERMITTED_SETTINGS:
        permitted = (
            f"engine.{setting}" if setting.partition(".")[0] in _ENGINE_SETTINGS else setting
            for setting in PERMITTED_SETTINGS
        )
        raise StatementError(
            f"Clients of this service must not set {attribute.name}.",
            attribute.position,
            hint=f"They may set model parameters, {', '.join(permitted)}.",
        )
    if key in _MODEL_SETTINGS and any("." in str(value) for value in _values_of(attribute)):
        raise StatementError(
            f"Clients of this service must not set {attribute.name} to a function.",
            attribute.position,
            hint="Write a name of Keras or PyTorch, for example 'mse' or 'adam'.",
        )
    _check_bounds(attribute, key)


def _check_bounds(attribute: Attribute, key: str) -> None:
    bounds = PERMITTED_SETTINGS.get(key)
    if bounds is None:
        return
    least, most = bounds
    for value in _values_of(attribute):
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not (is_number and least <= value <= most):
            raise StatementError(
                f"{attribute.name} must be from {least:,} to {most:,} in this service.",
                attribute.position,
                hint=f"It is {value!r}.",
            )


def _check_number_of_trials(attributes: SortedAttributes) -> None:
    """Refuse a grid of too many trials; the bounds of `sweep.num_trials` are checked elsewhere."""
    grid = [attribute.value for attribute in attributes.varied.values()]
    if "sweep.num_trials" in attributes.options or not all(
        isinstance(values, HparamCandidates) for values in grid
    ):
        return
    num_trials = math.prod(len(candidates.values) for candidates in grid)
    if num_trials > _MAX_TRIALS:
        last = list(attributes.varied.values())[-1]
        problem = (
            f"The grid has {num_trials:,} trials, and this service runs at most {_MAX_TRIALS}."
        )
        raise StatementError(
            problem, last.position, hint="Write sweep.num_trials, or fewer candidates."
        )


def _values_of(attribute: Attribute) -> tuple[Any, ...]:
    """The value, the candidates, or the bounds of the range of an attribute."""
    if isinstance(attribute.value, HparamCandidates):
        return attribute.value.values
    if isinstance(attribute.value, HparamRange):
        return (attribute.value.low, attribute.value.high)
    return (attribute.value,)


def _check_type(attribute: Attribute, option_type: type | UnionType) -> None:
    if isinstance(attribute.value, Hparam):
        problem = f"{attribute.name} must be the same for all trials."
        raise StatementError(problem, attribute.position, hint="Give it one value.")
    is_number = option_type is float and isinstance(attribute.value, int)
    if not (is_number or isinstance(attribute.value, option_type)) or (
        isinstance(attribute.value, bool) and option_type is not bool
    ):
        names: dict[type | UnionType, str] = {
            bool: "True or False",
            int: "a whole number",
            str: "a 'text'",
            list: "a [list]",
            dict: "a {dict}",
            dict | str: "a {dict} or 'mean'",
        }
        problem = f"{attribute.name} must be {names.get(option_type, 'a number')}."
        raise StatementError(problem, attribute.position, hint=f"It is {attribute.value!r}.")
