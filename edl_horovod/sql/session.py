"""A session, which runs statements on one database one after the other.

The statements about models and jobs (SHOW, DROP, KILL and so on) need no database.
"""

import contextlib
import datetime
import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from edl_horovod.errors import EdlError, TimedOut
from edl_horovod.launch.client import Client
from edl_horovod.sql import statements
from edl_horovod.sql.context import RunJob, StatementContext
from edl_horovod.sql.engine import open_engine
from edl_horovod.sql.evaluation import evaluate, evaluate_columns, explain
from edl_horovod.sql.jobs import JobEntry, find_jobs, request_kill
from edl_horovod.sql.models import ModelStore, StoredModel, Trial
from edl_horovod.sql.parser import parse
from edl_horovod.sql.prediction import predict
from edl_horovod.sql.settings import SqlSettings
from edl_horovod.sql.statements import Result, Statement
from edl_horovod.sql.training import train

KILL_SECONDS = 120.0
"""The time that KILL waits for a statement to end."""
_POLL_SECONDS = 0.5


@contextmanager
def open_session(settings: SqlSettings, run_job: RunJob, **more: Any) -> Iterator["Session"]:
    """Open a session with a database, which is closed when the `with` ends.

    An open transaction is then rolled back, and the user is told so.

    Args:
        settings: The settings of the session.
        run_job: Runs a job and returns its result.
        **more: Other fields of `StatementContext`.

    Raises:
        ConfigError: The URL of the database is malformed or names an unsupported engine.
        MissingDependency: The driver of the database is not installed.
    """
    with open_engine(settings.db, is_confined=settings.is_confined) as engine:
        session = Session(StatementContext(settings, engine, run_job, **more))
        try:
            yield session
        finally:
            if engine.open_transaction:
                session.context.tell(
                    f"The transaction of {engine.open_transaction!r} is rolled back, because it was"
                    " not committed."
                )


class Session:
    """Parses and runs statements; created by `open_session`."""

    def __init__(self, context: StatementContext) -> None:
        self.context = context

    def parse(self, text: str) -> tuple[Statement, ...]:
        """The statements of a program in the database's SQL.

        Raises:
            StatementError: A statement has a syntax error.
        """
        return parse(text, self.context.engine.dialect)

    def run(self, statement: Statement) -> Result:
        """Run one statement.

        Raises:
            EdlError: The statement failed; `Interrupted` after Ctrl-C or KILL.
        """
        context, store = self.context, self.context.store
        opened_by = context.engine.open_transaction
        if opened_by and isinstance(statement, statements.SelectStatement):
            # These statements read rows in a transaction of their own.
            verb = type(statement).__name__.removesuffix("Columns").upper()
            problem = f"{verb} cannot run within a transaction, and {opened_by!r} has opened one."
            raise statement.error(problem, "COMMIT or ROLLBACK it first.")
        match statement:
            case statements.Train():
                return train(context, statement)
            case statements.Predict():
                return predict(context, statement)
            case statements.Evaluate():
                return evaluate(context, statement)
            case statements.EvaluateColumns():
                return evaluate_columns(context, statement)
            case statements.Explain():
                return explain(context, statement)
            case statements.Standard():
                return self._run_standard(statement)
            case statements.ShowModels():
                return _models(store)
            case statements.ShowTrain():
                return _training(store.find(statement.model))
            case statements.ShowLog():
                return _log(store.find(statement.model), store)
            case statements.ShowTrials():
                return _trials(store.find(statement.model))
            case statements.AlterModel():
                return _alter(context, statement)
            case statements.DescribeModel():
                return _description(store.find(statement.model), store)
            case statements.DropModel():
                return _drop(context, statement)
            case statements.ShowJobs():
                return _jobs(store)
            case statements.Kill():
                return _kill(context, statement)
        raise AssertionError(f"{type(statement).__name__} is not handled")

    def _run_standard(self, statement: statements.Standard) -> Result:
        engine = self.context.engine
        if self.context.is_dry_run:
            return Result(message=f"This would run on {engine.label}: {statement.text}")
        return engine.execute(statement.text)


def _models(store: ModelStore) -> Result:
    rows = []
    for stored in store.all():
        about = stored.about
        training = (about.model_def, about.framework, about.label, about.num_rows)
        metrics = _metrics_in_words(about.metrics)
        version = (stored.name, stored.version, stored.is_live)
        rows.append((*version, *training, metrics, about.trained))
    columns = ("name", "version", "live", "model", "framework", "label", "rows", "metrics")
    return Result(columns=(*columns, "trained"), rows=tuple(rows))


def _training(stored: StoredModel) -> Result:
    about, row = stored.about, (str(stored), stored.about.statement)
    columns = ("model", "statement")
    return Result(columns=columns, rows=(row,), model=str(stored), metrics=about.metrics)


def _log(stored: StoredModel, store: ModelStore) -> Result:
    log = store.log(stored)
    names = tuple(dict.fromkeys(name for row in log for name in row.validation))
    rows = [
        (row.step, row.epoch, row.seconds, row.loss, *map(row.validation.get, names)) for row in log
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
            *map(trial.chosen.get, chosen),
            *map(trial.metrics.get, metrics),
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
    for name, metrics in about.baselines.items():
        rows += [("held back", f"{metric} of {name}", value) for metric, value in metrics.items()]
    rows += [("chosen", name, value) for name, value in about.chosen.items()]
    for number, trial in enumerate(about.trials, start=1):
        rows.append(("trial", str(number), _trial_in_words(trial)))
    columns = ("part", "name", "value")
    return Result(columns=columns, rows=tuple(rows), model=str(stored), metrics=about.metrics)


def _trial_in_words(trial: Trial) -> str:
    """The values of a trial and its outcome, in a line."""
    chosen = ", ".join(f"{name}={value}" for name, value in trial.chosen.items())
    is_failed = trial.state == "failed"
    outcome = f"failed: {trial.error}" if is_failed else _metrics_in_words(trial.metrics)
    seconds = f" ({trial.seconds:.1f} s)" if trial.seconds else ""
    return f"{chosen}: {outcome}{seconds}"


def _metrics_in_words(metrics: Mapping[str, float]) -> str:
    return ", ".join(f"{name}={value:.6g}" for name, value in metrics.items())


def _alter(context: StatementContext, statement: statements.AlterModel) -> Result:
    change = context.store.find if context.is_dry_run else context.store.set_live
    stored, verb = change(statement.model), "would be" if context.is_dry_run else "is"
    return Result(message=f"{stored} {verb} live.", model=str(stored))


def _drop(context: StatementContext, statement: statements.DropModel) -> Result:
    model, store = statement.model, context.store
    if statement.if_exists and model.version is None and not store.exists(model.name):
        return Result(message=f"The model {model} does not exist.")
    if context.is_dry_run:
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
    if entry.attached is not None:
        with contextlib.suppress(EdlError), entry.attached.jobs() as jobs:
            return jobs.status(entry.attached.name, is_brief=True).state
        return "unknown"
    if not entry.job_dir.exists():
        return "reading rows"
    with contextlib.suppress(OSError, json.JSONDecodeError), Client() as client:
        return client.status(entry.job_dir, is_brief=True).state
    return "running"


def _kill(context: StatementContext, statement: statements.Kill) -> Result:
    store, running = context.store, _running_jobs(context.store)
    if statement.job not in running:
        hint = f"Running jobs: {', '.join(map(str, running)) or 'none'}."
        raise statement.error(f"No job {statement.job} is running.", hint)
    job = running[statement.job]
    if context.is_dry_run:
        return Result(message=f"This would end {job.title}.")
    request_kill(store.folder, job.number)
    _wait_for_end(store, job)
    return Result(message=f"Job {job.number} ({job.title}) has ended.")


def _wait_for_end(store: ModelStore, job: JobEntry) -> None:
    """Stop the training of a statement, and wait until its process has released the job.

    Raises:
        TimedOut: The statement has not ended in time.
    """
    deadline = time.monotonic() + KILL_SECONDS
    with Client() as client:
        while job.number in (running := _running_jobs(store)):
            job = running[job.number]  # The statement may have begun its next training.
            if time.monotonic() > deadline:
                problem = f"Job {job.number} ({job.title}) did not end within {KILL_SECONDS:.0f} s."
                raise TimedOut(problem, hint=f"Look into {job.job_dir}, or try again.")
            # The training may not have begun yet, or may have ended.
            with contextlib.suppress(EdlError, OSError):
                if job.attached is None and job.job_dir.exists():
                    client.stop(job.job_dir, may_lose_steps=True, wait=False)
            time.sleep(_POLL_SECONDS)


def _running_jobs(store: ModelStore) -> dict[int, JobEntry]:
    return {entry.number: entry for entry in find_jobs(store.folder) if entry.is_running}
