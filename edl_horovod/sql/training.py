"""TRAIN: rows, one job or several trials, and a version of a model."""

import datetime
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, replace
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
from edl_horovod.sql.baselines import Comparison, compare
from edl_horovod.sql.defaults import (
    LEAST_ROWS,
    bound_in_words,
    default_values,
    schedule_in_words,
)
from edl_horovod.sql.dividing import check_label, count_rows, divide, parts_of
from edl_horovod.sql.export import ExportedTable, records_of
from edl_horovod.sql.filling import fill_nulls
from edl_horovod.sql.jobs import StatementJob
from edl_horovod.sql.kinds import Kind
from edl_horovod.sql.models import LOG, MODEL, About, LogRow, ModelColumn, adapted_of
from edl_horovod.sql.planning import TrainingPlan
from edl_horovod.sql.results import Result
from edl_horovod.sql.settings import SqlSettings
from edl_horovod.sql.statements import Train
from edl_horovod.sql.trials import Trained, prepare_trials, run_trials
from edl_horovod.sql.unknown import array_of
from edl_horovod.sql.work import Work

__all__ = ["train"]


@dataclass(frozen=True, kw_only=True)
class _Rows:
    """The rows of a training, exported."""

    table: ExportedTable
    training: Path
    """Folder of those that are learned from."""
    held_back: Path | None
    """Folder of those for the validation."""
    split_in_words: str
    nulls: Mapping[str, Any]
    """What a NULL counts as, by column."""

    @property
    def num_learned(self) -> int:
        return count_rows(self.training)


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
        rows = _export(work, statement, plan, job)
        trained = run(rows)
        write_json(job.version / LOG, [asdict(row) for row in _log(Path(trained.config.job_dir))])
        adapted = adapted_of(job.version / MODEL)
        compared = _compared(adapted, trained, rows)
        about = replace(
            _about(work, statement, plan, rows, trained, adapted.get("read")),
            framework=framework_name(replace(trained.config, model_zoo=str(zoo))),
            seconds=round(time.monotonic() - began, 1),
            baselines=compared.metrics if compared else {},
        )
        made = work.store.add(name, job.version, about, replace=statement.or_replace)
    held_back = rows.table.num_rows - about.num_rows
    of_rows = f", with {held_back:,} held back" if held_back else ""
    learned = (
        f"{made} is trained on {about.num_rows:,} rows{of_rows}{trained.told}, and it is live."
    )
    measured = [str(compared), compared.warning] if compared else []
    return Result(
        message="\n".join(filter(None, [learned, *measured])),
        model=str(made),
        metrics=trained.metrics,
    )


def _dry(work: Work, plan: TrainingPlan, values: dict[str, Any]) -> Result:
    """What would be trained; of trials the settings of one."""
    job = work.dry_job()
    values = values | _rows_of(plan, job)
    has_validation = "validation_data" in values
    composed = work.config("train", values, job, job.output)
    given = _given(work.settings, plan)
    values |= default_values(composed, given, num_rows=0, has_validation=has_validation)
    if plan.trials is None:
        return work.dry("train", values, told=plan.told)
    values = work.places(job, job.output) | values
    trials = prepare_trials(plan.trials, work.settings, values)
    notes = (*plan.told, trials.told, "These are the settings of one trial.")
    return work.shown(trials.first, notes)


def _given(settings: SqlSettings, plan: TrainingPlan) -> frozenset[str]:
    """The settings of a job that the statement or the command gives."""
    typed = (text.partition("=")[0].lstrip("+") for text in settings.overrides)
    varied = plan.trials.varied if plan.trials is not None else ()
    return frozenset({*typed, *settings.values, *plan.settings, *varied})


def _prepared(
    work: Work, plan: TrainingPlan, values: dict[str, Any], job: StatementJob
) -> Callable[[_Rows], Trained]:
    """Check the settings of the job, or of the trials; the result runs them when rows are there.

    Raises:
        ConfigError: One is wrong.
    """
    first = values | _rows_of(plan, job)
    config = work.config("train", first, job, job.version / MODEL)
    if plan.trials is not None:
        places = work.places(job, job.output)
        work.tell(prepare_trials(plan.trials, work.settings, places | first).told)

    def run(rows: _Rows) -> Trained:
        has_validation = rows.held_back is not None
        now = first | {"data": str(rows.training)}
        if not has_validation:
            now.pop("validation_data", None)
        given = _given(work.settings, plan)
        now |= default_values(
            config, given, num_rows=rows.num_learned, has_validation=has_validation
        )
        if plan.trials is not None:
            trials = prepare_trials(plan.trials, work.settings, places | now)
            work.tell(schedule_in_words(trials.first, rows.num_learned))
            return run_trials(trials, work, job)
        job.version.mkdir()
        last = work.config("train", now, job, job.version / MODEL)
        work.tell(schedule_in_words(last, rows.num_learned))
        result = work.run(last, Path(last.data), job)
        if sentence := bound_in_words(last, result):
            work.tell(sentence)
        return Trained(config=last, metrics=result.metrics)

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


def _export(work: Work, statement: Train, plan: TrainingPlan, job: StatementJob) -> _Rows:
    """Write the rows where `_rows_of` says that they are; few rows are all learned from.

    Raises:
        DataError: Nothing can be learned from them.
    """
    dates = dict.fromkeys(plan.maybe_dates)
    table = _exported(work, plan, statement.select, job.data, job, dates)
    check_label(table.data, plan.label)
    _check_classes(plan, table)
    training, held_back, split_in_words = table.data, None, plan.split_in_words
    if plan.validation_select:
        dates = {it.name: it.kind for it in table.columns if it.kind in ("date", "timestamp")}
        other = _exported(work, plan, plan.validation_select, job.validation, job, dates)
        _require_same(table, other)
        held_back = other.data
    elif plan.is_split_default and table.num_rows < LEAST_ROWS:
        split_in_words = "none"
        if plan.trials is not None:
            raise DataError(
                f"There are {table.num_rows} rows, too few to compare trials on some of them.",
                received=f"{LEAST_ROWS} rows are the least",
                hint="Select more rows, or write train.split or train.validation_select.",
            )
        work.tell(
            f"{table.num_rows} rows are too few to hold some back, so nothing tells how good the"
            " model is on other rows."
        )
    elif plan.split.kind != "none":
        label = plan.label if plan.has_classes else ""
        divide(table.data, job.validation, plan.split, plan.split_key, label=label)
        training, held_back = parts_of(job.validation)
    nulls = plan.nulls
    if plan.filled_columns:
        nulls = fill_nulls(training, held_back, plan.filled_columns)
        with_nulls = [it.name for it in table.columns if it.num_defaults and it.name in nulls]
        if with_nulls:
            values = ", ".join(f"{name} {nulls[name]!r}" for name in with_nulls)
            work.tell(f"NULLs are filled by the mean or the most frequent value: {values}.")
    return _Rows(
        table=table,
        training=training,
        held_back=held_back,
        split_in_words=split_in_words,
        nulls=nulls,
    )


def _exported(
    work: Work,
    plan: TrainingPlan,
    select: str,
    folder: Path,
    job: StatementJob,
    dates: Mapping[str, Kind | None],
) -> ExportedTable:
    return work.export(
        select,
        folder,
        job,
        plan.nulls,
        columns=plan.columns,
        dates=dates,
        kept_nulls=plan.filled_columns,
    )


def _compared(adapted: Mapping[str, Any], trained: Trained, rows: _Rows) -> Comparison | None:
    """The model beside a constant and a linear model; None without rows to measure them on."""
    if rows.held_back is None:
        return None
    return compare(
        adapted,
        trained.config,
        trained.metrics,
        training=rows.training,
        held_back=rows.held_back,
    )


def _check_classes(plan: TrainingPlan, table: ExportedTable) -> None:
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
            hint="Leave n_classes out: the classes are those that the rows have.",
        )


def _about(
    work: Work,
    statement: Train,
    plan: TrainingPlan,
    rows: _Rows,
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
            for it in rows.table.columns
            if it.name not in not_read and (read is None or it.name in (*read, plan.label))
        ),
        nulls=dict(rows.nulls),
        split=rows.split_in_words,
        num_rows=rows.num_learned,
        metrics=trained.metrics,
        database=work.engine.label,
        trained=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        seconds=0.0,
        told=plan.told,
        chosen=trained.chosen,
        trials=trained.trials,
    )


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
            hint=f"It must give {', '.join(f'{name} ({kind})' for name, kind in ours.items())}.",
        )
