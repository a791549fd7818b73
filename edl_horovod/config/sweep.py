"""From settings with several values to the settings of each job, in Hydra's own grammar.

`train.learning_rate=0.1,0.01`, `train.epochs=range(1,4)`, `launch=glob(*)`: each combination is one
job. Where a comma has a meaning of its own (lists of files, strings of parameters) only an explicit
`choice(...)` is read as several values.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, QuotedString, Transformer, ValueType
from hydra.errors import HydraException

from edl_horovod.config.compose import group_choices
from edl_horovod.config.fields import settings
from edl_horovod.config.overrides import Override, split, unreadable
from edl_horovod.config.schema import JobConfig
from edl_horovod.errors import ConfigError

__all__ = ["Point", "expand", "product"]

_COMMA_MEANS_MORE = ("data", "validation_data", "params")
_ONE_FOR_ALL = ("output", "job_dir", "overwrite", "log_level")


@dataclass(frozen=True)
class Point:
    """One combination of values."""

    chosen: dict[str, str]
    """What distinguishes it from the others: keys to values."""
    overrides: tuple[str, ...]
    """All settings, as a command for this job alone would have them."""


def expand(overrides: Sequence[str]) -> list[Point]:
    """Every combination of the values that a command gives.

    Args:
        overrides: Settings as typed in a command.

    Raises:
        ConfigError: No setting has several values, or one has them that cannot.
    """
    single: list[str] = []
    several: dict[str, list[str]] = {}
    for typed in overrides:
        setting = split(typed)
        values = _values(setting.key, setting.value)
        if values is None:
            single.append(typed)
        elif setting.key in several:
            raise ConfigError(f"{setting.key} has several values twice. Received: {typed}.")
        else:
            several[setting.key] = values
    return product(single, several)


def product(single: Sequence[str], several: dict[str, list[str]]) -> list[Point]:
    """Every combination; the last setting changes fastest.

    Args:
        single: Settings with one value, as typed in a command.
        several: Keys to the values that each of them takes.

    Raises:
        ConfigError: There is nothing to combine, or one key is given in both ways.
    """
    if not several:
        raise ConfigError(
            "No setting has several values, so there is nothing to sweep over. "
            f"Received: {' '.join(single) or 'nothing'}. Write key=a,b or key=range(1,4); "
            "one job is started without -m."
        )
    for key in several:
        _check_may_vary(key, several[key], {split(typed).key for typed in single})
    return [
        Point(chosen, (*single, *(f"{key}={value}" for key, value in chosen.items())))
        for values in itertools.product(*(dict.fromkeys(values) for values in several.values()))
        for chosen in [dict(zip(several, values, strict=True))]
    ]


def _check_may_vary(key: str, values: list[str], given_once: set[str]) -> None:
    received = f"Received: {key}={','.join(values)}."
    if key in _ONE_FOR_ALL:
        raise ConfigError(f"{key} is the same for all jobs of a sweep. {received} Give one value.")
    if key in given_once:
        raise ConfigError(f"{key} is given twice, once with several values. {received}")
    if not values:
        raise ConfigError(f"{key} has no value, so the sweep has no job. {received}")


def _values(key: str, text: str) -> list[str] | None:
    """The values of a setting as they would be typed one by one; None where it has only one."""
    try:
        # With a neutral key: what Hydra says about ours, compose says better.
        parsed = OverridesParser.create().parse_override(f"x={text}")
    except HydraException as e:
        if key in _text_keys() or key.partition(".")[0] == "params":
            return None  # Taken letter for letter, or as a Python literal.
        raise unreadable(Override(key, text, f"{key}={text}")) from e
    is_bare_comma = parsed.value_type == ValueType.SIMPLE_CHOICE_SWEEP
    if not parsed.is_sweep_override() or (is_bare_comma and key in _COMMA_MEANS_MORE):
        return None
    if not parsed.is_discrete_sweep():
        raise ConfigError(
            f"An interval has no end of values. Received: {key}={text}. "
            "Write the values, key=a,b, or key=range(start,stop,step)."
        )
    found = parsed.value()
    if isinstance(found, Glob):
        return list(found.filter(group_choices(key)))
    spell = _letters if key in _text_keys() or key == "params" else Transformer.str
    return [spell(value) for value in parsed.sweep_iterator()]


def _letters(value: Any) -> str:
    """A value of a text setting: compose takes these letter for letter, quotes included."""
    if isinstance(value, QuotedString):
        return str(value.text)
    return value if isinstance(value, str) else str(Transformer.str(value))


def _text_keys() -> set[str]:
    return {setting.key for setting in settings(JobConfig) if setting.annotation is str}
