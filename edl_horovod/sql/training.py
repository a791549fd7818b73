"""TRAIN: rows, a job, and a version of a model."""

import datetime
import time

from edl_horovod.errors import DataError
from edl_horovod.files.url_secrets import without_secrets
from edl_horovod.models import git_zoo
from edl_horovod.sql import planning
from edl_horovod.sql.dividing import divide
from edl_horovod.sql.export import ExportedTable
from edl_horovod.sql.models import MODEL, About, ModelColumn
from edl_horovod.sql.results import Result
from edl_horovod.sql.statements import Train
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
    plan = planning.plan_training(statement, work.columns(statement.select), zoo)
    values = plan.settings
    if statement.using is not None:
        first = work.store.find(statement.using)
        values = values | {"init_from": str(first.trained_model)}
    if work.is_dry_run:
        return work.dry("train", values, told=plan.told)
    for sentence in plan.told:
        work.tell(sentence)
    with work.job(f"TRAIN {name}") as job:
        config = work.config("train", values, job, job.version / MODEL)
        table = work.export(statement.select, job.data, job, plan.nulls)
        data = table.data
        if plan.validation_select:
            other = work.export(plan.validation_select, job.validation, job, plan.nulls)
            _require_same(table, other)
            config = work.with_validation(config, other.data)
        elif plan.split.kind != "none":
            data, held_back = divide(table.data, job.validation, plan.split, plan.split_key)
            config = work.with_validation(config, held_back)
        job.version.mkdir()
        result = work.run(config, data, job)
        about = About(
            statement=without_secrets(statement.text),
            select=without_secrets(statement.select),
            model_def=config.model_def,
            framework=config.framework,
            label=plan.label,
            columns=tuple(
                ModelColumn(name=it.name, kind=it.kind, declared_type=it.declared_type)
                for it in table.columns
                if it.name not in plan.left_out
            ),
            nulls=plan.nulls,
            split=plan.split_in_words,
            num_rows=table.num_rows,
            metrics=result.metrics,
            database=work.engine.label,
            trained=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            seconds=round(time.monotonic() - began, 1),
            told=plan.told,
        )
        made = work.store.add(name, job.version, about, replace=statement.or_replace)
    return Result(
        message=f"{made} is trained on {about.num_rows:,} rows, and it is live.",
        model=str(made),
        metrics=result.metrics,
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
            cure=f"It must give {', '.join(f'{name} ({kind})' for name, kind in ours.items())}.",
        )
