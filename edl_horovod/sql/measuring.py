"""EVALUATE and EXPLAIN: how good a model is on rows, and which columns that depends on."""

import datetime
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from edl_horovod.errors import DataError
from edl_horovod.sql import planning
from edl_horovod.sql.explain import importances, write_shuffled
from edl_horovod.sql.export import ExportedTable
from edl_horovod.sql.jobs import StatementJob
from edl_horovod.sql.kinds import Kind
from edl_horovod.sql.metrics import (
    METRICS_OF_CLASSES,
    METRICS_OF_NUMBERS,
    ClassMetrics,
    RegressionMetrics,
    of_classes,
    of_numbers,
    of_predicted_classes,
)
from edl_horovod.sql.models import StoredModel
from edl_horovod.sql.planning import ComparisonPlan
from edl_horovod.sql.predicting import PROBABILITIES, VALUE, classes_of, tell_unknown
from edl_horovod.sql.predictions import read_predictions
from edl_horovod.sql.result_tables import ResultTable, plan_result_table, write_result_table
from edl_horovod.sql.results import Result
from edl_horovod.sql.rows import BATCH_ROWS
from edl_horovod.sql.statements import Evaluate, EvaluateColumns, Explain
from edl_horovod.sql.work import Work

__all__ = ["evaluate", "evaluate_columns", "explain"]

_OF_NUMBERS = ("metric", "value")
_OF_CLASSES = ("metric", "class", "predicted", "value")
_OF_COLUMNS = ("column", "importance", "deviation")
_IN_TABLES: Mapping[str, Kind] = {"model": "text", "evaluated": "timestamp"}
"""What tables of results begin with, so that one can hold those of many evaluations."""
_KINDS: Mapping[str, Kind] = {"value": "number", "importance": "number", "deviation": "number"}
"""Of columns that hold no text."""
_Arrays = Mapping[str, NDArray[Any]]


def evaluate(work: Work, statement: Evaluate) -> Result:
    """The metrics of a model on what a SELECT gives, computed of all rows at once.

    Raises:
        EdlError: A subclass says what went wrong.
    """
    stored = work.store.find(statement.model)
    classes = classes_of(stored)
    plan = planning.plan_measuring(
        statement,
        work.columns(statement.select),
        stored,
        metrics=METRICS_OF_CLASSES if classes else METRICS_OF_NUMBERS,
        is_confined=work.settings.is_confined,
    )
    into = _into(work, statement, _OF_CLASSES, overwrite=plan.overwrite)
    values = {**plan.settings, "trained_model": str(stored.trained_model)}
    if work.is_dry_run:
        return work.dry("predict", values, told=plan.told)
    for sentence in plan.told:
        work.tell(sentence)
    with work.job(f"EVALUATE {stored}") as job:
        config = work.config("predict", values, job, job.output)
        table = _export(work, statement, stored, plan.nulls, job)
        work.run(config, table.data, job)
        found = _outputs(read_predictions(job.output).batches(), classes)
        metrics = _measure(_labels(table, stored), found, classes)
    return _measured(work, into, metrics, plan.metrics, model=str(stored))


def evaluate_columns(work: Work, statement: EvaluateColumns) -> Result:
    """The metrics of one column of a SELECT as what another one should be, without a model.

    Raises:
        EdlError: A subclass says what went wrong.
    """
    names = work.columns(statement.select)
    plan = planning.plan_comparison(statement, names)
    places = tuple(names.index(name) for name in (plan.label, plan.predicted))
    if work.is_dry_run:
        return Result(message=f"This would compare {plan.predicted} with {plan.label}.")
    into = _into(work, statement, _OF_CLASSES, overwrite=plan.overwrite)
    labels, predicted = _columns(work, statement, places)
    metrics = _compare(labels, predicted, plan)
    is_of_classes = isinstance(metrics, ClassMetrics)
    known = METRICS_OF_CLASSES if is_of_classes else METRICS_OF_NUMBERS
    wanted = planning.wanted_metrics(plan.metrics, known)
    return _measured(work, into, metrics, wanted, model="")


def _columns(
    work: Work, statement: EvaluateColumns, places: tuple[int, ...]
) -> tuple[list[Any], ...]:
    """The values of some columns of a SELECT.

    Raises:
        DataError: A value is NULL.
    """
    values: tuple[list[Any], ...] = tuple([] for _ in places)
    with work.engine.reading(statement.select) as rows:
        while batch := rows.fetch(BATCH_ROWS):
            for column, place in zip(values, places, strict=True):
                column += [row[place] for row in batch]
    for column, place in zip(values, places, strict=True):
        if num_empty := column.count(None):
            raise DataError(
                f"The column {rows.columns[place].name!r} is NULL in {num_empty:,} rows.",
                received=f"row {column.index(None) + 1:,} is the first",
                hint="Leave such rows out by WHERE ... IS NOT NULL.",
            )
    return values


def _compare(
    labels: list[Any], predicted: list[Any], plan: ComparisonPlan
) -> ClassMetrics | RegressionMetrics:
    """The metrics of numbers where all values are numbers, else those of classes.

    Raises:
        DataError: One column has numbers, and the other one has something else.
    """
    are_numbers = [all(map(_is_number, values)) for values in (labels, predicted)]
    if are_numbers == [True, True]:
        return of_numbers(np.array(labels, np.float64), np.array(predicted, np.float64))
    if any(are_numbers):
        numbers, others = (plan.label, plan.predicted)[:: 1 if are_numbers[0] else -1]
        raise DataError(
            f"The column {numbers!r} has numbers, and {others!r} has other values.",
            received=f"LABEL {plan.label} USING {plan.predicted}",
            hint="Cast one of them in the SELECT: two columns of text are compared as classes.",
        )
    classes = tuple(sorted({str(value) for value in (*labels, *predicted)}))
    return of_predicted_classes(_numbers(labels, classes), _numbers(predicted, classes), classes)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float | Decimal) and not isinstance(value, bool)


def _measured(
    work: Work,
    into: ResultTable | None,
    metrics: ClassMetrics | RegressionMetrics,
    wanted: tuple[str, ...],
    *,
    model: str,
) -> Result:
    """The metrics that were asked for, as rows or in their table."""
    rows = [row for row in metrics.rows() if _is_wanted(row.metric, wanted)]
    is_of_classes = isinstance(metrics, ClassMetrics)
    cells = [
        (row.metric, row.class_name, row.predicted, row.value)
        if is_of_classes
        else (row.metric, row.value)
        for row in rows
    ]
    numbers = {row.metric: row.value for row in rows if row.class_name is None}
    found = {name: value for name, value in numbers.items() if value is not None}
    columns = _OF_CLASSES if is_of_classes else _OF_NUMBERS
    return _given(work, into, columns, cells, model=model, metrics=found)


def explain(work: Work, statement: Explain) -> Result:
    """How much worse a model predicts when the values of a column are shuffled, column by column.

    Raises:
        EdlError: A subclass says what went wrong.
    """
    stored = work.store.find(statement.model)
    plan = planning.plan_measuring(
        statement, work.columns(statement.select), stored, is_confined=work.settings.is_confined
    )
    into = _into(work, statement, _OF_COLUMNS, overwrite=plan.overwrite)
    values = {**plan.settings, "trained_model": str(stored.trained_model)}
    told = plan.told
    if statement.explainer is not None:
        told += (f"{statement.explainer} is for trees: columns are shuffled in its place.",)
    if work.is_dry_run:
        return work.dry("predict", values, told=told)
    for sentence in told:
        work.tell(sentence)
    with work.job(f"EXPLAIN {stored}") as job:
        config = work.config("predict", values, job, job.output)
        table = _export(work, statement, stored, plan.nulls, job)
        shards = sorted(table.data.glob("*.parquet"))
        job.validation.mkdir()
        shuffled = write_shuffled(shards, job.validation / "rows.parquet", stored.about.features)
        work.run(config, job.validation, job)
        classes = classes_of(stored)
        labels = _labels(table, stored)[shuffled.rows]
        found = importances(
            shuffled,
            _outputs(read_predictions(job.output).batches(), classes),
            _score(labels, classes),
        )
    cells = [(each.column, each.importance, each.deviation) for each in found]
    score = "accuracy" if classes else "R2"
    message = f"The importance is how much {score} falls when the column is shuffled."
    given = _given(work, into, _OF_COLUMNS, cells, model=str(stored), message=message)
    return replace(given, importances=tuple(found))


def _into(
    work: Work,
    statement: Evaluate | EvaluateColumns | Explain,
    columns: Sequence[str],
    *,
    overwrite: bool,
) -> ResultTable | None:
    if statement.into is None:
        return None
    kinds = {**_IN_TABLES, **{name: _KINDS.get(name, "text") for name in columns}}
    return plan_result_table(work.engine, statement.into, kinds, overwrite=overwrite)


def _given(
    work: Work,
    into: ResultTable | None,
    columns: Sequence[str],
    rows: Sequence[tuple[Any, ...]],
    *,
    model: str,
    metrics: dict[str, float] | None = None,
    message: str = "",
) -> Result:
    """The rows, or a sentence about the table that they are in."""
    if into is None:
        return Result(
            columns=tuple(columns),
            rows=tuple(rows),
            model=model,
            metrics=metrics or {},
            message=message,
        )
    now = datetime.datetime.now(datetime.UTC).replace(tzinfo=None, microsecond=0)
    common = {"model": model or None, "evaluated": now}
    values = [common | dict(zip(columns, row, strict=True)) for row in rows]
    cells = [[row.get(name) for name in into.columns] for row in values]
    write_result_table(work.engine, into, cells)
    more = "more " if into.is_there and not into.overwrite else ""
    of_model = f" of {model}" if model else ""
    sentence = f"The table {into.name} has {len(rows):,} {more}rows{of_model}."
    return Result(message=sentence, model=model, metrics=metrics or {})


def _export(
    work: Work,
    statement: Evaluate | Explain,
    stored: StoredModel,
    nulls: Mapping[str, Any],
    job: StatementJob,
) -> ExportedTable:
    """Write what the model reads of the rows, and the labels."""
    read = (*stored.about.features, stored.about.label)
    table = work.export(
        statement.select, job.data, job, nulls, columns=read, dates=stored.about.dates
    )
    kinds = {column.name: column.kind for column in table.columns}
    planning.check_kinds(stored.about, kinds, statement.model.position)
    tell_unknown(work, stored, table)
    return table


def _labels(table: ExportedTable, stored: StoredModel) -> NDArray[Any]:
    """What the rows have as label, in their order."""
    name = stored.about.label
    parts = [
        pq.read_table(file, columns=[name]).column(0).to_pylist()
        for file in sorted(table.data.glob("*.parquet"))
    ]
    return np.array([value for part in parts for value in part])


def _outputs(batches: Any, classes: tuple[Any, ...]) -> dict[str, NDArray[Any]]:
    wanted = PROBABILITIES if classes else VALUE
    parts = [batch[wanted] for batch in batches]
    return {wanted: np.concatenate(parts)}


def _measure(
    labels: NDArray[Any], found: _Arrays, classes: tuple[Any, ...]
) -> ClassMetrics | RegressionMetrics:
    if not classes:
        return of_numbers(labels.astype(np.float64), found[VALUE].reshape(-1))
    return of_classes(_numbers(labels.tolist(), classes), found[PROBABILITIES], classes)


def _score(labels: NDArray[Any], classes: tuple[Any, ...]) -> Callable[[_Arrays], float]:
    def score(found: _Arrays) -> float:
        measured = _measure(labels, found, classes)
        return measured.accuracy if isinstance(measured, ClassMetrics) else measured.r2

    return score


def _numbers(labels: Sequence[Any], classes: tuple[Any, ...]) -> NDArray[np.int64]:
    """The numbers of the classes of some rows."""
    numbers = {str(value): number for number, value in enumerate(classes)}
    texts = [str(value) for value in labels]
    if unknown := sorted(set(texts) - numbers.keys()):
        raise DataError(
            f"Some rows have a label that the training did not have: {', '.join(unknown[:5])}.",
            received=f"the classes {', '.join(numbers)}",
            hint="Leave such rows out.",
        )
    return np.array([numbers[text] for text in texts], np.int64)


def _is_wanted(metric: str, wanted: tuple[str, ...]) -> bool:
    return not wanted or any(metric == one or metric.startswith(f"{one}_") for one in wanted)
