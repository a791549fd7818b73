"""Expand settings with several values, in Hydra's grammar, to jobs or to the space of a search.

`train.learning_rate=0.1,0.01`, `train.epochs=range(1,4)`, `launch=glob(*)`: each combination is one
job. In lists of files and strings of parameters, where a comma has another meaning, several values
must be written as `choice(...)`.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override as Parsed
from hydra.core.override_parser.types import ValueType
from hydra.errors import HydraException

from edl_horovod.config.compose import sweeper_of
from edl_horovod.config.conf_files import NO_FILES, ConfigFiles
from edl_horovod.config.fields import settings
from edl_horovod.config.keywords import from_keywords
from edl_horovod.config.overrides import hydra_value, split, unreadable
from edl_horovod.config.schema import JobConfig, SearchConfig
from edl_horovod.errors import ConfigError

_KEYS_WITH_COMMAS = ("data", "validation_data", "params")
_SHARED_KEYS = ("output", "job_dir", "overwrite", "log_level")


@dataclass(frozen=True)
class Point:
    """One combination of values."""

    chosen: dict[str, str]
    """The settings that distinguish it from other combinations: keys to values."""
    overrides: tuple[str, ...]
    """All settings, as typed in a command for this job alone."""
    values: Mapping[str, Any] = field(default_factory=dict)
    """Settings that a Python call passes as values."""


@dataclass(frozen=True, kw_only=True)
class Interval:
    """The numbers between two bounds, both included."""

    low: int | float
    high: int | float
    is_whole: bool
    """Whether only whole numbers are chosen; then the bounds are whole numbers, too."""
    is_log: bool = False
    """Whether numbers are chosen uniformly on a logarithmic scale."""
    step: int = 1
    """Difference between neighbouring whole numbers."""
    written: str
    """As the user wrote it."""


@dataclass(frozen=True, kw_only=True)
class Candidates:
    """A list of values."""

    names: tuple[str, ...]
    """The text of each value."""
    written: str
    """As the user wrote it."""


@dataclass(frozen=True)
class Search:
    """Settings for which Optuna searches the best values."""

    space: Mapping[str, Interval | Candidates]
    """The search space of each setting, by key."""
    point: Callable[[Mapping[str, Any]], Point]
    """Returns the job for chosen values: numbers of intervals, names of candidates."""
    config: SearchConfig


def expand(overrides: Sequence[str], files: ConfigFiles = NO_FILES) -> list[Point] | Search:
    """Every combination of values, or with `hydra/sweeper=optuna` the search.

    Args:
        overrides: Settings as typed in a command, including settings of Hydra's sweeper.
        files: The user's own files of settings.

    Raises:
        ConfigError: No setting has several values, or a setting has that may not.
    """
    for_sweeper = [text for text in overrides if text.lstrip("+").startswith("hydra")]
    single, several = _parse([text for text in overrides if text not in for_sweeper])
    params, search, loader = sweeper_of(single, for_sweeper, files)
    single_keys = {split(text).key for text in single} | set(several)
    from_files = {key: text for key, text in params.items() if key not in single_keys}
    file_single, file_several = _parse(_assigned(from_files))
    single, several = [*file_single, *single], {**file_several, **several}
    _check(single, {key: str(parsed.input_line) for key, parsed in several.items()})
    for parsed in several.values():
        parsed.config_loader = loader
    if search is not None:
        space = {key: space_of(key, parsed) for key, parsed in several.items()}
        return Search(space, lambda chosen: _point(single, _assigned(chosen)), search)
    columns = []
    for key, parsed in several.items():
        if not parsed.is_discrete_sweep():
            raise ConfigError(
                "An interval has infinitely many values.",
                received=parsed.input_line,
                hint=(
                    f"Write the values, {key}=a,b, or {key}=range(start,stop,step), or search in"
                    " it with hydra/sweeper=optuna."
                ),
            )
        columns.append([f"{parsed.get_key_element()}={v}" for v in parsed.sweep_string_iterator()])
        if not columns[-1]:
            raise ConfigError(
                f"{key} has no value, so the sweep has no job.", received=parsed.input_line
            )
    return [_point(single, row) for row in dict.fromkeys(itertools.product(*columns))]


def product(
    overrides: Sequence[str], values: Mapping[str, Any], over: Mapping[str, Sequence[Any]]
) -> list[Point]:
    """Every combination of the values in a Python call; the last setting changes fastest.

    Args:
        overrides: Settings of all jobs, as typed in a command.
        values: Settings of all jobs, as values.
        over: The list of values of each setting that varies.

    Raises:
        ConfigError: There is nothing to combine, or a key has one value and several, too.
    """
    for key, several in over.items():
        if isinstance(several, str) or not isinstance(several, Sequence) or not several:
            raise ConfigError(
                "A sweep takes a list of values for each key.",
                received={key: several},
                hint=f"Write {key}=[value, value].",
            )
    _check(
        [*overrides, *_assigned(values)],
        {key: f"{key}={list(several)}" for key, several in over.items()},
    )
    points = {}
    for combination in itertools.product(*over.values()):
        assignment = dict(zip(over, combination, strict=True))
        chosen = {key: text_of(value) for key, value in assignment.items()}
        assignment_overrides, assignment_values = from_keywords(assignment, JobConfig)
        point = Point(chosen, (*overrides, *assignment_overrides), {**values, **assignment_values})
        points[tuple(chosen.values())] = point
    return list(points.values())


def text_of(value: Any) -> str:
    """A value as text for the table of a sweep."""
    return "null" if value is None else str(value)


def space_of(key: str, parsed: Parsed) -> Interval | Candidates:
    """The search space of a setting that Hydra parsed; names of candidates are as typed.

    Raises:
        ConfigError: The setting has no value.
    """
    value, written = parsed.value(), str(parsed.input_line)
    if parsed.is_interval_sweep():
        annotations = {setting.key: setting.annotation for setting in settings(JobConfig)}
        low, high, is_log = value.start, value.end, "log" in value.tags
        if annotations.get(key) is int or all(isinstance(end, int) for end in (low, high)):
            low, high = int(low), int(high)
            return Interval(low=low, high=high, is_whole=True, is_log=is_log, written=written)
        return Interval(low=low, high=high, is_whole=False, is_log=is_log, written=written)
    texts = tuple(parsed.sweep_string_iterator())
    if not texts:
        raise ConfigError(
            f"{key} has no value to choose from.",
            received=written,
            hint=f"Write {key}=choice(a,b) or {key}=interval(low,high).",
        )
    step = parsed.is_range_sweep() and not value.shuffle and value.step
    if isinstance(step, int) and step > 0 and isinstance(value.start, int):
        low, high = value.start, int(texts[-1])
        return Interval(low=low, high=high, is_whole=True, step=step, written=written)
    return Candidates(names=texts, written=written)


def _parse(overrides: Sequence[str]) -> tuple[list[str], dict[str, Parsed]]:
    """Split settings into those with one value, as typed, and those with several, by key."""
    single: list[str] = []
    several: dict[str, Parsed] = {}
    for text in overrides:
        key = split(text).key
        parsed = _sweep_of(text)
        if parsed is None:
            single.append(text)
        elif key in several:
            raise ConfigError(f"{key} has several values twice.", received=text)
        else:
            several[key] = parsed
    return single, several


def _sweep_of(text: str) -> Parsed | None:
    """Hydra's parse of a setting with several values; None for a setting with one value."""
    override = split(text)
    is_text = override.key in _text_keys() or override.key.partition(".")[0] == "params"
    try:
        # The neutral key hides errors about the real key, which composing reports better.
        value = OverridesParser.create().parse_override(f"x={override.value}")
        is_several = value.is_sweep_override()
        if value.value_type == ValueType.SIMPLE_CHOICE_SWEEP and override.key in _KEYS_WITH_COMMAS:
            is_several = False
        return OverridesParser.create().parse_override(text) if is_several else None
    except HydraException as e:
        if is_text:
            return None  # Used verbatim, or as a Python literal.
        raise unreadable(override) from e


def _assigned(values: Mapping[str, Any]) -> list[str]:
    return [f"{key}={value}" for key, value in values.items()]


def _point(single: Sequence[str], assignments: Sequence[str]) -> Point:
    """The combination with some values, in Hydra's grammar, beside settings with one value."""
    chosen: dict[str, str] = {}
    texts: list[str] = []
    for override in map(split, assignments):
        value = override.value
        if override.key in _text_keys() or override.key == "params":
            value = str(hydra_value(f"x={value}", override))
        chosen[override.key] = value
        texts.append(f"{override.prefix}{override.key}={value}")
    return Point(chosen, (*single, *texts))


def _check(single: Sequence[str], several: Mapping[str, str]) -> None:
    """Refuse a sweep with nothing to combine, or over a setting that may not vary."""
    single_keys = {split(text).key for text in single}
    if not several:
        raise ConfigError(
            "No setting has several values, so there is nothing to sweep over.",
            received=" ".join(single) or "nothing",
            hint="Write key=a,b or key=range(1,4); one job is started without -m.",
        )
    for key, received in several.items():
        if key in _SHARED_KEYS:
            raise ConfigError(
                f"{key} is the same for all jobs of a sweep.",
                received=received,
                hint="Give one value.",
            )
        if key in single_keys:
            raise ConfigError(f"{key} is given twice, once with several values.", received=received)


def _text_keys() -> set[str]:
    return {setting.key for setting in settings(JobConfig) if setting.annotation is str}
