"""Runs the statements about models and jobs, which need no database: SHOW, DROP, KILL and so on."""

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
    StatementError,
)

__all__ = ["run_catalog_statement"]

KILL_SECONDS = 120.0
"""The time that KILL waits for a statement to end."""
_POLL_SECONDS = 0.5


def run_catalog_statement(
    statement: Statement, store: ModelStore, *, is_dry_run: bool = False
) -> Result:
    """Run a statement about models or jobs.

    Args:
        statement: A statement such as ShowModels.
        store: The store of models.
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
            stored.name,
            stored.version,
            stored.is_live,
            stored.about.model_def,
            stored.about.framework,
            stored.about.label,
            stored.about.num_rows,
            _metrics_in_words(stored.about.metrics),
            stored.about.trained,
        )
        for stored in store.all()
    ]
    version_columns = ("name", "version", "live")
    training_columns = ("model", "framework", "label", "rows", "metrics", "trained")
    return Result(columns=version_columns + training_columns, rows=tuple(rows))


def _training(stored: StoredModel) -> Result:
    return Result(
        columns=("model", "statement"),
        rows=((str(stored), stored.about.statement),),
        model=str(stored),
        metrics=stored.about.metrics,
    )


def _log(stored: StoredModel, store: ModelStore) -> Result:
    log = store.log(stored)
    names = tuple(dict.fromkeys(name for row in log for name in row.validation))
    rows = [
        (row.step, row.epoch, row.seconds, row.loss, *(row.validation.get(name) for name in names))
        for row in log
    ]
    columns = ("step", "epoch", "seconds", "loss", *(f"validation_{name}" for name in names))
    message = "" if log else f"{stored} has no log, because an earlier release trained it."
    return Result(columns=columns, rows=tuple(rows), message=message, model=str(stored))


def _trials(stored: StoredModel) -> Result:
    trials = stored.about.trials
    chosen = tuple(dict.fromkeys(name for trial in trials for name in trial.chosen))
    metrics = tuple(dict.fromkeys(name for trial in trials for name in trial.metrics))
    rows = [
        (
            number,
            trial.state,
            trial.chosen == stored.about.chosen,
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
        message="" if trials else f"{stored} comes from a single training.",
        model=str(stored),
    )


def _description(stored: StoredModel, store: ModelStore) -> Result:
    about = stored.about
    versions = ", ".join(map(str, store.versions(stored.name)))
    rows: list[tuple[str, str, Any]] = [
        ("model", "name", stored.name),
        ("model", "version", f"{stored.version}{' (live)' if stored.is_live else ''}"),
        ("model", "versions", versions),
        ("model", "class", about.model_def),
        ("model", "framework", about.framework),
        ("model", "folder", str(stored.trained_model)),
        ("training", "select", about.select),
        ("training", "database", about.database),
        ("training", "rows", about.num_rows),
        ("training", "split", about.split),
        ("training", "trained", about.trained),
        ("training", "seconds", about.seconds),
    ]
    rows += [("told", "", sentence) for sentence in about.notes]
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
        ("trial", str(number), _trial_in_words(trial))
        for number, trial in enumerate(about.trials, start=1)
    ]
    return Result(
        columns=("part", "name", "value"),
        rows=tuple(rows),
        model=str(stored),
        metrics=about.metrics,
    )


def _trial_in_words(trial: Trial) -> str:
    """The values of a trial and its outcome, in a line."""
    chosen = ", ".join(f"{name}={value}" for name, value in trial.chosen.items())
    outcome = (
        f"failed: {trial.error}" if trial.state == "failed" else _metrics_in_words(trial.metrics)
    )
    return (
        f"{chosen}: {outcome} ({trial.seconds:.1f} s)" if trial.seconds else f"{chosen}: {outcome}"
    )


def _metrics_in_words(metrics: Mapping[str, float]) -> str:
    return ", ".join(f"{name}={value:.6g}" for name, value in metrics.items())


def _alter(statement: AlterModel, store: ModelStore, *, is_dry_run: bool) -> Result:
    stored = store.find(statement.model) if is_dry_run else store.set_live(statement.model)
    verb = "would be" if is_dry_run else "is"
    return Result(message=f"{stored} {verb} live.", model=str(stored))


def _drop(statement: DropModel, store: ModelStore, *, is_dry_run: bool) -> Result:
    model = statement.model
    if statement.if_exists and model.version is None and not store.exists(model.name):
        return Result(message=f"The model {model} does not exist.")
    if is_dry_run:
        stored = store.find(model)
        removed = f"the version {stored}" if model.version else f"{model} with all of its versions"
        return Result(message=f"This would remove {removed}.")
    store.drop(model)
    return Result(message=f"{model} is removed.")


def _jobs(store: ModelStore) -> Result:
    rows = [
        (
            entry.number,
            entry.title,
            _job_state(entry),
            datetime.datetime.fromtimestamp(entry.began, datetime.UTC).isoformat(" ", "seconds"),
            str(entry.job_dir) if entry.job_dir.exists() else "",
        )
        for entry in find_jobs(store.folder)
    ]
    return Result(columns=("job", "statement", "state", "began", "job_dir"), rows=tuple(rows))


def _job_state(entry: JobEntry) -> str:
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
    running = {entry.number: entry for entry in find_jobs(store.folder) if entry.is_running}
    if statement.job not in running:
        hint = f"Running jobs: {', '.join(map(str, running)) or 'none'}."
        raise StatementError(f"No job {statement.job} is running.", statement.position, hint=hint)
    if is_dry_run:
        return Result(message=f"This would end {running[statement.job].title}.")
    description = running[statement.job].title
    request_kill(store.folder, statement.job)
    _wait_for_end(store, running[statement.job])
    return Result(message=f"Job {statement.job} ({description}) has ended.")


def _wait_for_end(store: ModelStore, job: JobEntry) -> None:
    """Stop the training of a statement, and wait until its process has released the job.

    Raises:
        TimedOut: The statement has not ended in time.
    """
    deadline = time.monotonic() + KILL_SECONDS
    with Client() as client:
        # The statement may have begun its next training.
        while entries := [
            entry for entry in find_jobs(store.folder) if _is_still_running(entry, job)
        ]:
            (job,) = entries
            if time.monotonic() > deadline:
                raise TimedOut(
                    f"Job {job.number} ({job.title}) did not end within {KILL_SECONDS:.0f} s.",
                    hint=f"Look into {job.job_dir}, or try again.",
                )
            # The training may not have begun yet, or may have ended.
            with contextlib.suppress(EdlError, OSError):
                if job.in_cluster is None and job.job_dir.exists():
                    client.stop(job.job_dir, may_lose_steps=True, wait=False)
            time.sleep(_POLL_SECONDS)


def _is_still_running(entry: JobEntry, job: JobEntry) -> bool:
    return entry.number == job.number and entry.is_running
