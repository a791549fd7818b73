"""Sweeps: several trainings, one after another, each in its own folder, and their results."""

import contextlib
import csv
import dataclasses
import hashlib
import io
import json
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from edl_horovod.config import resolved
from edl_horovod.config.compose import compose_sweep
from edl_horovod.config.conf_files import NO_FILES, ConfigFiles
from edl_horovod.config.schema import TARGET_SECTIONS, JobConfig, SearchConfig
from edl_horovod.config.sweep import Point
from edl_horovod.errors import ConfigError, EdlError, Interrupted, OutputError, hint_of
from edl_horovod.files import json_text, marker, output_dir, url_secrets, whole_file
from edl_horovod.job import output_checks
from edl_horovod.job.directory import JobDir, with_job_dir
from edl_horovod.job.events import EvaluationEvent, JobEvent, StepEvent, Tail
from edl_horovod.launch.target import require_attached
from edl_horovod.models import framework_name, job_zoo, lookup
from edl_horovod.models.zoo_files import CODE_SUFFIXES, model_files
from edl_horovod.records import user_dataset
from edl_horovod.records.sources.table import kind_of

_NAME_LENGTH = 80
_WITHOUT_EFFECT = (
    "output",
    "job_dir",
    "overwrite",
    "log_level",
    "resume",
    "checkpoint",
    *TARGET_SECTIONS,
    "model_zoo_source",
    "model_zoo_commit",
    "origins",
)
"""Settings and sections that do not affect a result, so an earlier one stays valid."""
_INPUTS = "inputs.json"
"""A file in the sweep's folder: digests of the inputs of its finished jobs."""
_Inputs = dict[str, str]
"""Digests of a job's inputs, by the setting that names them."""
_WHAT = {
    "data": "the files of data",
    "validation_data": "the files of validation_data",
    "model_def": "the code of the model, or a file that it names,",
    "model": "the files of model.spec",
    "init_from": "the files of init_from",
}


@dataclass(frozen=True, kw_only=True)
class SweepJob:
    """A job of a sweep, and its result."""

    name: str
    """The job's folder in the sweep's output."""
    chosen: dict[str, str]
    """The settings that distinguish it."""
    output: str
    state: str = "waiting"
    """`waiting`, `finished`, `earlier` (finished by an earlier sweep), `failed`, `interrupted`."""
    loss: float | None = None
    """The training loss at the step of `metrics`; without metrics, at the last step."""
    metrics: dict[str, float] = field(default_factory=dict)
    """The metrics of the trained model; empty without `validation_data`."""
    steps: int = 0
    seconds: float = 0.0
    error: str = ""


@dataclass(frozen=True, kw_only=True)
class SweepPlan:
    """The jobs of a sweep, composed and checked."""

    output: str
    jobs: tuple[SweepJob, ...]
    configs: tuple[JobConfig, ...]
    """The settings of each job."""


@dataclass(frozen=True, kw_only=True)
class SweepResult:
    """The results of a sweep, as in `sweep.json` and `sweep.csv` of its output."""

    output: str
    jobs: tuple[SweepJob, ...]

    @property
    def failed(self) -> tuple[SweepJob, ...]:
        """The jobs that ended with an error."""
        return tuple(job for job in self.jobs if job.state == "failed")

    @property
    def is_interrupted(self) -> bool:
        """Whether the user interrupted it before its last job."""
        return any(job.state == "interrupted" for job in self.jobs)


def make_plan(
    points: Sequence[Point],
    files: ConfigFiles = NO_FILES,
    *,
    is_part: bool = False,
    may_be_submitted: bool = False,
) -> SweepPlan:
    """Compose and check the settings of all jobs, before the first one starts.

    Args:
        points: The combinations of settings; their `output` is the folder of the whole sweep.
        files: The user's files of settings.
        is_part: Whether the sweep has further points, so that names of folders must differ from
            theirs.
        may_be_submitted: Whether the caller can also run jobs that are submitted to a cluster.

    Raises:
        ConfigError: A job's settings are wrong.
        OutputError: A folder has the result of other settings, is not a sweep's, or is an input of
            the jobs.
    """
    composed = compose_sweep([(point.overrides, point.values) for point in points], files)
    configs = [framework_name.with_framework(config) for config in composed]
    for config in configs if not may_be_submitted else ():
        require_attached(config)
    output = configs[0].output
    _check_folder(Path(output))
    for config in configs:
        output_checks.check_paths(with_job_dir(config))
    # The chosen values are in names of folders and in the table, so they must not have secrets.
    all_chosen = [
        {key: url_secrets.without_secrets(value) for key, value in point.chosen.items()}
        for point in points
    ]
    names = _names(all_chosen, is_part=is_part)
    recorded = _recorded_inputs(Path(output))
    known_inputs: dict[tuple[str, ...], str] = {}
    jobs, placed = [], []
    for name, chosen, config in zip(names, all_chosen, configs, strict=True):
        job_dir = config.job_dir and f"{config.job_dir}/{name}"
        config = replace(config, output=f"{output}/{name}", job_dir=job_dir)
        job = SweepJob(name=name, chosen=chosen, output=config.output)
        if _is_done(config):
            _check_inputs(config, recorded.get(name), _inputs_of(config, known_inputs))
            job = _read_back(job, config, state="earlier")
        jobs.append(job)
        placed.append(config)
    return SweepPlan(output=output, jobs=tuple(jobs), configs=tuple(placed))


def run(plan: SweepPlan, run_job: Callable[[SweepJob, JobConfig], object]) -> SweepResult:
    """Run the jobs one after another; one that fails does not stop the others.

    `sweep.json` and `sweep.csv` are written after each of them.

    Args:
        plan: The plan of the sweep.
        run_job: Runs a job to its end; may raise an `EdlError` if the job fails, and
            `Interrupted` to end the sweep.

    Raises:
        OutputError: The table cannot be written.
    """
    result = SweepResult(output=plan.output, jobs=plan.jobs)
    _write(result)
    for number, (job, config) in enumerate(zip(plan.jobs, plan.configs, strict=True)):
        if job.state != "waiting":
            continue
        ended = _run_one(job, config, run_job)
        jobs = (*result.jobs[:number], ended, *result.jobs[number + 1 :])
        result = replace(result, jobs=jobs)
        _write(result)
        if result.is_interrupted:
            break
    return result


def value_of(job: SweepJob, metric: str) -> float:
    """The job's value of the metric; NaN if it failed.

    Raises:
        ConfigError: The evaluations have no such metric.
    """
    if job.metrics and metric not in job.metrics:
        raise ConfigError(
            f"The evaluations have no metric {metric!r}; they have {', '.join(job.metrics)}.",
            received={"hydra.sweeper.metric": metric},
            hint="Set it to one of these.",
        )
    return job.metrics.get(metric, math.nan)


def best_of(result: SweepResult, config: SearchConfig) -> SweepJob | None:
    """The job with the best value of the metric; None if no job has a finite one."""
    sign = 1 if config.direction == "minimize" else -1
    finite = [job for job in result.jobs if math.isfinite(value_of(job, config.metric))]
    return min(finite, key=lambda job: sign * value_of(job, config.metric), default=None)


def _run_one(
    job: SweepJob, config: JobConfig, run_job: Callable[[SweepJob, JobConfig], object]
) -> SweepJob:
    folder = Path(config.output).parent
    inputs = _inputs_of(config, {})  # Computed first: they may change while the job runs.
    _record_inputs(folder, job.name, None)
    try:
        run_job(job, config)
    except (Interrupted, KeyboardInterrupt):
        return replace(job, state="interrupted")
    except EdlError as error:
        return replace(job, state="failed", error=str(error))
    _record_inputs(folder, job.name, inputs)
    return _read_back(job, config, state="finished")


def _read_back(job: SweepJob, config: JobConfig, *, state: str) -> SweepJob:
    """Add the results in a job's events; the events of an earlier job may be lost."""
    loss = None
    began: float | None = None
    evaluated: list[tuple[dict[str, float], float | None]] = []
    for time, _, event in Tail(JobDir.of(with_job_dir(config)).events).new_events():
        began = time if began is None else began
        match event:
            case StepEvent():
                loss = event.loss
            case EvaluationEvent():
                evaluated.append((event.metrics, loss))
            case JobEvent(state="finished"):
                # With restore_best, the metrics may belong to an earlier evaluation.
                of_metrics = (
                    loss_then for metrics, loss_then in evaluated[::-1] if metrics == event.metrics
                )
                steps, metrics = event.steps or 0, event.metrics or {}
                seconds = round(time - began, 3)
                final = next(of_metrics, loss)
                job = replace(job, loss=final, metrics=metrics, steps=steps, seconds=seconds)
    return replace(job, state=state)


def _is_done(config: JobConfig) -> bool:
    """Whether the job's folder has its result already.

    Raises:
        OutputError: It holds the result of other settings.
    """
    output = Path(config.output)
    if config.overwrite or not (output / "trained_model.pb").is_file():
        return False
    before = result_settings(resolved.load(output / resolved.FILE_NAME))
    now = result_settings(config)
    other = [key for key in now if now[key] != before.get(key)]
    if other:
        shown = ", ".join(f"{key}={before.get(key)!r}, now {now[key]!r}" for key in other[:3])
        raise OutputError(
            f"{output} holds the result of other settings.",
            received=shown,
            hint="Give another output, or overwrite=true to train all jobs again.",
        )
    return True


def _check_inputs(config: JobConfig, before: _Inputs | None, now: _Inputs) -> None:
    """Check that the inputs of a finished job have not changed since.

    Raises:
        OutputError: It is not, or that is not known.
    """
    hint = "Give another output, or overwrite=true to train all jobs again."
    if before is None:
        raise OutputError(
            f"Nothing says which data and model the result in {config.output} was trained with.",
            received={"output": config.output},
            hint=f"An earlier version trained it, or its sweep was killed. {hint}",
        )
    other = [key for key in now if now[key] != before.get(key)]
    if other:
        changed = " and ".join(_WHAT[key] for key in other)
        raise OutputError(
            f"{changed[0].upper()}{changed[1:]} changed after the result in {config.output} was"
            " trained.",
            received={key: getattr(config, key) for key in other},
            hint=hint,
        )


def _inputs_of(config: JobConfig, known: dict[tuple[str, ...], str]) -> _Inputs:
    """Digests of a job's inputs by setting; empty if there is no input, or it cannot change.

    `known` has those of other jobs, so that inputs which several jobs share are read once.
    """
    data = [config.data, config.validation_data]
    for pattern in data:
        if (pattern,) not in known:
            known[pattern,] = kind_of(pattern).state(pattern) if pattern else ""
    digests = {"data": known[config.data,], "validation_data": known[config.validation_data,]}
    digests["init_from"] = _states_below([config.init_from])
    sources = list(job_zoo.sources(config))
    if sources == [("model_zoo", config.model_zoo)]:
        key = (config.model_zoo, config.model_def, *data)
        if key not in known:
            known[key] = _code_of(config.model_zoo, config.model_def, data)
        digests["model_def"] = known[key]
    elif sources:
        digests["model"] = _states_below([path for _, path in sources])
    return digests


def _code_of(model_zoo: str, model_def: str, data: Sequence[str]) -> str:
    """A digest of a model's code, and of code beside it that yields records."""
    scheme = f"{user_dataset.SCHEME}:"
    names = [pattern.removeprefix(scheme) for pattern in data if pattern.startswith(scheme)]
    modules = [name.rpartition(".")[0] for name in names]
    digest = hashlib.sha256()
    try:
        files = model_files(lookup.require_zoo(model_zoo), model_def, modules)
    except EdlError:
        return ""  # The job itself reports the error.
    for file in files:
        is_code = file.suffix in CODE_SUFFIXES
        content = file.read_bytes() if is_code else _states_below([str(file)]).encode()
        digest.update(f"{file}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()


def _states_below(paths: Sequence[str]) -> str:
    """A digest of the names, sizes and times of files, and of those in folders."""
    statuses = [(path, os.stat(path)) for path in sorted(_files_below(paths))]
    states = [[path, status.st_size, status.st_mtime_ns] for path, status in statuses]
    return hashlib.sha256(json.dumps(states).encode()).hexdigest() if states else ""


def _files_below(paths: Sequence[str]) -> Iterator[str]:
    for path in paths:
        if os.path.isfile(path):
            yield path
        for folder, _, names in os.walk(path):
            yield from (os.path.join(folder, name) for name in names)


def _recorded_inputs(folder: Path) -> dict[str, _Inputs]:
    """The digests of the inputs of a sweep's finished jobs, by the names of the jobs."""
    with contextlib.suppress(OSError, ValueError):
        inputs = json.loads((folder / _INPUTS).read_bytes())
        if isinstance(inputs, dict):
            return inputs
    return {}


def _record_inputs(folder: Path, name: str, inputs: Mapping[str, str] | None) -> None:
    """Save the digests of a finished job's inputs; with None, remove those of an earlier run."""
    others = {key: value for key, value in _recorded_inputs(folder).items() if key != name}
    with output_dir.writing(folder):
        whole_file.write_json(
            folder / _INPUTS, others | ({name: dict(inputs)} if inputs is not None else {})
        )


def result_settings(config: JobConfig) -> dict[str, Any]:
    """The settings that affect a result, by keys with dots, without secrets."""
    # A finished job names the local copy of its zoo; compare the name that the user gave.
    flat: dict[str, Any] = {**job_zoo.as_named(config)}
    for key, value in resolved.to_dict(config).items():
        if key in (*_WITHOUT_EFFECT, *flat):
            continue
        if key == "framework" and not value:  # Not known before the zoo is fetched.
            continue
        if isinstance(value, dict) and key != "params":
            flat |= {f"{key}.{name}": inner for name, inner in value.items()}
        else:
            flat[key] = value
    return flat


def _check_folder(output: Path) -> None:
    output_dir.check_name(output)
    with output_dir.writing(output):
        if (output / "trained_model.pb").exists():
            raise OutputError(
                "The output of a sweep is a folder of many results, and this is a trained model.",
                received={"output": output},
                hint="Give the name of another folder.",
            )
        if output.exists() and (not output.is_dir() or any(output.iterdir())):
            claim_folder(output)


def claim_folder(output: Path) -> None:
    """Create a sweep's folder, or use one that belongs to a sweep.

    Raises:
        OutputError: It holds something else.
    """
    marker.claim(output, "sweep", received=f"output={str(output)!r}")


def _names(all_chosen: Sequence[dict[str, str]], *, is_part: bool) -> list[str]:
    """Choose a folder's name for each job from its own values, independent of other jobs.

    So a sweep that is widened later finds its earlier results again. Where the others are unknown,
    any name that does not hold its values as they are has a digest of them.
    """
    keys = list(all_chosen[0])
    leaves = [key.rpartition(".")[2] for key in keys]
    shown = leaves if len(set(leaves)) == len(leaves) else keys
    raw = [
        "_".join(f"{label}={chosen[key]}" for label, key in zip(shown, keys, strict=True))
        for chosen in all_chosen
    ]
    names = [re.sub(r"[^\w=.+-]+", "_", text, flags=re.ASCII).strip("_") for text in raw]
    return [
        name
        if len(name) <= _NAME_LENGTH and names.count(name) == 1 and (name == text or not is_part)
        else f"{name[:_NAME_LENGTH]}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
        for name, text in zip(names, raw, strict=True)
    ]


def _write(result: SweepResult) -> None:
    output = Path(result.output)
    try:
        claim_folder(output)
        text = json_text.dumps(dataclasses.asdict(result), indent=2)
        whole_file.write_text(output / "sweep.json", f"{text}\n")
        whole_file.write_text(output / "sweep.csv", _as_csv(result))
    except OSError as error:
        raise OutputError(
            f"The table of the sweep cannot be written: {error}.",
            received={"output": result.output},
            hint=hint_of(error),
        ) from error


def _as_csv(result: SweepResult) -> str:
    metrics = list(dict.fromkeys(name for job in result.jobs for name in job.metrics))
    fixed = ("state", "loss", "steps", "seconds", "output", "error")
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(
        ["name", *result.jobs[0].chosen, *fixed, *(f"metrics.{name}" for name in metrics)]
    )
    for job in result.jobs:
        numbers = [job.metrics.get(name, "") for name in metrics]
        values = ["" if (value := getattr(job, name)) is None else value for name in fixed]
        writer.writerow([job.name, *job.chosen.values(), *values, *numbers])
    return stream.getvalue()
