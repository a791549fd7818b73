"""TRAIN: rows, one job or several trials, and a version of a model."""

import datetime
import time
from collections.abc import Callable, Collection
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from edl_horovod.columns.summary import summarize
from edl_horovod.errors import DataError
from edl_horovod.files.url_secrets import without_secrets
from edl_horovod.files.whole_file import write_json
from edl_horovod.job import events
from edl_horovod.job.directory import JobDir
from edl_horovod.job.events import EvaluationEvent, StepEvent
from edl_horovod.models import git_zoo
from edl_horovod.models.framework_name import framework_name
from edl_horovod.sql import planning
from edl_horovod.sql.dividing import divide, parts_of
from edl_horovod.sql.export import ExportedTable, records_of
from edl_horovod.sql.jobs import StatementJob
from edl_horovod.sql.models import LOG, MODEL, About, LogRow, ModelColumn, adapted_of
from edl_horovod.sql.planning import TrainingPlan
from edl_horovod.sql.results import Result
from edl_horovod.sql.statements import Train
from edl_horovod.sql.trials import Trained, prepare_trials, run_trials
from edl_horovod.sql.unknown import array_of
from edl_horovod.sql.work import Work

__all__ = ["train"]


def train(work: Work, statement: Train) -> Result:
    """Train a model on what a SELECT gives.

    Raises:
        EdlError: A subclass says what went wrong; the models are as they were.
    """
    name = statement.into.name
    if statement.if_not_exists and work.store.exists(name):
        return Result(message=f"The model {name} is there already.", model=name)
    began = time.monotonic()
    zoo = git_zoo.ensure_local(work.settings.model_zoo).path
    plan = planning.plan_training(
        statement, work.columns(statement.select), zoo, is_confined=work.settings.is_confined
    )
    values = plan.settings
    if statement.using is not None:
        first = work.store.find(statement.using)
        values = values | {"init_from": str(first.trained_model)}
    if work.is_dry_run:
        return _dry(work, plan, values)
    for sentence in plan.told:
        work.tell(sentence)
    with work.job(f"TRAIN {name}") as job:
        run = _prepared(work, plan, values, job)
        table = _export(work, statement, plan, job)
        _check_label(plan, table)
        trained = run()
        write_json(job.version / LOG, [asdict(row) for row in _log(Path(trained.config.job_dir))])
        read = adapted_of(job.version / MODEL).get("read")
        about = _about(work, statement, plan, table, trained, read)
        about = replace(
            about,
            framework=framework_name(replace(trained.config, model_zoo=str(zoo))),
            seconds=round(time.monotonic() - began, 1),
        )
        made = work.store.add(name, job.version, about, replace=statement.or_replace)
    held_back = table.num_rows - about.num_rows
    of_rows = f", with {held_back:,} held back" if held_back else ""
    return Result(
        message=f"{made} is trained on {about.num_rows:,} rows{of_rows}{trained.told}, and it is"
        " live.",
        model=str(made),
        metrics=trained.metrics,
    )


def _dry(work: Work, plan: TrainingPlan, values: dict[str, Any]) -> Result:
    """What would be trained; of trials the settings of one."""
    job = work.dry_job()
    values = values | _rows_of(plan, job)
    if plan.trials is None:
        return work.dry("train", values, told=plan.told)
    values = work.places(job, job.output) | values
    trials = prepare_trials(plan.trials, work.settings, values)
    notes = (*plan.told, trials.told, "These are the settings of one trial.")
    return work.shown(trials.first, notes)


def _prepared(
    work: Work, plan: TrainingPlan, values: dict[str, Any], job: StatementJob
) -> Callable[[], Trained]:
    """Check the settings of the job, or of the trials; the result runs them when rows are there.

    Raises:
        ConfigError: One is wrong.
    """
    values = values | _rows_of(plan, job)
    if plan.trials is not None:
        trials = prepare_trials(plan.trials, work.settings, work.places(job, job.output) | values)
        work.tell(trials.told)
        return lambda: run_trials(trials, work, job)
    config = work.config("train", values, job, job.version / MODEL)

    def run() -> Trained:
        job.version.mkdir()
        result = work.run(config, Path(config.data), job)
        return Trained(config=config, metrics=result.metrics)

    return run


def _log(job_dir: Path) -> list[LogRow]:
    """How a training went, by its events."""
    rows: dict[int, LogRow] = {}
    began = None
    for time_of_event, _, event in events.read(JobDir(job_dir).events):
        if not isinstance(event, StepEvent | EvaluationEvent):
            continue
        began = began or time_of_event
        row = rows.get(event.step, LogRow(step=event.step, seconds=0.0))
        row = replace(row, seconds=round(time_of_event - began, 3))
        if isinstance(event, StepEvent):
            rows[event.step] = replace(row, epoch=event.epoch + 1, loss=event.loss)
        else:
            rows[event.step] = replace(row, validation=event.metrics)
    return [rows[step] for step in sorted(rows)]


def _rows_of(plan: TrainingPlan, job: StatementJob) -> dict[str, str]:
    """The settings that say where the rows are, and those of the validation."""
    data, validation = records_of(job.data), records_of(job.validation)
    if plan.validation_select:
        return {"data": str(data), "validation_data": str(validation)}
    if plan.split.kind == "none":
        return {"data": str(data)}
    training, held_back = parts_of(job.validation)
    return {"data": str(training), "validation_data": str(held_back)}


def _export(work: Work, statement: Train, plan: TrainingPlan, job: StatementJob) -> ExportedTable:
    """Write the rows where `_rows_of` says that they are."""
    dates = dict.fromkeys(plan.maybe_dates)
    table = work.export(
        statement.select, job.data, job, plan.nulls, columns=plan.columns, dates=dates
    )
    if plan.validation_select:
        select = plan.validation_select
        dates = {it.name: it.kind for it in table.columns if it.kind in ("date", "timestamp")}
        other = work.export(
            select, job.validation, job, plan.nulls, columns=plan.columns, dates=dates
        )
        _require_same(table, other)
    elif plan.split.kind != "none":
        divide(table.data, job.validation, plan.split, plan.split_key)
    return table


def _check_label(plan: TrainingPlan, table: ExportedTable) -> None:
    """Refuse a label that the model cannot learn, before the job starts.

    Raises:
        DataError: It is no number, or not one of so many classes.
    """
    if plan.has_classes is None:
        return
    label = plan.label
    files = map(pq.ParquetFile, sorted(table.data.glob("*.parquet")))
    found = summarize(
        (),
        (
            {label: array_of(batch.column(label))}
            for file in files
            for batch in file.iter_batches(columns=[label])
        ),
        label=label,
        has_classes=plan.has_classes,
        kinds={},
        tell=lambda _: None,
    )
    num_classes = len(found.classes.values) if found.classes else 0
    if plan.num_classes is not None and num_classes > plan.num_classes:
        raise DataError(
            f"The label {label!r} has {num_classes} classes, and n_classes says"
            f" {plan.num_classes}.",
            received={"n_classes": plan.num_classes},
            cure="Leave n_classes out: the classes are those that the rows have.",
        )


def _about(
    work: Work,
    statement: Train,
    plan: TrainingPlan,
    table: ExportedTable,
    trained: Trained,
    read: Collection[str] | None,
) -> About:
    not_read = (plan.split.column,) if plan.split.kind == "column" else ()
    return About(
        statement=without_secrets(statement.text),
        select=without_secrets(statement.select),
        model_def=trained.config.model_def,
        framework="",
        label=plan.label,
        columns=tuple(
            ModelColumn(name=it.name, kind=it.kind, declared_type=it.declared_type)
            for it in table.columns
            if it.name not in not_read and (read is None or it.name in (*read, plan.label))
        ),
        nulls=plan.nulls,
        split=plan.split_in_words,
        num_rows=_num_rows(Path(trained.config.data)),
        metrics=trained.metrics,
        database=work.engine.label,
        trained=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        seconds=0.0,
        told=plan.told,
        chosen=trained.chosen,
        trials=trained.trials,
    )


def _num_rows(records: Path) -> int:
    return sum(pq.read_metadata(file).num_rows for file in records.glob("*.parquet"))


def _require_same(table: ExportedTable, other: ExportedTable) -> None:
    """Refuse rows for the validation that have other columns.

    Raises:
        DataError: They have.
    """
    ours = {column.name: column.kind for column in table.columns}
    theirs = {column.name: column.kind for column in other.columns}
    if ours != theirs:
        raise DataError(
            "train.validation_select gives other columns than the SELECT.",
            received=", ".join(f"{name} ({kind})" for name, kind in theirs.items()),
            cure=f"It must give {', '.join(f'{name} ({kind})' for name, kind in ours.items())}.",
        )
