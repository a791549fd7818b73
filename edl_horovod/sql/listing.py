"""The statements about models and jobs, which need no database."""

import contextlib
import datetime
import json
import time
from collections.abc import Mapping
from typing import Any

from edl_horovod.errors import EdlError, TimedOut
from edl_horovod.launch.client import Client
from edl_horovod.sql.jobs import JobEntry, find_jobs, request_kill
from edl_horovod.sql.models import ModelStore, StoredModel, Trial
from edl_horovod.sql.problems import StatementError
from edl_horovod.sql.results import Result
from edl_horovod.sql.statements import (
    AlterModel,
    DescribeModel,
    DropModel,
    Kill,
    ShowJobs,
    ShowLog,
    ShowModels,
    ShowTrain,
    ShowTrials,
    Statement,
)

__all__ = ["run_own"]

KILL_SECONDS = 120.0
"""How long KILL waits for a statement to end."""
_LOOK_SECONDS = 0.5


def run_own(statement: Statement, store: ModelStore, *, is_dry_run: bool = False) -> Result:
    """Run a statement about models or jobs.

    Args:
        statement: About models or jobs, as ShowModels.
        store: The models.
        is_dry_run: Only say what would be changed, removed or ended.

    Raises:
        EdlError: A subclass says what went wrong.
    """
    match statement:
        case ShowModels():
            return _models(store)
        case ShowTrain():
            return _training(store.find(statement.model))
        case ShowLog():
            return _log(store.find(statement.model), store)
        case ShowTrials():
            return _trials(store.find(statement.model))
        case AlterModel():
            return _alter(statement, store, is_dry_run=is_dry_run)
        case DescribeModel():
            return _description(store.find(statement.model), store)
        case DropModel():
            return _drop(statement, store, is_dry_run=is_dry_run)
        case ShowJobs():
            return _jobs(store)
        case Kill():
            return _kill(statement, store, is_dry_run=is_dry_run)
    raise AssertionError(f"{type(statement).__name__} is not a statement about models or jobs")


def _models(store: ModelStore) -> Result:
    rows = [
        (
            found.name,
            found.version,
            found.is_live,
            found.about.model_def,
            found.about.framework,
            found.about.label,
            found.about.num_rows,
            _joined(found.about.metrics),
            found.about.trained,
        )
        for found in store.all()
    ]
    of_version = ("name", "version", "live")
    of_training = ("model", "framework", "label", "rows", "metrics", "trained")
    return Result(columns=of_version + of_training, rows=tuple(rows))


def _training(found: StoredModel) -> Result:
    return Result(
        columns=("model", "statement"),
        rows=((str(found), found.about.statement),),
        model=str(found),
        metrics=found.about.metrics,
    )


def _log(found: StoredModel, store: ModelStore) -> Result:
    log = store.log(found)
    names = tuple(dict.fromkeys(name for row in log for name in row.validation))
    rows = [
        (row.step, row.epoch, row.seconds, row.loss, *(row.validation.get(name) for name in names))
        for row in log
    ]
    columns = ("step", "epoch", "seconds", "loss", *(f"validation_{name}" for name in names))
    message = "" if log else f"There is no log of {found}: an earlier release trained it."
    return Result(columns=columns, rows=tuple(rows), message=message, model=str(found))


def _trials(found: StoredModel) -> Result:
    trials = found.about.trials
    chosen = tuple(dict.fromkeys(name for trial in trials for name in trial.chosen))
    metrics = tuple(dict.fromkeys(name for trial in trials for name in trial.metrics))
    rows = [
        (
            number,
            trial.state,
            trial.chosen == found.about.chosen,
            *(trial.chosen.get(name) for name in chosen),
            *(trial.metrics.get(name) for name in metrics),
            trial.seconds,
            trial.error or None,
        )
        for number, trial in enumerate(trials, start=1)
    ]
    measured = tuple(f"validation_{name}" for name in metrics)
    return Result(
        columns=("trial", "state", "best", *chosen, *measured, "seconds", "error"),
        rows=tuple(rows),
        message="" if trials else f"{found} is of one training.",
        model=str(found),
    )


def _description(found: StoredModel, store: ModelStore) -> Result:
    about = found.about
    versions = ", ".join(map(str, store.versions(found.name)))
    rows: list[tuple[str, str, Any]] = [
        ("model", "name", found.name),
        ("model", "version", f"{found.version}{' (live)' if found.is_live else ''}"),
        ("model", "versions", versions),
        ("model", "class", about.model_def),
        ("model", "framework", about.framework),
        ("model", "folder", str(found.trained_model)),
        ("training", "select", about.select),
        ("training", "database", about.database),
        ("training", "rows", about.num_rows),
        ("training", "split", about.split),
        ("training", "trained", about.trained),
        ("training", "seconds", about.seconds),
    ]
    rows += [("told", "", sentence) for sentence in about.told]
    for column in about.columns:
        role = "label" if column.name == about.label else "column"
        declared = f" ({column.declared_type})" if column.declared_type else ""
        rows.append((role, column.name, f"{column.kind}{declared}"))
    rows += [("null", name, f"counts as {value!r}") for name, value in about.nulls.items()]
    rows += [("metric", name, value) for name, value in about.metrics.items()]
    rows += [
        ("held back", f"{metric} of {name}", value)
        for name, metrics in about.baselines.items()
        for metric, value in metrics.items()
    ]
    rows += [("chosen", name, value) for name, value in about.chosen.items()]
    rows += [
        ("trial", str(number), _trial(trial)) for number, trial in enumerate(about.trials, start=1)
    ]
    return Result(
        columns=("part", "name", "value"),
        rows=tuple(rows),
        model=str(found),
        metrics=about.metrics,
    )


def _trial(trial: Trial) -> str:
    """What a trial had and gave, in a line."""
    chosen = ", ".join(f"{name}={value}" for name, value in trial.chosen.items())
    how = f"failed: {trial.error}" if trial.state == "failed" else _joined(trial.metrics)
    return f"{chosen}: {how} ({trial.seconds:.1f} s)" if trial.seconds else f"{chosen}: {how}"


def _joined(metrics: Mapping[str, float]) -> str:
    return ", ".join(f"{name}={value:.6g}" for name, value in metrics.items())


def _alter(statement: AlterModel, store: ModelStore, *, is_dry_run: bool) -> Result:
    found = store.find(statement.model) if is_dry_run else store.set_live(statement.model)
    would = "would be" if is_dry_run else "is"
    return Result(message=f"{found} {would} live.", model=str(found))


def _drop(statement: DropModel, store: ModelStore, *, is_dry_run: bool) -> Result:
    named = statement.model
    if statement.if_exists and named.version is None and not store.exists(named.name):
        return Result(message=f"There is no model {named}.")
    if is_dry_run:
        found = store.find(named)
        what = f"the version {found}" if named.version else f"{named} with all of its versions"
        return Result(message=f"This would remove {what}.")
    store.drop(named)
    return Result(message=f"{named} is removed.")


def _jobs(store: ModelStore) -> Result:
    rows = [
        (
            entry.number,
            entry.what,
            _state(entry),
            datetime.datetime.fromtimestamp(entry.began, datetime.UTC).isoformat(" ", "seconds"),
            str(entry.job_dir) if entry.job_dir.exists() else "",
        )
        for entry in find_jobs(store.folder)
    ]
    return Result(columns=("job", "statement", "state", "began", "job_dir"), rows=tuple(rows))


def _state(entry: JobEntry) -> str:
    if not entry.is_running:
        return "failed"
    if entry.in_cluster is not None:
        with contextlib.suppress(EdlError), entry.in_cluster.client() as client:
            return client.status(entry.in_cluster.name, is_brief=True).state
        return "unknown"
    if not entry.job_dir.exists():
        return "reading rows"
    with contextlib.suppress(OSError, json.JSONDecodeError), Client() as client:
        return client.status(entry.job_dir, is_brief=True).state
    return "running"


def _kill(statement: Kill, store: ModelStore, *, is_dry_run: bool) -> Result:
    found = {entry.number: entry for entry in find_jobs(store.folder) if entry.is_running}
    if statement.job not in found:
        hint = f"Running jobs: {', '.join(map(str, found)) or 'none'}."
        raise StatementError(f"No job {statement.job} is running.", statement.position, hint=hint)
    if is_dry_run:
        return Result(message=f"This would end {found[statement.job].what}.")
    what = found[statement.job].what
    request_kill(store.folder, statement.job)
    _wait_for_end(store, found[statement.job])
    return Result(message=f"Job {statement.job} ({what}) has ended.")


def _wait_for_end(store: ModelStore, job: JobEntry) -> None:
    """Stop what a statement runs, and wait until its process has let go of its folder.

    Raises:
        TimedOut: It did not.
    """
    deadline = time.monotonic() + KILL_SECONDS
    with Client() as client:
        # A training after another may have begun.
        while running := [it for it in find_jobs(store.folder) if _is_same(it, job)]:
            (job,) = running
            if time.monotonic() > deadline:
                raise TimedOut(
                    f"Job {job.number} ({job.what}) did not end within {KILL_SECONDS:.0f} s.",
                    hint=f"Look into {job.job_dir}, or try again.",
                )
            # Its training may not have begun yet, or be gone by now.
            with contextlib.suppress(EdlError, OSError):
                if job.in_cluster is None and job.job_dir.exists():
                    client.stop(job.job_dir, may_lose_steps=True, wait=False)
            time.sleep(_LOOK_SECONDS)


def _is_same(entry: JobEntry, job: JobEntry) -> bool:
    return entry.number == job.number and entry.is_running
