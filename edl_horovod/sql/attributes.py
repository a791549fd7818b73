"""What the attributes of a WITH clause mean: parameters of the model, settings, or ours."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from edl_horovod.config.fields import dict_key_of, settings
from edl_horovod.config.schema import JobConfig
from edl_horovod.errors import did_you_mean
from edl_horovod.sql.problems import StatementError
from edl_horovod.sql.statements import Attribute, Hparam

__all__ = ["Meaning", "read_attributes"]

_PARTS_OF_MODEL = ("loss", "optimizer")
"""Attributes of the model that are settings of a job."""
_RENAMED = {
    "engine.num_workers": "launch.np",
    "predict.batch_size": "train.batch_size",
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
    attributes: Sequence[Attribute], *, prefixes: Sequence[str], own: Mapping[str, type]
) -> Meaning:
    """Sort the attributes of a statement.

    Args:
        attributes: As they were written.
        prefixes: What may stand before a dot; `model` may also be left out.
        own: What the statement reads itself, with the type that each must have.

    Raises:
        StatementError: One is unknown, of the wrong type, or given twice under two names.
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
                f"There is no attribute {attribute.name} here.", attribute.place, hint=f"{hint}."
            )
        if attribute.name in own:
            _check_type(attribute, own[attribute.name])
            found.own[attribute.name] = attribute
            continue
        if prefix in ("", "model"):
            target, key = _of_model(found, rest, attribute)
        else:
            target, key = found.settings, _setting(attribute, prefix, rest, own)
        if earlier := written.get(key):
            what = f"{attribute.name} says what {earlier.name} says, too."
            raise StatementError(what, attribute.place, hint="Leave one out.")
        written[key] = attribute
        if isinstance(attribute.value, Hparam):
            found.varied[f"params.{key}" if target is found.params else key] = attribute
        else:
            target[key] = attribute.value
    return found


def _is_plain(attribute: Attribute) -> bool:
    return "." not in attribute.name


def _cut(attribute: Attribute) -> tuple[str, str, str]:
    return attribute.name.partition(".")


def _of_model(found: Meaning, name: str, attribute: Attribute) -> tuple[dict[str, Any], str]:
    if "." in name:
        what = f"A parameter of the model is one name, and {name} has a dot."
        raise StatementError(what, attribute.place, hint="Write model.name=value.")
    return (found.settings if name in _PARTS_OF_MODEL else found.params), name


def _setting(attribute: Attribute, prefix: str, rest: str, own: Mapping[str, type]) -> str:
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
    raise StatementError(f"There is no attribute {attribute.name}.", attribute.place, hint=hint)


def _check_type(attribute: Attribute, wanted: type) -> None:
    if isinstance(attribute.value, Hparam):
        what = f"{attribute.name} is the same for all trials."
        raise StatementError(what, attribute.place, hint="Give it one value.")
    is_number = wanted is float and isinstance(attribute.value, int)
    if not (is_number or isinstance(attribute.value, wanted)) or (
        isinstance(attribute.value, bool) and wanted is not bool
    ):
        names = {bool: "True or False", str: "a 'text'", list: "a [list]", dict: "a {dict}"}
        names |= {int: "a whole number"}
        what = f"{attribute.name} must be {names.get(wanted, 'a number')}."
        raise StatementError(what, attribute.place, hint=f"It is {attribute.value!r}.")
