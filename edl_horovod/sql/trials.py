"""The trials of a TRAIN: one job after the other on the same rows, and the best of them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edl_horovod.config.schema import JobConfig
from edl_horovod.config.sweep import Point, Search
from edl_horovod.errors import ConfigError, EdlError, Interrupted, JobFailed
from edl_horovod.sql.jobs import StatementJob
from edl_horovod.sql.models import MODEL, Trial
from edl_horovod.sql.problems import StatementError
from edl_horovod.sql.settings import SqlSettings
from edl_horovod.sql.sweeping import TrialsPlan
from edl_horovod.sql.work import Work
from edl_horovod.sweeps import run as sweeps

__all__ = ["PreparedTrials", "Trained", "prepare_trials", "run_trials"]


@dataclass(frozen=True, kw_only=True)
class PreparedTrials:
    """Trials whose settings are checked."""

    plan: TrialsPlan
    points: list[Point] | Search
    first: JobConfig
    """The settings of one of them."""
    num_trials: int

    @property
    def told(self) -> str:
        """A sentence about what they are."""
        return self.plan.told(self.num_trials)


@dataclass(frozen=True, kw_only=True)
class Trained:
    """A training that became a version, or the best of several."""

    config: JobConfig
    metrics: dict[str, float]
    chosen: dict[str, str] = field(default_factory=dict)
    """Of several, the values of the best, by attribute."""
    trials: tuple[Trial, ...] = ()
    """All of several."""

    @property
    def told(self) -> str:
        """Which of several it is, within a sentence."""
        if not self.trials:
            return ""
        return f" with {_joined(self.chosen)}, the best of {len(self.trials)} trials"


def prepare_trials(
    plan: TrialsPlan, settings: SqlSettings, values: Mapping[str, Any]
) -> PreparedTrials:
    """Check the settings of all trials; nothing is written.

    Args:
        plan: What they vary.
        settings: Of the program.
        values: Settings of all of them; `output` and `job_dir` are folders for all of them.

    Raises:
        ConfigError: One is wrong.
        MissingDependency: Optuna is not installed, and it is to choose values.
    """
    points = plan.points(settings.overrides, settings.given(values))
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


def run_trials(prepared: PreparedTrials, work: Work, job: StatementJob) -> Trained:
    """Run the trials, and put the best where the version of the model is made.

    Raises:
        EdlError: None of them has an evaluation, or the statement is wrong; `Interrupted` where
            somebody ended it.
    """
    runner = _Runner(prepared, work, job)
    if isinstance(prepared.points, Search):
        from edl_horovod.sweeps import search

        files = work.settings.files
        result = search.run_search(prepared.points, files, runner, may_be_submitted=True)
    else:
        files = work.settings.files
        plan = sweeps.make_plan(prepared.points, files, may_be_submitted=True)
        result = sweeps.run(plan, runner)
    if runner.mistake is not None:
        raise runner.mistake
    if result.is_interrupted:
        job.check()
        raise Interrupted("The statement was interrupted; nothing of it is left.")
    best = sweeps.best_of(result, prepared.plan.config)
    if best is None:
        errors = list(dict.fromkeys(it.error for it in result.failed))
        why = f" The first error: {errors[0]}" if errors else ""
        metric = prepared.plan.config.metric
        raise JobFailed(f"None of {len(result.jobs)} trials has a {metric} to compare.{why}")
    job.version.mkdir()
    Path(best.output).rename(job.version / MODEL)
    return Trained(
        config=runner.configs[best.name],
        metrics=best.metrics,
        chosen=prepared.plan.by_attribute(best.chosen),
        trials=tuple(_trial(prepared.plan, each) for each in result.jobs),
    )


class _Runner:
    """Runs one trial after another, and tells how each ends."""

    def __init__(self, prepared: PreparedTrials, work: Work, job: StatementJob) -> None:
        self.configs: dict[str, JobConfig] = {}
        """Of the trials that began, by name."""
        self.mistake: EdlError | None = None
        """Why no trial of this statement can do; ends all of them."""
        self._prepared, self._work, self._job = prepared, work, job
        self._has_result = False

    def __call__(self, sweep_job: sweeps.SweepJob, config: JobConfig) -> None:
        """Run a trial.

        Raises:
            EdlError: It failed; `Interrupted` where all are to end.
        """
        self._job.check()
        self.configs[sweep_job.name] = config
        number = f"trial {len(self.configs)} of {self._prepared.num_trials}"
        self._job.show(number, Path(config.job_dir))
        chosen = self._prepared.plan.by_attribute(sweep_job.chosen)
        self._work.tell(f"{number.capitalize()}: {_joined(chosen)}")
        try:
            result = self._work.run(config, Path(config.data), self._job)
            self._check_metric(result.metrics)
        except Interrupted:
            raise
        except ConfigError as e:
            if not self._has_result:
                # The settings are wrong as they would be without trials; later only a value is.
                self.mistake = e
                raise Interrupted("No trial can do.") from e
            self._tell_failure(number, e)
            raise
        except EdlError as e:
            self._tell_failure(number, e)
            raise
        self._has_result = True
        measured = {name: f"{value:.4g}" for name, value in result.metrics.items()}
        self._work.tell(f"{number.capitalize()} has ended: {_joined(measured)}")

    def _check_metric(self, metrics: Mapping[str, float]) -> None:
        metric = self._prepared.plan.config.metric
        if metric not in metrics:
            what = f"The evaluations have no metric {metric!r}."
            hint = f"They have {', '.join(metrics) or 'none'}."
            raise StatementError(what, self._prepared.plan.metric_position, hint=hint)

    def _tell_failure(self, number: str, error: EdlError) -> None:
        self._work.tell(f"{number.capitalize()} failed: {error}")


def _trial(plan: TrialsPlan, job: sweeps.SweepJob) -> Trial:
    return Trial(
        chosen=plan.by_attribute(job.chosen),
        state=job.state,
        metrics=job.metrics,
        seconds=job.seconds,
        error=job.error,
    )


def _joined(values: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={value}" for name, value in values.items())
