"""Runs the trials of a TRAIN: one job after the other on the same rows, then chooses the best."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edl_horovod.config.schema import JobConfig
from edl_horovod.config.sweep import Point, Search
from edl_horovod.errors import ConfigError, EdlError, Interrupted, JobFailed
from edl_horovod.sql.jobs import StatementJob
from edl_horovod.sql.models import MODEL, Trial
from edl_horovod.sql.settings import SqlSettings
from edl_horovod.sql.statements import StatementError
from edl_horovod.sql.sweeping import TrialsPlan
from edl_horovod.sql.work import Work
from edl_horovod.sweeps import run as sweeps

__all__ = ["PreparedTrials", "TrainingOutcome", "prepare_trials", "run_trials"]


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
        return self.plan.describe(self.num_trials)


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


def prepare_trials(
    plan: TrialsPlan, settings: SqlSettings, values: Mapping[str, Any]
) -> PreparedTrials:
    """Check the settings of all trials, without side effects.

    Args:
        plan: What the trials vary.
        settings: The settings of the program.
        values: Settings of all trials; `output` and `job_dir` are parent folders of theirs.

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
        Work.check_place(config)
    first = checked.configs[0]
    return PreparedTrials(plan=plan, points=points, first=first, num_trials=num_trials)


def run_trials(prepared: PreparedTrials, work: Work, job: StatementJob) -> TrainingOutcome:
    """Run the trials, and move the best model to the folder of the new version.

    Raises:
        EdlError: No trial has the metric, or the statement is wrong; `Interrupted` if it was ended
            by Ctrl-C or KILL.
    """
    runner = _TrialRunner(prepared, work, job)
    if isinstance(prepared.points, Search):
        from edl_horovod.sweeps import search

        files = work.settings.files
        result = search.run_search(prepared.points, files, runner, may_be_submitted=True)
    else:
        files = work.settings.files
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
        trials=tuple(_trial_record(prepared.plan, trial) for trial in result.jobs),
    )


class _TrialRunner:
    """Runs one trial after another, and reports how each ends."""

    def __init__(self, prepared: PreparedTrials, work: Work, job: StatementJob) -> None:
        self.configs: dict[str, JobConfig] = {}
        """Settings of the trials that began, by name."""
        self.statement_error: EdlError | None = None
        """An error that all trials of the statement would have; ends all of them."""
        self._prepared, self._work, self._job = prepared, work, job
        self._has_result = False

    def __call__(self, sweep_job: sweeps.SweepJob, config: JobConfig) -> None:
        """Run a trial.

        Raises:
            EdlError: The trial failed; `Interrupted` if no other one should begin.
        """
        self._job.check()
        self.configs[sweep_job.name] = config
        number = f"trial {len(self.configs)} of {self._prepared.num_trials}"
        self._job.show(number, Path(config.job_dir))
        chosen = self._prepared.plan.by_attribute(sweep_job.chosen)
        self._work.tell(f"{number.capitalize()}: {_values_in_words(chosen)}")
        try:
            result = self._work.run(config, Path(config.data), self._job)
            self._check_metric(result.metrics)
        except Interrupted:
            raise
        except ConfigError as e:
            if not self._has_result:
                # No trial has succeeded, so settings that all share are wrong; later, a value is.
                self.statement_error = e
                raise Interrupted("All trials would fail.") from e
            self._tell_failure(number, e)
            raise
        except EdlError as e:
            self._tell_failure(number, e)
            raise
        self._has_result = True
        measured = {name: f"{value:.4g}" for name, value in result.metrics.items()}
        self._work.tell(f"{number.capitalize()} has ended: {_values_in_words(measured)}")

    def _check_metric(self, metrics: Mapping[str, float]) -> None:
        metric = self._prepared.plan.config.metric
        if metric not in metrics:
            problem = f"The evaluations have no metric {metric!r}."
            hint = f"They have {', '.join(metrics) or 'none'}."
            raise StatementError(problem, self._prepared.plan.metric_position, hint=hint)

    def _tell_failure(self, number: str, error: EdlError) -> None:
        self._work.tell(f"{number.capitalize()} failed: {error}")


def _trial_record(plan: TrialsPlan, job: sweeps.SweepJob) -> Trial:
    return Trial(
        chosen=plan.by_attribute(job.chosen),
        state=job.state,
        metrics=job.metrics,
        seconds=job.seconds,
        error=job.error,
    )


def _values_in_words(values: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={value}" for name, value in values.items())
