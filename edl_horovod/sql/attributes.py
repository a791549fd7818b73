"""What the attributes of a WITH clause mean: parameters of the model, settings, or ours."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import UnionType
from typing import Any

from edl_horovod.config.fields import dict_key_of, settings
from edl_horovod.config.schema import JobConfig
from edl_horovod.errors import did_you_mean
from edl_horovod.sql.problems import StatementError
from edl_horovod.sql.statements import Attribute, Hparam, HparamCandidates, HparamRange

__all__ = ["PERMITTED", "Meaning", "read_attributes"]

_PARTS_OF_MODEL = ("loss", "optimizer")
"""Attributes of the model that are settings of a job."""
_RENAMED = {
    "engine.num_workers": "launch.np",
    "predict.batch_size": "train.batch_size",
    "predict.num_workers": "launch.np",
    "validation.batch_size": "train.batch_size",
    "validation.steps": "train.evaluate_steps",
}
_OF_ENGINE = (
    "callbacks",
    "checkpoint",
    "data_plan",
    "debug",
    "elastic",
    "framework",
    "kubernetes",
    "launch",
)
"""Settings and sections that `engine.` names."""
_MOST_STEPS = 1_000_000
_MOST_TRIALS = 100
PERMITTED: dict[str, tuple[int, int] | None] = {
    "data_plan.seed": None,
    "data_plan.shuffle": None,
    "framework": None,
    "launch.np": (1, 8),
    "loss": None,
    "optimizer": None,
    "sweep.num_trials": (1, _MOST_TRIALS),
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
    "train.evaluate_steps": (0, _MOST_STEPS),
    "train.learning_rate": None,
    "train.max_steps": (0, _MOST_STEPS),
    "train.precision": None,
}
"""What the clients of a service may set of a job, with the least and the most where it has bounds.
Beside these they have the parameters of models, and what statements themselves read."""


@dataclass(frozen=True, kw_only=True)
class Meaning:
    """The attributes of a statement, by what they are for."""

    params: dict[str, Any] = field(default_factory=dict)
    """Parameters of the model."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Settings of the job, by keys with dots."""
    varied: dict[str, Attribute] = field(default_factory=dict)
    """What has several values, by the key of the setting: `train.learning_rate`, `params.x`."""
    own: dict[str, Attribute] = field(default_factory=dict)
    """What the statement itself reads, by its whole name: `train.split`."""

    @property
    def param_names(self) -> tuple[str, ...]:
        """The parameters of the model, with one value and with several."""
        varied = (key.partition(".") for key in self.varied)
        return (*self.params, *(name for section, _, name in varied if section == "params"))


def read_attributes(
    attributes: Sequence[Attribute],
    *,
    prefixes: Sequence[str],
    own: Mapping[str, type | UnionType],
    is_confined: bool = False,
) -> Meaning:
    """Sort the attributes of a statement.

    Args:
        attributes: As they were written.
        prefixes: What may stand before a dot; `model` may also be left out.
        own: What the statement reads itself, with the type that each must have.
        is_confined: Whether only what is `PERMITTED` may be set.

    Raises:
        StatementError: One is unknown, not permitted, of the wrong type, or given twice under two
            names.
    """
    found = Meaning()
    written: dict[str, Attribute] = {}
    for attribute in attributes:
        prefix, _, rest = (
            attribute.name.rpartition(".") if _is_plain(attribute) else _cut(attribute)
        )
        if (prefix or "model") not in prefixes:
            near = did_you_mean(attribute.name, [*own, *(f"{each}." for each in prefixes)])
            hint = f"{near} Attributes begin with {', '.join(f'{each}.' for each in prefixes)}"
            raise StatementError(
                f"There is no attribute {attribute.name} here.", attribute.position, hint=f"{hint}."
            )
        if attribute.name in own:
            _check_type(attribute, own[attribute.name])
            if is_confined:
                _check_bounds(attribute, attribute.name)
            found.own[attribute.name] = attribute
            continue
        if prefix in ("", "model"):
            target, key = _of_model(found, rest, attribute)
        else:
            target, key = found.settings, _setting(attribute, prefix, rest, own)
        if is_confined and target is found.settings:
            _check_permitted(attribute, key)
        if earlier := written.get(key):
            what = f"{attribute.name} says what {earlier.name} says, too."
            raise StatementError(what, attribute.position, hint="Leave one out.")
        written[key] = attribute
        if isinstance(attribute.value, Hparam):
            found.varied[f"params.{key}" if target is found.params else key] = attribute
        else:
            target[key] = attribute.value
    if is_confined:
        _check_number_of_trials(found)
    return found


def _is_plain(attribute: Attribute) -> bool:
    return "." not in attribute.name


def _cut(attribute: Attribute) -> tuple[str, str, str]:
    return attribute.name.partition(".")


def _of_model(found: Meaning, name: str, attribute: Attribute) -> tuple[dict[str, Any], str]:
    if "." in name:
        what = f"A parameter of the model is one name, and {name} has a dot."
        raise StatementError(what, attribute.position, hint="Write model.name=value.")
    return (found.settings if name in _PARTS_OF_MODEL else found.params), name


def _setting(attribute: Attribute, prefix: str, rest: str, own: Collection[str]) -> str:
    """The setting of the job that an attribute names."""
    known = {each.key: each.annotation for each in settings(JobConfig)}
    key = _RENAMED.get(attribute.name, attribute.name)
    if prefix == "engine" and key == attribute.name:
        key = rest if rest.partition(".")[0] in _OF_ENGINE else ""
    if key in known or dict_key_of(key, known):
        return key
    ours = [name for name in own if name.startswith(f"{prefix}.")]
    theirs = [name for name in known if name.startswith(f"{prefix}.")]
    renamed = [name for name in _RENAMED if name.startswith(f"{prefix}.")]
    engine = [f"engine.{name}" for name in known if name.partition(".")[0] in _OF_ENGINE]
    allowed = [*ours, *renamed, *(engine if prefix == "engine" else theirs)]
    hint = f"{did_you_mean(attribute.name, allowed)} Allowed: {', '.join(allowed)}."
    raise StatementError(f"There is no attribute {attribute.name}.", attribute.position, hint=hint)


def _check_permitted(attribute: Attribute, key: str) -> None:
    """Refuse a setting that is not for the clients of a service, or one beyond its bounds."""
    if key not in PERMITTED:
        permitted = (
            f"engine.{it}" if it.partition(".")[0] in _OF_ENGINE else it for it in PERMITTED
        )
        raise StatementError(
            f"This service does not let its clients set {attribute.name}.",
            attribute.position,
            hint=f"They may set parameters of the model, {', '.join(permitted)}.",
        )
    if key in _PARTS_OF_MODEL and any("." in str(value) for value in _values_of(attribute)):
        raise StatementError(
            f"This service does not let its clients name a function as {attribute.name}.",
            attribute.position,
            hint="Write a name of Keras or PyTorch, as 'mse' or 'adam'.",
        )
    _check_bounds(attribute, key)


def _check_bounds(attribute: Attribute, key: str) -> None:
    bounds = PERMITTED.get(key)
    if bounds is None:
        return
    least, most = bounds
    for value in _values_of(attribute):
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not (is_number and least <= value <= most):
            raise StatementError(
                f"{attribute.name} is from {least:,} to {most:,} in this service.",
                attribute.position,
                hint=f"It is {value!r}.",
            )


def _check_number_of_trials(meaning: Meaning) -> None:
    """Refuse a grid of too many trials; where Optuna chooses them, `sweep.num_trials` says them."""
    grid = [each.value for each in meaning.varied.values()]
    if "sweep.num_trials" in meaning.own or not all(
        isinstance(it, HparamCandidates) for it in grid
    ):
        return
    num_trials = math.prod(len(candidates.values) for candidates in grid)
    if num_trials > _MOST_TRIALS:
        last = list(meaning.varied.values())[-1]
        what = f"All combinations are {num_trials:,} trials, and this service runs {_MOST_TRIALS}."
        raise StatementError(what, last.position, hint="Write sweep.num_trials, or fewer candidates.")


def _values_of(attribute: Attribute) -> tuple[Any, ...]:
    """The value of an attribute, all candidates, or the bounds of its range."""
    if isinstance(attribute.value, HparamCandidates):
        return attribute.value.values
    if isinstance(attribute.value, HparamRange):
        return (attribute.value.low, attribute.value.high)
    return (attribute.value,)


def _check_type(attribute: Attribute, wanted: type | UnionType) -> None:
    if isinstance(attribute.value, Hparam):
        what = f"{attribute.name} is the same for all trials."
        raise StatementError(what, attribute.position, hint="Give it one value.")
    is_number = wanted is float and isinstance(attribute.value, int)
    if not (is_number or isinstance(attribute.value, wanted)) or (
        isinstance(attribute.value, bool) and wanted is not bool
    ):
        names: dict[type | UnionType, str] = {
            bool: "True or False",
            int: "a whole number",
            str: "a 'text'",
            list: "a [list]",
            dict: "a {dict}",
            dict | str: "a {dict} or a 'text'",
        }
        what = f"{attribute.name} must be {names.get(wanted, 'a number')}."
        raise StatementError(what, attribute.position, hint=f"It is {attribute.value!r}.")
