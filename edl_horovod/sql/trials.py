"""Plans the trials of a TRAIN, runs them one after the other, and chooses the best."""

import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edl_horovod.config.fields import settings
from edl_horovod.config.schema import SAMPLERS, JobConfig, SamplerConfig, SearchConfig
from edl_horovod.config.sweep import Candidates, Interval, Point, Search, product, text_of
from edl_horovod.errors import ConfigError, EdlError, Interrupted, JobFailed, did_you_mean
from edl_horovod.sql.attributes import SortedAttributes
from edl_horovod.sql.context import StatementContext
from edl_horovod.sql.jobs import StatementJob
from edl_horovod.sql.models import MODEL, Trial
from edl_horovod.sql.settings import SqlSettings
from edl_horovod.sql.statements import (
    Attribute,
    HparamCandidates,
    HparamRange,
    SourcePosition,
    StatementError,
)
from edl_horovod.sweeps import run as sweeps

SWEEP_OPTIONS: dict[str, type] = {
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
    """Attributes with several values, by setting."""
    config: SearchConfig
    is_search: bool
    """Whether Optuna chooses the values; else each combination of values is a trial."""
    metric_position: SourcePosition
    """The position of `sweep.metric`, or else of the first attribute that varies."""

    def points(self, overrides: Sequence[str], values: Mapping[str, Any]) -> list[Point] | Search:
        """All combinations of values, or the search that chooses them.

        Args:
            overrides: Settings of all trials as typed on the command line.
            values: Other settings of all trials, by keys with dots.

        Raises:
            ConfigError: A setting varies, but also has a single value.
        """
        if not self.is_search:
            over = {key: attribute.value.values for key, attribute in self.varied.items()}
            return product(overrides, values, over)

        def point(chosen: Mapping[str, Any]) -> Point:
            values_of_trial = {key: [self._value(key, value)] for key, value in chosen.items()}
            (trial_point,) = product(overrides, values, values_of_trial)
            return trial_point

        space = {key: _search_space(key, attribute) for key, attribute in self.varied.items()}
        return Search(space, point, self.config)

    def by_attribute(self, chosen: Mapping[str, str]) -> dict[str, str]:
        """The values of a trial by the names of attributes in the statement."""
        return {self.varied[key].name: value for key, value in chosen.items()}

    def _value(self, key: str, chosen: Any) -> Any:
        hyperparameter = self.varied[key].value
        if isinstance(hyperparameter, HparamRange):
            return chosen
        return next(value for value in hyperparameter.values if text_of(value) == chosen)


@dataclass(frozen=True, kw_only=True)
class PreparedTrials:
    """Trials whose settings are checked."""

    plan: TrialsPlan
    points: list[Point] | Search
    first: JobConfig
    """The settings of the first trial."""
    num_trials: int

    @property
    def description(self) -> str:
        """A sentence that describes the trials."""
        varied, config = self.plan.varied.values(), self.plan.config
        written = ", ".join(f"{attribute.name}={attribute.value.written}" for attribute in varied)
        method = "chosen by Optuna to" if self.plan.is_search else "one for each combination, to"
        trials = "1 trial" if self.num_trials == 1 else f"{self.num_trials} trials"
        return f"{trials}, {method} {config.direction} {config.metric}: {written}."


@dataclass(frozen=True, kw_only=True)
class TrainingOutcome:
    """The training that becomes a version of the model: the only one, or the best trial."""

    config: JobConfig
    metrics: dict[str, float]
    chosen: dict[str, str] = field(default_factory=dict)
    """The values of the best trial, by attribute; empty for a single training."""
    trials: tuple[Trial, ...] = ()
    """All trials; none for a single training."""

    @property
    def choice_in_words(self) -> str:
        """The end of a sentence: which trial is the best; empty for a single training."""
        if not self.trials:
            return ""
        return f" with {_values_in_words(self.chosen)}, the best of {len(self.trials)} trials"


def plan_trials(attributes: SortedAttributes, *, has_validation: bool) -> TrialsPlan | None:
    """Decide what the trials of a training vary; None for a single training.

    Args:
        attributes: The attributes of the statement.
        has_validation: Whether there are rows to compare the trials on.

    Raises:
        StatementError: An attribute cannot have these values, or the trials cannot be compared.
    """
    options = {
        name: attribute for name, attribute in attributes.options.items() if name in SWEEP_OPTIONS
    }
    if not attributes.varied:
        for attribute in options.values():
            problem = f"{attribute.name} is for sweeps, and no attribute has several values."
            hint = "Write HPARAM_RANGE(low, high) or HPARAM_CANDIDATES([a, b]), or leave it out."
            raise attribute.error(problem, hint)
        return None
    first = next(iter(attributes.varied.values()))
    if not has_validation:
        problem = (
            f"{first.name} has several values, and there are no rows to compare the trials on."
        )
        raise first.error(problem, "Write train.split='random', or train.validation_select.")
    is_search = "sweep.num_trials" in options
    for key, attribute in attributes.varied.items():
        if isinstance(attribute.value, HparamRange):
            is_search = True
            _check_range(key, attribute)
        else:
            _check_candidates(attribute)
    return TrialsPlan(
        varied=attributes.varied,
        config=_search_config(options, is_search=is_search),
        is_search=is_search,
        metric_position=options.get("sweep.metric", first).position,
    )


def prepare_trials(
    plan: TrialsPlan, settings: SqlSettings, values: Mapping[str, Any], *, is_dry_run: bool = False
) -> PreparedTrials:
    """Check the settings of all trials, without side effects.

    Args:
        plan: What the trials vary.
        settings: The settings of the program.
        values: Settings of all trials; `output` and `job_dir` are parent folders of theirs.
        is_dry_run: Whether nothing will be submitted, so that no cluster is needed.

    Raises:
        ConfigError: A setting is wrong.
        MissingDependency: Optuna must choose values, and is not installed.
    """
    points = plan.points(settings.overrides, settings.complete(values))
    if isinstance(points, Search):
        from edl_horovod.sweeps import search  # Only this needs Optuna.

        _, checked = search.check_search(points, settings.files, may_be_submitted=True)
        num_trials = plan.config.n_trials
    else:
        checked = sweeps.make_plan(points, settings.files, may_be_submitted=True)
        num_trials = len(checked.jobs)
    for config in checked.configs:
        StatementContext.check_target(config, is_dry_run=is_dry_run)
    first = checked.configs[0]
    return PreparedTrials(plan=plan, points=points, first=first, num_trials=num_trials)


def run_trials(
    prepared: PreparedTrials, context: StatementContext, job: StatementJob
) -> TrainingOutcome:
    """Run the trials, and move the best model to the folder of the new version.

    Raises:
        EdlError: No trial has the metric, or the statement is wrong; `Interrupted` if it was ended
            by Ctrl-C or KILL.
    """
    runner, files = _TrialRunner(prepared, context, job), context.settings.files
    if isinstance(prepared.points, Search):
        from edl_horovod.sweeps import search

        result = search.run_search(prepared.points, files, runner, may_be_submitted=True)
    else:
        plan = sweeps.make_plan(prepared.points, files, may_be_submitted=True)
        result = sweeps.run(plan, runner)
    if runner.statement_error is not None:
        raise runner.statement_error
    if result.is_interrupted:
        job.check()
        raise Interrupted("The statement was interrupted; it left nothing behind.")
    best = sweeps.best_of(result, prepared.plan.config)
    if best is None:
        errors = list(dict.fromkeys(trial.error for trial in result.failed))
        first_error = f" The first error: {errors[0]}" if errors else ""
        metric = prepared.plan.config.metric
        raise JobFailed(f"None of {len(result.jobs)} trials has the metric {metric}.{first_error}")
    job.version.mkdir()
    Path(best.output).rename(job.version / MODEL)
    return TrainingOutcome(
        config=runner.configs[best.name],
        metrics=best.metrics,
        chosen=prepared.plan.by_attribute(best.chosen),
        trials=tuple(
            Trial(
                chosen=prepared.plan.by_attribute(trial.chosen),
                state=trial.state,
                metrics=trial.metrics,
                seconds=trial.seconds,
                error=trial.error,
            )
            for trial in result.jobs
        ),
    )


def _search_config(options: Mapping[str, Attribute], *, is_search: bool) -> SearchConfig:
    """The settings of the search.

    Raises:
        StatementError: An option is wrong, or has no meaning here.
    """
    attributes = {name.removeprefix("sweep."): attribute for name, attribute in options.items()}
    values = {name: attribute.value for name, attribute in attributes.items()}
    metric = values.get("metric", "loss")
    if "metric" in attributes and metric != "loss" and "direction" not in attributes:
        problem = f"It is unknown whether {metric!r} should be high or low."
        hint = "Add sweep.direction='maximize' or sweep.direction='minimize'."
        raise attributes["metric"].error(problem, hint)
    for name, allowed in (("direction", _DIRECTIONS), ("sampler", SAMPLERS)):
        if name in attributes and values[name] not in allowed:
            hint = f"{did_you_mean(values[name], allowed)} Allowed: {', '.join(allowed)}."
            raise attributes[name].error(f"sweep.{name} cannot be {values[name]!r}.", hint)
    for name, least in (("num_trials", 1), ("seed", 0)):
        if name in attributes and values[name] < least:
            problem = f"sweep.{name} must be {least} or more."
            raise attributes[name].error(problem, f"It is {values[name]}.")
    for name in ("sampler", "seed"):
        if name in attributes and not is_search:
            problem = (
                f"sweep.{name} is for searches, and here each combination of values is a trial."
            )
            raise attributes[name].error(problem, "Leave it out, or add sweep.num_trials.")
    return SearchConfig(
        metric=metric,
        direction=values.get("direction", SearchConfig.direction),
        n_trials=values.get("num_trials", SearchConfig.n_trials),
        sampler=SamplerConfig(
            name=values.get("sampler", SamplerConfig.name), seed=values.get("seed")
        ),
    )


def _check_range(key: str, attribute: Attribute) -> None:
    """Refuse a range for a setting that takes no numbers, or fractions for a whole number.

    Raises:
        StatementError: The setting does not take such numbers.
    """
    types = _types_of_setting(key)
    if types is None:
        return
    if not types & {int, float}:
        problem = f"{attribute.name} takes no numbers, and so no range."
        raise attribute.error(problem, "Write HPARAM_CANDIDATES([a, b]).")
    if float not in types and not _is_whole(attribute.value):
        hint = f"Write whole numbers as the bounds of {attribute.value.written}."
        raise attribute.error(f"{attribute.name} takes whole numbers.", hint)


def _check_candidates(attribute: Attribute) -> None:
    texts = [text_of(value) for value in attribute.value.values]
    for index, text in enumerate(texts):
        if text in texts[:index]:
            problem = f"{attribute.name} has the candidate {text} twice."
            raise attribute.error(problem, "Leave one out.")


def _search_space(key: str, attribute: Attribute) -> Interval | Candidates:
    hyperparameter = attribute.value
    written = f"{attribute.name}={hyperparameter.written}"
    if isinstance(hyperparameter, HparamCandidates):
        return Candidates(names=tuple(map(text_of, hyperparameter.values)), written=written)
    return Interval(
        low=hyperparameter.low,
        high=hyperparameter.high,
        is_whole=_is_whole(hyperparameter) and float not in (_types_of_setting(key) or ()),
        is_log=hyperparameter.is_log,
        written=written,
    )


def _types_of_setting(key: str) -> set[Any] | None:
    """The types of a setting; None for a model parameter, whose type is unknown."""
    annotation = {field.key: field.annotation for field in settings(JobConfig)}.get(key)
    return None if annotation is None else {annotation, *typing.get_args(annotation)}


def _is_whole(bounds: HparamRange) -> bool:
    return isinstance(bounds.low, int) and isinstance(bounds.high, int)


@dataclass
class _TrialRunner:
    """Runs one trial after another, and reports how each ends."""

    prepared: PreparedTrials
    context: StatementContext
    job: StatementJob
    configs: dict[str, JobConfig] = field(default_factory=dict)
    """Settings of the trials that began, by name."""
    statement_error: EdlError | None = None
    """An error that all trials of the statement would have; ends all of them."""
    has_result: bool = False

    def __call__(self, sweep_job: sweeps.SweepJob, config: JobConfig) -> None:
        """Run a trial.

        Raises:
            EdlError: The trial failed; `Interrupted` if no other one should begin.
        """
        self.job.check()
        self.configs[sweep_job.name] = config
        number = f"trial {len(self.configs)} of {self.prepared.num_trials}"
        self.job.note_training(number, Path(config.job_dir))
        chosen = self.prepared.plan.by_attribute(sweep_job.chosen)
        self.context.tell(f"{number.capitalize()}: {_values_in_words(chosen)}")
        try:
            result = self.context.run(config, Path(config.data), self.job)
            if (metric := self.prepared.plan.config.metric) not in result.metrics:
                problem = f"The evaluations have no metric {metric!r}."
                hint = f"They have {', '.join(result.metrics) or 'none'}."
                raise StatementError(problem, self.prepared.plan.metric_position, hint=hint)
        except Interrupted:
            raise
        except EdlError as e:
            if isinstance(e, ConfigError) and not self.has_result:
                # No trial has succeeded, so settings that all share are wrong; later, a value is.
                self.statement_error = e
                raise Interrupted("All trials would fail.") from e
            self.context.tell(f"{number.capitalize()} failed: {e}")
            raise
        self.has_result = True
        measured = {name: f"{value:.4g}" for name, value in result.metrics.items()}
        self.context.tell(f"{number.capitalize()} has ended: {_values_in_words(measured)}")


def _values_in_words(values: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={value}" for name, value in values.items())
