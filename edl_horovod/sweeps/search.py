"""A search by Optuna: each job's settings are chosen by the results of earlier jobs.

The study is a file in the sweep's folder, so the same command goes on with it.
"""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from edl_horovod.config.conf_files import ConfigFiles
from edl_horovod.config.schema import JobConfig, SearchConfig
from edl_horovod.config.sweep import Candidates, Interval, Search
from edl_horovod.errors import ConfigError, MissingDependency, how_to_install
from edl_horovod.files import output_dir, url_secrets
from edl_horovod.sweeps import run as sweeps
from edl_horovod.sweeps.run import SweepJob, SweepPlan, SweepResult

try:
    import optuna
except ModuleNotFoundError as error:
    raise MissingDependency(
        "A search for the best settings needs the package optuna, which is not installed.",
        received=str(error),
        hint=f"To get it, {how_to_install('optuna')}.",
    ) from error

STUDY = "study.journal"
"""The file of the Optuna study, in the sweep's folder."""
_NAME = "edl_horovod"
_SETTINGS = "settings"
"""The attribute of the study with the settings that must not change when it is continued."""
_ENDED = (optuna.trial.TrialState.COMPLETE, optuna.trial.TrialState.WAITING)


def check_search(
    search: Search, files: ConfigFiles, *, may_be_submitted: bool = False
) -> tuple[dict[str, optuna.distributions.BaseDistribution], SweepPlan]:
    """Check a search before its first job; nothing is written.

    Returns:
        What each setting is chosen from, and a plan with each value that may be wrong.

    Raises:
        ConfigError: The settings are wrong.
        OutputError: The folder holds something else.
    """
    space = {key: _distribution(key, parameter) for key, parameter in search.space.items()}
    points = [search.point(values) for values in _extremes(space)]
    plan = sweeps.make_plan(points, files, is_part=True, may_be_submitted=may_be_submitted)
    if not plan.configs[0].validation_data:
        raise ConfigError(
            "A search compares evaluations.",
            received={"validation_data": ""},
            hint="Give validation_data.",
        )
    return space, plan


def run_search(
    search: Search,
    files: ConfigFiles,
    run_job: Callable[[SweepJob, JobConfig], object],
    *,
    may_be_submitted: bool = False,
) -> SweepResult:
    """Run jobs until the study has the requested number.

    Args:
        search: What is searched.
        files: What the user brings.
        run_job: Runs one job to its end; an `EdlError` is its failure, `Interrupted` the search's.
        may_be_submitted: Whether it also waits for jobs that are submitted.

    Raises:
        ConfigError: The settings are wrong or not those of the study that is there, or no
            evaluation has the metric.
        OutputError: The folder holds something else, or cannot be written.
    """
    space, trial_plan = check_search(search, files, may_be_submitted=may_be_submitted)
    config = search.config
    path = Path(trial_plan.output) / STUDY
    with output_dir.writing(path.parent):
        sweeps.claim_folder(path.parent)
        if trial_plan.configs[0].overwrite:
            path.unlink(missing_ok=True)
    study = _open(path, config)
    _check_settings(study, path, _settings(config, space, trial_plan.configs[0]))
    _enqueue_unfinished(study)
    plan_of = _planner(search, files, trial_plan)
    done = study.get_trials(states=(optuna.trial.TrialState.COMPLETE,))
    if ended := {str(trial.params): trial.params for trial in done}:
        plan = plan_of(list(ended.values()))
    else:
        plan = replace(trial_plan, jobs=(), configs=())
    result = SweepResult(output=plan.output, jobs=plan.jobs)
    for _ in range(config.n_trials - len(done)):
        trial = study.ask(space)
        next_plan = plan_of([trial.params])
        if next_plan.jobs[0].name not in [job.name for job in plan.jobs]:
            jobs, configs = (*plan.jobs, *next_plan.jobs), (*plan.configs, *next_plan.configs)
            plan = replace(plan, jobs=jobs, configs=configs)
        result = sweeps.run(plan, run_job)
        if result.is_interrupted:
            break
        plan = replace(plan, jobs=result.jobs)
        (job,) = (job for job in result.jobs if job.name == next_plan.jobs[0].name)
        value = sweeps.value_of(job, config.metric)
        if math.isfinite(value):
            study.tell(trial, value)
        else:
            study.tell(trial, state=optuna.trial.TrialState.FAIL)
    return result


def _open(path: Path, config: SearchConfig) -> optuna.Study:
    """Open the study, or create it."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    samplers: dict[str, Any] = {
        "tpe": optuna.samplers.TPESampler,
        "random": optuna.samplers.RandomSampler,
    }
    study = optuna.create_study(
        study_name=_NAME,
        storage=optuna.storages.JournalStorage(
            optuna.storages.journal.JournalFileBackend(str(path))
        ),
        direction=config.direction,
        load_if_exists=True,
    )
    seed = config.sampler.seed
    if seed is not None:
        seed += len(study.trials)  # A continued study must draw other numbers.
    study.sampler = samplers[config.sampler.name](seed=seed)
    return study


def _settings(
    config: SearchConfig, space: dict[str, optuna.distributions.BaseDistribution], first: JobConfig
) -> dict[str, Any]:
    """The settings on which a study's values depend, in the form in which its file returns them.

    The values of the first job depend on the space alone.
    """
    settings = {
        **sweeps.result_settings(first),
        **{key: str(distribution) for key, distribution in space.items()},
        "hydra.sweeper.metric": config.metric,
        "hydra.sweeper.direction": config.direction,
    }
    copied: dict[str, Any] = json.loads(json.dumps(settings))
    return copied


def _check_settings(study: optuna.Study, path: Path, now: dict[str, Any]) -> None:
    """Save the settings of a new study, or compare those of a continued one.

    Raises:
        ConfigError: The study was made with other settings.
    """
    before = study.user_attrs.get(_SETTINGS)
    if before is None:
        study.set_user_attr(_SETTINGS, now)
        return
    keys = dict.fromkeys([*reversed(now), *before])
    other = [key for key in keys if now.get(key) != before.get(key)]
    if other:
        shown = [f"{key}={before.get(key)!r}, now {now.get(key)!r}" for key in other]
        raise ConfigError(
            f"The study in {path} is one with other settings.",
            received="; ".join(shown[:3]),
            hint="Give another output, or overwrite=true to begin a new study.",
        )


def _enqueue_unfinished(study: optuna.Study) -> None:
    """Enqueue failed and interrupted jobs, so that they run first."""
    again = [trial for trial in study.trials if trial.state not in _ENDED]
    ended = [trial.params for trial in study.trials if trial.state in _ENDED]
    for trial in again:
        if trial.state == optuna.trial.TrialState.RUNNING:
            study.tell(trial.number, state=optuna.trial.TrialState.FAIL)
        if trial.params not in ended:
            study.enqueue_trial(trial.params)
            ended.append(trial.params)


def _planner(
    search: Search, files: ConfigFiles, first: SweepPlan
) -> Callable[[Sequence[Mapping[str, Any]]], SweepPlan]:
    """Create a function that plans jobs by their values, in the folders of the first plan.

    A folder with `${now:...}` in its name would be another one for each plan.
    """
    job_dir = first.configs[0].job_dir
    place = {"output": first.output, "job_dir": job_dir and str(Path(job_dir).parent)}

    def plan(all_values: Sequence[Mapping[str, Any]]) -> SweepPlan:
        points = [search.point(values) for values in all_values]
        points = [replace(point, values={**point.values, **place}) for point in points]
        # `first` was checked for jobs that are submitted.
        return sweeps.make_plan(points, files, is_part=True, may_be_submitted=True)

    return plan


def _distribution(key: str, space: Interval | Candidates) -> optuna.distributions.BaseDistribution:
    """Convert a search space to a distribution of Optuna.

    Raises:
        ConfigError: A candidate holds a secret.
    """
    if isinstance(space, Candidates):
        shown = [url_secrets.without_secrets(name) for name in space.names]
        if shown != list(space.names):
            raise ConfigError(
                f"{key} holds a password or a token, which would be written to {STUDY}.",
                received=f"{key}={','.join(shown)}",
                hint="Leave it out, and let Git find it by a credential helper.",
            )
        return optuna.distributions.CategoricalDistribution(space.names)
    if space.is_whole:
        low, high = int(space.low), int(space.high)
        return optuna.distributions.IntDistribution(low, high, log=space.is_log, step=space.step)
    return optuna.distributions.FloatDistribution(space.low, space.high, log=space.is_log)


def _extremes(space: dict[str, optuna.distributions.BaseDistribution]) -> Iterator[dict[str, Any]]:
    """Values at the bounds of all spaces, to check these before the first job."""
    ends = {key: _bounds(distribution) for key, distribution in space.items()}
    first = {key: values[0] for key, values in ends.items()}
    yield first
    for key, values in ends.items():
        yield from ({**first, key: value} for value in values[1:])


def _bounds(distribution: Any) -> tuple[Any, ...]:
    if isinstance(distribution, optuna.distributions.CategoricalDistribution):
        return tuple(distribution.choices)
    return (distribution.low, distribution.high)
