"""Runs EVALUATE and EXPLAIN: how good a model is, and which columns it depends on."""

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import sqlalchemy as sa
from numpy.typing import NDArray

from edl_horovod.columns.summary import MAX_CLASSES
from edl_horovod.errors import DataError
from edl_horovod.sql import planning
from edl_horovod.sql.context import StatementContext
from edl_horovod.sql.engine import Engine
from edl_horovod.sql.export import ExportedTable
from edl_horovod.sql.jobs import StatementJob
from edl_horovod.sql.kinds import SQL_TYPES, Kind
from edl_horovod.sql.metrics import (
    CLASS_METRICS,
    REGRESSION_METRICS,
    ClassMetrics,
    RegressionMetrics,
    class_metrics,
    importances,
    probability_metrics,
    regression_metrics,
    write_shuffled,
)
from edl_horovod.sql.models import StoredModel
from edl_horovod.sql.prediction import (
    PROBABILITIES,
    VALUE,
    check_rows,
    classes_of,
    read_predictions,
)
from edl_horovod.sql.rows import BATCH_ROWS
from edl_horovod.sql.statements import Evaluate, EvaluateColumns, Explain, Name, Result

_REGRESSION_COLUMNS = ("metric", "value")
_CLASS_COLUMNS = ("metric", "class", "predicted", "value")
_IMPORTANCE_COLUMNS = ("column", "importance", "deviation")
_LEADING_COLUMNS: Mapping[str, Kind] = {"model": "text", "evaluated": "timestamp"}
"""The first columns of tables of results, so that a table can hold many evaluations."""
_NUMBER_COLUMNS = ("value", "importance", "deviation")
"""The columns of results that hold numbers; others hold texts."""
_Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, kw_only=True)
class _ResultTable:
    """The table for the rows of a statement."""

    name: Name
    parts: tuple[str, ...]
    """The parts of the name as the database looks them up: table, or schema and table."""
    columns: Mapping[str, Kind]
    """The kinds of values by column."""
    exists: bool = False
    """Whether the table exists and holds earlier results."""
    overwrite: bool
    """Whether earlier results are replaced; else rows are added."""

    @property
    def schema(self) -> str | None:
        return self.parts[0] if len(self.parts) == 2 else None

    @property
    def table(self) -> str:
        return self.parts[-1]


def evaluate(context: StatementContext, statement: Evaluate) -> Result:
    """Compute the metrics of a model on the rows of a SELECT, over all rows at once.

    Raises:
        EdlError: A subclass says what went wrong.
    """
    stored = context.store.find(statement.model)
    classes = classes_of(stored)
    plan = planning.plan_evaluation(
        statement,
        context.columns(statement.select),
        stored,
        metrics=CLASS_METRICS if classes else REGRESSION_METRICS,
        is_confined=context.settings.is_confined,
    )
    into = _result_table_of(context, statement, _CLASS_COLUMNS, overwrite=plan.overwrite)
    values = {**plan.settings, "trained_model": str(stored.trained_model)}
    if context.is_dry_run:
        return context.describe_job("predict", values, notes=plan.notes)
    for sentence in plan.notes:
        context.tell(sentence)
    with context.job(f"EVALUATE {stored}") as job:
        config = context.config("predict", values, job, job.output)
        table = _export(context, statement, stored, plan.nulls, job)
        context.run(config, table.data, job)
        metrics = _measure(_labels(table, stored), _outputs(job.output, classes), classes)
    return _metrics_result(context, into, metrics, plan.metrics, model=str(stored))


def evaluate_columns(context: StatementContext, statement: EvaluateColumns) -> Result:
    """Compute the metrics of a column of predictions, without a model.

    Raises:
        EdlError: A subclass says what went wrong.
    """
    names = context.columns(statement.select)
    options = planning.comparison_options(statement, names)
    label, predicted = compared = (statement.label.parts[-1], statement.predicted.parts[-1])
    if context.is_dry_run:
        return Result(message=f"This would compare {predicted} with {label}.")
    overwrite = "validation.overwrite" in options and options["validation.overwrite"].value
    into = _result_table_of(context, statement, _CLASS_COLUMNS, overwrite=overwrite)
    indices = tuple(map(names.index, compared))
    truth, predictions = _column_values(context, statement, indices)
    metrics = _compare(truth, predictions, compared)
    has_classes = isinstance(metrics, ClassMetrics)
    available = CLASS_METRICS if has_classes else REGRESSION_METRICS
    requested = planning.requested_metrics(options.get("validation.metrics"), available)
    return _metrics_result(context, into, metrics, requested, model="")


def _column_values(
    context: StatementContext, statement: EvaluateColumns, indices: tuple[int, ...]
) -> tuple[list[Any], ...]:
    """Read the values of columns of a SELECT.

    Raises:
        DataError: A value is NULL.
    """
    values: tuple[list[Any], ...] = tuple([] for _ in indices)
    with context.engine.reading(statement.select) as rows:
        while batch := rows.fetch(BATCH_ROWS):
            for column, index in zip(values, indices, strict=True):
                column += [_decoded(row[index]) for row in batch]
    for column, index in zip(values, indices, strict=True):
        if num_empty := column.count(None):
            raise DataError(
                f"The column {rows.columns[index].name!r} is NULL in {num_empty:,} rows.",
                received=f"row {column.index(None) + 1:,} is the first",
                hint="Leave such rows out with WHERE ... IS NOT NULL.",
            )
    return values


def _compare(
    labels: list[Any], predicted: list[Any], names: tuple[str, str]
) -> ClassMetrics | RegressionMetrics:
    """The metrics of numbers if all values are numbers, else of classes.

    Raises:
        DataError: Only one of the columns has numbers, or there are too many classes.
    """
    are_numbers = [all(map(_is_number, values)) for values in (labels, predicted)]
    if are_numbers == [True, True]:
        return regression_metrics(np.array(labels, np.float64), np.array(predicted, np.float64))
    if any(are_numbers):
        numbers, others = names[:: 1 if are_numbers[0] else -1]
        problem = f"The column {numbers!r} has numbers, and {others!r} has other values."
        hint = "Cast one of them in the SELECT: two columns of text are compared as classes."
        raise DataError(problem, received=f"LABEL {names[0]} USING {names[1]}", hint=hint)
    classes = tuple(sorted({str(value) for value in (*labels, *predicted)}))
    if len(classes) > MAX_CLASSES:
        raise DataError(
            f"The columns {names[0]!r} and {names[1]!r} have {len(classes):,} classes, and at most"
            f" {MAX_CLASSES:,} are compared.",
            received=f"LABEL {names[0]} USING {names[1]}",
            hint="Cast numbers to a numeric type in the SELECT, or select columns of classes.",
        )
    truth, chosen = (_class_numbers(values, classes) for values in (labels, predicted))
    return class_metrics(truth, chosen, classes)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float | Decimal) and not isinstance(value, bool)


def _metrics_result(
    context: StatementContext,
    into: _ResultTable | None,
    metrics: ClassMetrics | RegressionMetrics,
    requested: tuple[str, ...],
    *,
    model: str,
) -> Result:
    """The requested metrics, as rows or written to their table."""
    rows = [row for row in metrics.rows() if _is_requested(row.metric, requested)]
    has_classes = isinstance(metrics, ClassMetrics)
    cells = [tuple(row) if has_classes else (row.metric, row.value) for row in rows]
    numbers = {row.metric: row.value for row in rows if row.class_name is None}
    known_values = {name: value for name, value in numbers.items() if value is not None}
    columns = _CLASS_COLUMNS if has_classes else _REGRESSION_COLUMNS
    return _deliver(context, into, columns, cells, model=model, metrics=known_values)


def explain(context: StatementContext, statement: Explain) -> Result:
    """Measure how much worse a model predicts when a column is shuffled, for each column.

    Raises:
        EdlError: A subclass says what went wrong.
    """
    stored = context.store.find(statement.model)
    columns, is_confined = context.columns(statement.select), context.settings.is_confined
    plan = planning.plan_evaluation(statement, columns, stored, is_confined=is_confined)
    into = _result_table_of(context, statement, _IMPORTANCE_COLUMNS, overwrite=plan.overwrite)
    values = {**plan.settings, "trained_model": str(stored.trained_model)}
    notes = plan.notes
    if statement.explainer is not None:
        notes += (f"{statement.explainer} is for trees: columns are shuffled instead.",)
    if context.is_dry_run:
        return context.describe_job("predict", values, notes=notes)
    for sentence in notes:
        context.tell(sentence)
    with context.job(f"EXPLAIN {stored}") as job:
        config = context.config("predict", values, job, job.output)
        table = _export(context, statement, stored, plan.nulls, job)
        shards = sorted(table.data.glob("*.parquet"))
        job.validation.mkdir()
        shuffled = write_shuffled(shards, job.validation / "rows.parquet", stored.about.features)
        context.run(config, job.validation, job)
        classes = classes_of(stored)
        labels = _labels(table, stored)[shuffled.rows]

        def score(outputs: _Arrays) -> float:
            metrics = _measure(labels, outputs, classes)
            return metrics.accuracy if isinstance(metrics, ClassMetrics) else metrics.r2

        column_importances = importances(shuffled, _outputs(job.output, classes), score)
    cells = list(map(astuple, column_importances))
    score_name = "accuracy" if classes else "R2"
    message = f"The importance is how much {score_name} falls when the column is shuffled."
    result = _deliver(context, into, _IMPORTANCE_COLUMNS, cells, model=str(stored), message=message)
    return replace(result, importances=tuple(column_importances))


def _result_table_of(
    context: StatementContext,
    statement: Evaluate | EvaluateColumns | Explain,
    result_columns: Sequence[str],
    *,
    overwrite: bool,
) -> _ResultTable | None:
    """Check that a table can be created, or that rows can be added; nothing is changed yet.

    Args:
        context: The database.
        statement: The statement, whose INTO names the table, with or without its schema.
        result_columns: The columns of its result.
        overwrite: Whether earlier results in the same columns are replaced; else rows are added.

    Returns:
        None if the statement has no INTO.

    Raises:
        StatementError: The name has too many parts.
        DataError: A table of that name has other columns, or the database does not answer.
    """
    name = statement.into
    if name is None:
        return None
    if len(name.parts) > 2:
        raise name.error(f"{name} cannot name a table.", "Write table or schema.table.")
    kinds = dict(_LEADING_COLUMNS)
    for column in result_columns:
        kinds[column] = "number" if column in _NUMBER_COLUMNS else "text"
    parts = name.parts_in(context.engine.dialect)
    into = _ResultTable(name=name, parts=parts, columns=kinds, overwrite=overwrite)
    with context.engine.connecting() as connection:
        schema = into.schema or context.engine.session_database(connection) or None
        inspector = sa.inspect(connection)
        if not inspector.has_table(into.table, schema):
            return into
        existing = [column["name"] for column in inspector.get_columns(into.table, schema)]
    if existing != list(into.columns):
        problem = f"The table {name} exists and has other columns than results of this statement."
        hint = "Write the name of a new table."
        raise DataError(problem, received=f"its columns {', '.join(existing)}", hint=hint)
    return replace(into, exists=True)


def _deliver(
    context: StatementContext,
    into: _ResultTable | None,
    columns: Sequence[str],
    rows: Sequence[tuple[Any, ...]],
    *,
    model: str,
    metrics: dict[str, float] | None = None,
    message: str = "",
) -> Result:
    """The result with the rows, or with a message after writing them to their table."""
    if into is None:
        result = Result(columns=tuple(columns), rows=tuple(rows), message=message)
        return replace(result, model=model, metrics=metrics or {})
    now = datetime.datetime.now(datetime.UTC).replace(tzinfo=None, microsecond=0)
    empty = dict.fromkeys(into.columns)
    common = {**empty, "model": model or None, "evaluated": now}
    values = [common | dict(zip(columns, row, strict=True)) for row in rows]
    _write_result_table(context.engine, into, values)
    more = "more " if into.exists and not into.overwrite else ""
    of_model = f" of {model}" if model else ""
    sentence = f"The table {into.name} has {len(rows):,} {more}rows{of_model}."
    return Result(message=sentence, model=model, metrics=metrics or {})


def _export(
    context: StatementContext,
    statement: Evaluate | Explain,
    stored: StoredModel,
    nulls: Mapping[str, Any],
    job: StatementJob,
) -> ExportedTable:
    """Export the columns that the model reads, and the labels."""
    columns_read = (*stored.about.features, stored.about.label)
    table = context.export(
        statement.select, job.data, job, nulls, columns=columns_read, dates=stored.about.dates
    )
    check_rows(context, stored, table, statement.model.position)
    return table


def _labels(table: ExportedTable, stored: StoredModel) -> NDArray[Any]:
    """The labels of the rows, in order."""
    name = stored.about.label
    files = sorted(table.data.glob("*.parquet"))
    parts = [pq.read_table(file, columns=[name]).column(0).to_pylist() for file in files]
    return np.array([_decoded(value) for part in parts for value in part])


def _decoded(value: Any) -> Any:
    """Bytes as the text that a training makes of them; any other value unchanged."""
    return value.decode(errors="backslashreplace") if isinstance(value, bytes) else value


def _outputs(folder: Path, classes: tuple[Any, ...]) -> dict[str, NDArray[Any]]:
    output = PROBABILITIES if classes else VALUE
    return {output: np.concatenate([batch[output] for batch in read_predictions(folder).batches()])}


def _measure(
    labels: NDArray[Any], outputs: _Arrays, classes: tuple[Any, ...]
) -> ClassMetrics | RegressionMetrics:
    if not classes:
        return regression_metrics(labels.astype(np.float64), outputs[VALUE].reshape(-1))
    numbers = _class_numbers(labels.tolist(), classes)
    return probability_metrics(numbers, outputs[PROBABILITIES], classes)


def _class_numbers(labels: Sequence[Any], classes: tuple[Any, ...]) -> NDArray[np.int64]:
    """The numbers of the classes of rows.

    Raises:
        DataError: A label is not one of the classes.
    """
    numbers = {str(value): number for number, value in enumerate(classes)}
    texts = [str(value) for value in labels]
    if unknown := sorted(set(texts) - numbers.keys()):
        raise DataError(
            f"Some rows have a label that the training did not have: {', '.join(unknown[:5])}.",
            received=f"the classes {', '.join(numbers)}",
            hint="Leave such rows out.",
        )
    return np.array([numbers[text] for text in texts], np.int64)


def _is_requested(metric: str, requested: tuple[str, ...]) -> bool:
    return not requested or any(
        metric == name or metric.startswith(f"{name}_") for name in requested
    )


def _write_result_table(
    engine: Engine, plan: _ResultTable, rows: Sequence[Mapping[str, Any]]
) -> None:
    """Add rows to the table, which is created if necessary, in one transaction.

    MariaDB commits each CREATE and DROP immediately. A process that is killed in between may leave
    a new table without rows there, or lose the earlier results.

    Raises:
        DataError: The database refuses a statement, or does not answer.
    """
    columns: list[sa.Column[Any]] = [
        sa.Column(column, SQL_TYPES[kind]) for column, kind in plan.columns.items()
    ]
    table = sa.Table(plan.table, sa.MetaData(), *columns, schema=plan.schema)
    with engine.connecting() as connection, engine.transaction(connection):
        if plan.exists and plan.overwrite:
            table.drop(connection, checkfirst=False)
        if plan.overwrite or not plan.exists:
            table.create(connection, checkfirst=False)
        connection.execute(table.insert(), rows)
