"""What the trials of a TRAIN vary and which is the best, decided before any row is read."""

import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edl_horovod.config.fields import settings
from edl_horovod.config.schema import JobConfig
from edl_horovod.config.search import SAMPLERS, SamplerConfig, SearchConfig
from edl_horovod.config.space import Candidates, Interval
from edl_horovod.config.sweep import Point, Search, product, text_of
from edl_horovod.errors import did_you_mean
from edl_horovod.sql.attributes import Meaning
from edl_horovod.sql.problems import SourcePosition, StatementError
from edl_horovod.sql.statements import Attribute, HparamCandidates, HparamRange

__all__ = ["OF_SWEEP", "TrialsPlan", "plan_trials"]

OF_SWEEP: dict[str, type] = {
    "sweep.direction": str,
    "sweep.metric": str,
    "sweep.num_trials": int,
    "sweep.sampler": str,
    "sweep.seed": int,
}
_DIRECTIONS = ("minimize", "maximize")


@dataclass(frozen=True, kw_only=True)
class TrialsPlan:
    """The trials of a statement."""

    varied: Mapping[str, Attribute]
    """What has several values, by the key of the setting."""
    config: SearchConfig
    is_search: bool
    """Whether Optuna chooses the values; else each combination is a trial."""
    metric_position: SourcePosition
    """Where the statement says the metric, or the first attribute that varies."""

    def points(self, overrides: Sequence[str], values: Mapping[str, Any]) -> list[Point] | Search:
        """Each combination, or what is searched.

        Args:
            overrides: Settings of all trials as typed in a command.
            values: Settings of all trials as values.

        Raises:
            ConfigError: One varies and is given, too.
        """
        if not self.is_search:
            over = {key: attribute.value.values for key, attribute in self.varied.items()}
            return product(overrides, values, over)

        def point(chosen: Mapping[str, Any]) -> Point:
            own = {key: [self._value(key, value)] for key, value in chosen.items()}
            (found,) = product(overrides, values, own)
            return found

        space = {key: _space(key, attribute) for key, attribute in self.varied.items()}
        return Search(space, point, self.config)

    def by_attribute(self, chosen: Mapping[str, str]) -> dict[str, str]:
        """The values of a trial by the names that the statement uses."""
        return {self.varied[key].name: value for key, value in chosen.items()}

    def told(self, num_trials: int) -> str:
        """A sentence about what the trials are."""
        written = ", ".join(f"{it.name}={it.value.written}" for it in self.varied.values())
        how = "chosen by Optuna to" if self.is_search else "one for each combination, to"
        goal = f"{self.config.direction} {self.config.metric}"
        trials = "1 trial" if num_trials == 1 else f"{num_trials} trials"
        return f"{trials}, {how} {goal}: {written}."

    def _value(self, key: str, chosen: Any) -> Any:
        several = self.varied[key].value
        if isinstance(several, HparamRange):
            return chosen
        return next(value for value in several.values if text_of(value) == chosen)


def plan_trials(meaning: Meaning, *, has_validation: bool) -> TrialsPlan | None:
    """Decide what the trials of a training vary; None where it has one.

    Args:
        meaning: Its attributes.
        has_validation: Whether there are rows that the trials can be compared on.

    Raises:
        StatementError: An attribute cannot have these values, or the trials cannot be compared.
    """
    own = {name: each for name, each in meaning.own.items() if name in OF_SWEEP}
    if not meaning.varied:
        for attribute in own.values():
            what = f"{attribute.name} belongs to a sweep, and no attribute has several values."
            hint = "Write HPARAM_RANGE(low, high) or HPARAM_CANDIDATES([a, b]), or leave it out."
            raise StatementError(what, attribute.position, hint=hint)
        return None
    first = next(iter(meaning.varied.values()))
    if not has_validation:
        what = f"{first.name} has several values, and there are no rows to compare the trials on."
        hint = "Write train.split='random', or train.validation_select."
        raise StatementError(what, first.position, hint=hint)
    is_search = "sweep.num_trials" in own
    for key, attribute in meaning.varied.items():
        if isinstance(attribute.value, HparamRange):
            is_search = True
            _check_range(key, attribute)
        else:
            _check_candidates(attribute)
    return TrialsPlan(
        varied=meaning.varied,
        config=_config(own, is_search=is_search),
        is_search=is_search,
        metric_position=own.get("sweep.metric", first).position,
    )


def _config(own: Mapping[str, Attribute], *, is_search: bool) -> SearchConfig:
    """How the best trial is found.

    Raises:
        StatementError: An attribute is wrong, or means nothing here.
    """
    given = {name.removeprefix("sweep."): attribute for name, attribute in own.items()}
    values = {name: attribute.value for name, attribute in given.items()}
    metric = values.get("metric", "loss")
    if "metric" in given and metric != "loss" and "direction" not in given:
        what = f"Nobody can say whether {metric!r} is to be high or low."
        hint = "Write sweep.direction='maximize' or 'minimize', too."
        raise StatementError(what, given["metric"].position, hint=hint)
    for name, allowed in (("direction", _DIRECTIONS), ("sampler", SAMPLERS)):
        if name in given and values[name] not in allowed:
            hint = f"{did_you_mean(values[name], allowed)} Allowed: {', '.join(allowed)}."
            what = f"sweep.{name} cannot be {values[name]!r}."
            raise StatementError(what, given[name].position, hint=hint)
    for name, least in (("num_trials", 1), ("seed", 0)):
        if name in given and values[name] < least:
            what = f"sweep.{name} must be {least} or more."
            raise StatementError(what, given[name].position, hint=f"It is {values[name]}.")
    for name in ("sampler", "seed"):
        if name in given and not is_search:
            what = f"sweep.{name} says how values are chosen, and each combination is a trial here."
            hint = "Leave it out, or write sweep.num_trials, too."
            raise StatementError(what, given[name].position, hint=hint)
    return SearchConfig(
        metric=metric,
        direction=values.get("direction", SearchConfig.direction),
        n_trials=values.get("num_trials", SearchConfig.n_trials),
        sampler=SamplerConfig(
            name=values.get("sampler", SamplerConfig.name), seed=values.get("seed")
        ),
    )


def _check_range(key: str, attribute: Attribute) -> None:
    """Refuse a range for a setting that takes no numbers, or no fractions.

    Raises:
        StatementError: It is for such a one.
    """
    kinds = _kinds(key)
    if kinds is None:
        return
    if not kinds & {int, float}:
        what = f"{attribute.name} takes no number, and so no range."
        raise StatementError(what, attribute.position, hint="Write HPARAM_CANDIDATES([a, b]).")
    if float not in kinds and not _is_whole(attribute.value):
        what = f"{attribute.name} takes whole numbers."
        hint = f"The bounds of {attribute.value.written} must be such ones."
        raise StatementError(what, attribute.position, hint=hint)


def _check_candidates(attribute: Attribute) -> None:
    texts = [text_of(value) for value in attribute.value.values]
    for at, text in enumerate(texts):
        if text in texts[:at]:
            what = f"{attribute.name} has the candidate {text} twice."
            raise StatementError(what, attribute.position, hint="Leave one out.")


def _space(key: str, attribute: Attribute) -> Interval | Candidates:
    several = attribute.value
    written = f"{attribute.name}={several.written}"
    if isinstance(several, HparamCandidates):
        return Candidates(names=tuple(map(text_of, several.values)), written=written)
    return Interval(
        low=several.low,
        high=several.high,
        is_whole=_is_whole(several) and float not in (_kinds(key) or ()),
        is_log=several.is_log,
        written=written,
    )


def _kinds(key: str) -> set[Any] | None:
    """The types of a setting; None of a parameter, which only its model knows."""
    found = {each.key: each.annotation for each in settings(JobConfig)}.get(key)
    return None if found is None else {found, *typing.get_args(found)}


def _is_whole(several: HparamRange) -> bool:
    return isinstance(several.low, int) and isinstance(several.high, int)
