"""Runs TRAIN: exports rows, runs a job or several trials, and stores a version of a model."""

import datetime
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from edl_horovod.columns.summary import summarize
from edl_horovod.config.compose import compose
from edl_horovod.config.schema import EarlyStoppingConfig, JobConfig, TrainConfig
from edl_horovod.errors import DataError
from edl_horovod.files.url_secrets import without_secrets
from edl_horovod.files.whole_file import write_json
from edl_horovod.job import events
from edl_horovod.job.directory import JobDir
from edl_horovod.job.events import EvaluationEvent, StepEvent
from edl_horovod.models import git_zoo
from edl_horovod.models.framework_name import framework_name
from edl_horovod.sql import planning, training_rows
from edl_horovod.sql.baselines import compare
from edl_horovod.sql.context import StatementContext
from edl_horovod.sql.export import ExportedTable, records_folder
from edl_horovod.sql.jobs import StatementJob
from edl_horovod.sql.kinds import Kind
from edl_horovod.sql.models import LOG, MODEL, About, LogRow, ModelColumn, read_summary
from edl_horovod.sql.planning import TrainingPlan
from edl_horovod.sql.settings import SqlSettings
from edl_horovod.sql.statements import Result, Train
from edl_horovod.sql.trials import TrainingOutcome, prepare_trials, run_trials
from edl_horovod.sql.unknown_values import array_of
from edl_horovod.supervisor.run import JobResult

_LEAST_ROWS = 30
"""With fewer rows, a tenth of them would say nothing, so none are held back."""
_GROUP = "until_best"
"""The option of the config group `train` that statements start from."""
_STEPS_WITHOUT_VALIDATION = 300
_STEPS_OF_EPOCH = 500
"""The maximum number of steps per epoch: larger tables get larger batches, so that evaluations
stay cheap in comparison."""
_LARGEST_BATCH = 8_192
_BOUNDS = ("epochs", "max_steps", "max_seconds")
_CLASS_DEFAULTS = TrainConfig()


@dataclass(frozen=True)
class _TrainingRows:
    """The exported rows of a training."""

    table: ExportedTable
    training: Path
    """The folder of the rows that the model learns from."""
    held_back: Path | None
    """The folder of the rows for the validation; None without any."""
    split_in_words: str
    """A phrase about which rows are for the validation."""
    nulls: Mapping[str, Any]
    """The value that replaces NULLs, by column."""

    @property
    def num_learned(self) -> int:
        return training_rows.count_rows(self.training)


def train(context: StatementContext, statement: Train) -> Result:
    """Train a model on the rows of a SELECT.

    Raises:
        EdlError: A subclass says what went wrong; the stored models are unchanged.
    """
    name = statement.into.name
    if statement.if_not_exists and context.store.exists(name):
        return Result(message=f"The model {name} exists already.", model=name)
    start = time.monotonic()
    zoo = git_zoo.ensure_local(context.settings.model_zoo).path
    plan = planning.plan_training(
        statement, context.columns(statement.select), zoo, is_confined=context.settings.is_confined
    )
    values = plan.settings
    if statement.using is not None:
        initial = context.store.find(statement.using)
        values = values | {"init_from": str(initial.trained_model)}
    if context.is_dry_run:
        return _dry_run(context, plan, values)
    for sentence in plan.notes:
        context.tell(sentence)
    with context.job(f"TRAIN {name}") as job:
        run_job = _prepare_job(context, plan, values, job)
        rows = _export(context, statement, plan, job)
        outcome = run_job(rows)
        write_json(
            job.version / LOG, [asdict(row) for row in _read_log(Path(outcome.config.job_dir))]
        )
        adapted = read_summary(job.version / MODEL)
        comparison = None
        if rows.held_back is not None:
            comparison = compare(
                adapted,
                outcome.config,
                outcome.metrics,
                is_linear=plan.is_linear,
                training=rows.training,
                held_back=rows.held_back,
            )
        measured = {
            "framework": framework_name(replace(outcome.config, model_zoo=str(zoo))),
            "seconds": round(time.monotonic() - start, 1),
            "baselines": comparison.metrics if comparison else {},
        }
        about = _about(context, statement, plan, rows, outcome, adapted.get("read"), **measured)
        stored = context.store.add(name, job.version, about, replace=statement.or_replace)
    held_back = rows.table.num_rows - about.num_rows
    remark = f", with {held_back:,} held back" if held_back else ""
    rows_in_words = f"{about.num_rows:,} rows{remark}{outcome.choice_in_words}"
    sentences = [f"{stored} is trained on {rows_in_words}, and it is live."]
    sentences += [str(comparison), comparison.warning] if comparison else []
    message = "\n".join(filter(None, sentences))
    return Result(message=message, model=str(stored), metrics=outcome.metrics)


def _dry_run(context: StatementContext, plan: TrainingPlan, values: dict[str, Any]) -> Result:
    """Describe the training without running it; for trials with the settings of one."""
    job = context.placeholder_job()
    values = values | _data_settings(plan, job)
    has_validation = "validation_data" in values
    config = context.config("train", values, job, job.output)
    set_keys = _keys_set_by_user(context.settings, plan)
    values |= _default_values(config, set_keys, num_rows=0, has_validation=has_validation)
    if plan.trials is None:
        return context.describe_job("train", values, notes=plan.notes)
    values = context.folder_settings(job, job.output) | values
    trials = prepare_trials(plan.trials, context.settings, values, is_dry_run=True)
    notes = (*plan.notes, trials.description, "These are the settings of one trial.")
    return context.settings_as_result(trials.first, notes)


def _keys_set_by_user(settings: SqlSettings, plan: TrainingPlan) -> frozenset[str]:
    """The keys of settings that the statement or the command line sets."""
    typed_keys = (text.partition("=")[0].lstrip("+") for text in settings.overrides)
    varied_keys = plan.trials.varied if plan.trials is not None else ()
    return frozenset({*typed_keys, *settings.values, *plan.settings, *varied_keys})


def _prepare_job(
    context: StatementContext, plan: TrainingPlan, values: dict[str, Any], job: StatementJob
) -> Callable[[_TrainingRows], TrainingOutcome]:
    """Check the settings of the job or the trials before rows are exported.

    Returns:
        A function that runs the job or the trials on the exported rows.

    Raises:
        ConfigError: A setting is wrong.
    """
    settings_before_rows = values | _data_settings(plan, job)
    config = context.config("train", settings_before_rows, job, job.version / MODEL)
    if plan.trials is not None:
        paths = context.folder_settings(job, job.output)
        context.tell(
            prepare_trials(plan.trials, context.settings, paths | settings_before_rows).description
        )

    def run(rows: _TrainingRows) -> TrainingOutcome:
        has_validation = rows.held_back is not None
        settings = settings_before_rows | {"data": str(rows.training)}
        if not has_validation:
            settings.pop("validation_data", None)
        set_keys = _keys_set_by_user(context.settings, plan)
        settings |= _default_values(
            config, set_keys, num_rows=rows.num_learned, has_validation=has_validation
        )
        if plan.trials is not None:
            trials = prepare_trials(plan.trials, context.settings, paths | settings)
            context.tell(_schedule_in_words(trials.first, rows.num_learned))
            return run_trials(trials, context, job)
        job.version.mkdir()
        final_config = context.config("train", settings, job, job.version / MODEL)
        context.tell(_schedule_in_words(final_config, rows.num_learned))
        result = context.run(final_config, Path(final_config.data), job)
        if sentence := _bound_in_words(final_config, result):
            context.tell(sentence)
        return TrainingOutcome(config=final_config, metrics=result.metrics)

    return run


def _read_log(job_dir: Path) -> list[LogRow]:
    """The log of a training, read from the events of its job."""
    rows: dict[int, LogRow] = {}
    start = None
    for time_of_event, _, event in events.read(JobDir(job_dir).events):
        if not isinstance(event, StepEvent | EvaluationEvent):
            continue
        start = start or time_of_event
        row = rows.get(event.step, LogRow(step=event.step, seconds=0.0))
        row = replace(row, seconds=round(time_of_event - start, 3))
        if isinstance(event, StepEvent):
            rows[event.step] = replace(row, epoch=event.epoch + 1, loss=event.loss)
        else:
            rows[event.step] = replace(row, validation=event.metrics)
    return [rows[step] for step in sorted(rows)]


def _data_settings(plan: TrainingPlan, job: StatementJob) -> dict[str, str]:
    """The settings with the folders of the rows, and of the rows for the validation."""
    data, validation = records_folder(job.data), records_folder(job.validation)
    if plan.validation_select:
        return {"data": str(data), "validation_data": str(validation)}
    if plan.split.kind == "none":
        return {"data": str(data)}
    training, held_back = training_rows.part_folders(job.validation)
    return {"data": str(training), "validation_data": str(held_back)}


def _export(
    context: StatementContext, statement: Train, plan: TrainingPlan, job: StatementJob
) -> _TrainingRows:
    """Export the rows into the folders of `_data_settings`; a small table is not split.

    Raises:
        DataError: The rows are not suited for a training.
    """

    def export(select: str, folder: Path, dates: Mapping[str, Kind | None]) -> ExportedTable:
        kept_nulls = plan.filled_columns
        return context.export(
            select,
            folder,
            job,
            plan.nulls,
            columns=plan.columns,
            dates=dates,
            kept_nulls=kept_nulls,
        )

    table = export(statement.select, job.data, dict.fromkeys(plan.possible_dates))
    training_rows.check_label(table.data, plan.label)
    _check_classes(plan, table)
    training, held_back, split_in_words = table.data, None, plan.split_in_words
    with_nulls = _names_with_nulls(table)
    if plan.validation_select:
        kinds = {column.name: column.kind for column in table.columns}
        dates = {name: kind for name, kind in kinds.items() if kind in ("date", "timestamp")}
        validation_table = export(plan.validation_select, job.validation, dates)
        _require_same_columns(table, validation_table, plan.filled_columns)
        with_nulls |= _names_with_nulls(validation_table)
        held_back = validation_table.data
    elif plan.is_split_default and table.num_rows < _LEAST_ROWS:
        split_in_words = "none"
        if plan.trials is not None:
            problem = f"There are {table.num_rows} rows, which is too few to compare trials."
            hint = "Select more rows, or write train.split or train.validation_select."
            raise DataError(problem, received=f"{_LEAST_ROWS} rows are the minimum", hint=hint)
        context.tell(
            f"{table.num_rows} rows are too few to hold some back, so it is unknown how good the"
            " model is on other rows."
        )
    elif plan.split.kind != "none":
        label = plan.label if plan.has_classes else ""
        training_rows.split_rows(
            table.data, job.validation, plan.split, plan.split_key, label=label
        )
        training, held_back = training_rows.part_folders(job.validation)
    nulls = plan.nulls
    if plan.filled_columns:
        nulls = training_rows.fill_nulls(
            training, held_back, plan.filled_columns, columns_with_nulls=with_nulls
        )
        if filled := [name for name in plan.filled_columns if name in with_nulls]:
            values = ", ".join(f"{name} {nulls[name]!r}" for name in filled)
            context.tell(f"NULLs are filled with the mean or the most frequent value: {values}.")
    return _TrainingRows(table, training, held_back, split_in_words, nulls)


def _check_classes(plan: TrainingPlan, table: ExportedTable) -> None:
    """Refuse a label that the model cannot learn, before the job starts.

    Raises:
        DataError: The label is not a number, or has too many classes.
    """
    if plan.has_classes is None:
        return
    label = plan.label
    files = map(pq.ParquetFile, sorted(table.data.glob("*.parquet")))
    batches = (batch for file in files for batch in file.iter_batches(columns=[label]))
    blocks = ({label: array_of(batch.column(label))} for batch in batches)
    summary = summarize(
        (), blocks, label=label, has_classes=plan.has_classes, kinds={}, tell=lambda _: None
    )
    num_classes = len(summary.classes.values) if summary.classes else 0
    if plan.num_classes is not None and num_classes > plan.num_classes:
        problem = f"The label {label!r} has {num_classes} classes: n_classes is {plan.num_classes}."
        hint = "Leave n_classes out: the classes are determined from the rows."
        raise DataError(problem, received={"n_classes": plan.num_classes}, hint=hint)


def _about(
    context: StatementContext,
    statement: Train,
    plan: TrainingPlan,
    rows: _TrainingRows,
    outcome: TrainingOutcome,
    columns_read: Collection[str] | None,
    **measured: Any,
) -> About:
    excluded = (plan.split.column,) if plan.split.kind == "column" else ()
    return About(
        statement=without_secrets(statement.text),
        select=without_secrets(statement.select),
        model_def=outcome.config.model_def,
        label=plan.label,
        columns=tuple(
            ModelColumn(name=column.name, kind=column.kind, declared_type=column.declared_type)
            for column in rows.table.columns
            if column.name not in excluded
            and (columns_read is None or column.name in (*columns_read, plan.label))
        ),
        nulls=dict(rows.nulls),
        split=rows.split_in_words,
        num_rows=rows.num_learned,
        metrics=outcome.metrics,
        database=context.engine.label,
        trained=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        notes=plan.notes,
        chosen=outcome.chosen,
        trials=outcome.trials,
        **measured,
    )


def _names_with_nulls(table: ExportedTable) -> set[str]:
    return {column.name for column in table.columns if column.num_nulls}


def _require_same_columns(
    table: ExportedTable, validation_table: ExportedTable, filled_columns: Collection[str]
) -> None:
    """Refuse rows for the validation with other columns than the SELECT.

    Raises:
        DataError: The columns or their kinds differ.
    """
    kinds = {column.name: column.kind for column in table.columns}
    validation_kinds = {column.name: column.kind for column in validation_table.columns}
    for column in validation_table.columns:
        # What fills a column of NULLs alone is of the kind that the training has.
        if column.num_nulls == validation_table.num_rows and column.name in filled_columns:
            validation_kinds[column.name] = kinds[column.name]
    if kinds != validation_kinds:
        raise DataError(
            "train.validation_select gives other columns than the SELECT.",
            received=", ".join(f"{name} ({kind})" for name, kind in validation_kinds.items()),
            hint=f"It must give {', '.join(f'{name} ({kind})' for name, kind in kinds.items())}.",
        )


def _default_values(
    config: JobConfig, set_keys: Collection[str], *, num_rows: int, has_validation: bool
) -> dict[str, Any]:
    """The defaults of statements where they differ from those of `edl train`.

    Args:
        config: The composed settings.
        set_keys: Keys that the statement or the command line sets. Values that differ from the
            defaults of `edl train` also count as set, so that a user's files are respected.
        num_rows: The number of rows to learn from; 0 if it is not known yet.
        has_validation: Whether there are rows for the validation.

    Returns:
        Values by keys with dots.
    """
    train, defaults = config.train, _statement_defaults()
    if not has_validation:
        defaults = replace(
            defaults,
            early_stopping=EarlyStoppingConfig(),
            evaluate_steps=0,
            max_seconds=0.0,
            max_steps=_STEPS_WITHOUT_VALIDATION,
        )
    if any(_is_set(train, name, set_keys) for name in _BOUNDS):
        # A bound that the user sets is the only one.
        defaults = replace(defaults, max_steps=0, max_seconds=0.0)
    ranks = max(config.launch.np, config.elastic.max_np or 1)
    defaults = replace(defaults, batch_size=_batch_size(defaults.batch_size, num_rows, ranks))
    return _unset_values(train, defaults, "train", set_keys)


def _schedule_in_words(config: JobConfig, num_rows: int) -> str:
    """A sentence about the steps of a training and its maximum length.

    Args:
        config: The settings of the training.
        num_rows: The number of rows to learn from.
    """
    train, defaults = config.train, _statement_defaults()
    bounds = [f"{train.epochs:,} epochs"] if train.epochs != defaults.epochs else []
    bounds += [f"{train.max_steps:,} steps"] if train.max_steps else []
    bounds += [f"{train.max_seconds:,.0f} s"] if train.max_seconds else []
    bound = " or ".join(bounds)
    steps = f"{num_rows:,} rows are learned from, {train.batch_size:,} in each step"
    stopping = train.early_stopping
    if not stopping.metric:
        return f"{steps}, for {bound}."
    num_steps = train.evaluate_steps
    interval = f"every {num_steps:,} steps" if num_steps else "after each epoch"
    return (
        f"{steps}, until the {stopping.metric} on the rows held back, measured {interval}, has not"
        f" improved {stopping.patience} times in a row; for {bound} at most."
    )


def _bound_in_words(config: JobConfig, result: JobResult) -> str:
    """A sentence if a training ended at a bound while it still improved; else empty."""
    train = config.train
    if not train.early_stopping.metric:
        return ""
    if train.max_steps and result.steps >= train.max_steps:
        key, bound = "train.max_steps", f"{train.max_steps:,} steps"
    elif train.max_seconds and result.seconds >= train.max_seconds:
        key, bound = "train.max_seconds", f"{train.max_seconds:,.0f} s"
    else:
        return ""
    return f"The training ended after {bound}, while it still improved: raise {key} to go on."


def _statement_defaults() -> TrainConfig:
    """The section `train` that statements start from, as conf/ defines it."""
    required = {"data": "rows", "validation_data": "rows", "output": "model", "model_def": "some"}
    return compose("train", [f"train={_GROUP}"], values=required).train


def _batch_size(smallest: int, num_rows: int, num_ranks: int) -> int:
    size = smallest
    while size < num_ranks or (size < _LARGEST_BATCH and num_rows > size * _STEPS_OF_EPOCH):
        size *= 2
    return size


def _is_set(train: TrainConfig, name: str, set_keys: Collection[str]) -> bool:
    return f"train.{name}" in set_keys or getattr(train, name) != getattr(_CLASS_DEFAULTS, name)


def _unset_values(
    section: Any, defaults: Any, prefix: str, set_keys: Collection[str]
) -> dict[str, Any]:
    """The values of `defaults` for fields of a section that the user has not set, by keys."""
    values: dict[str, Any] = {}
    for field in fields(section):
        key, value = f"{prefix}.{field.name}", getattr(section, field.name)
        if is_dataclass(value):
            values |= _unset_values(value, getattr(defaults, field.name), key, set_keys)
        elif value == field.default != getattr(defaults, field.name) and key not in set_keys:
            values[key] = getattr(defaults, field.name)
    return values
