"""Runs PREDICT: a job predicts a number or a class for each row, into a table or as rows."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from edl_horovod.errors import ConfigError, DataError, EdlError, Interrupted
from edl_horovod.records.examples import read_examples
from edl_horovod.records.reader import Reader
from edl_horovod.sql import planning
from edl_horovod.sql.context import StatementContext
from edl_horovod.sql.engine import DatabaseError
from edl_horovod.sql.export import ExportedTable, NoRows
from edl_horovod.sql.models import StoredModel, read_summary
from edl_horovod.sql.rows import MOST_ROWS
from edl_horovod.sql.statements import Predict, Result, SourcePosition
from edl_horovod.sql.target import DEFAULT_COLUMN, SAMPLE_NUMBER, plan_target
from edl_horovod.sql.unknown_values import unknown_values
from edl_horovod.sql.writing import AllRowsChanged, try_writing, write_predictions

VALUE, _CLASS, PROBABILITIES = "prediction", "class", "probabilities"
"""The outputs of the zoo's models of tables."""
_BATCH_ROWS = 1_000
_SCHEMA = "schema.json"


@dataclass(frozen=True)
class _Predictions:
    """The outputs of a model for the rows of a SELECT."""

    folder: Path
    shapes: dict[str, tuple[int, ...]]
    """The shape of each output for one row."""

    def batches(self) -> Iterator[dict[str, NDArray[Any]]]:
        """Batches of outputs by name, each of shape (rows, ...).

        Raises:
            DataError: The files are damaged.
        """
        with Reader.open(str(self.folder)) as reader:
            records = iter(reader)
            while batch := list(islice(records, _BATCH_ROWS)):
                yield read_examples(batch, self.shapes)


def predict(context: StatementContext, statement: Predict) -> Result:
    """Predict for the rows of a SELECT, into a table or as rows of the result.

    Raises:
        EdlError: A subclass says what went wrong; the database is unchanged.
    """
    stored = context.store.find(statement.using)
    columns = context.columns(statement.select)
    plan = planning.plan_prediction(
        statement, columns, stored, is_confined=context.settings.is_confined
    )
    target = statement.target
    parts = target.parts_in(context.engine.dialect) if target is not None else ()
    first_column = parts[-1] if len(parts) > 1 else DEFAULT_COLUMN
    names = _output_names(
        stored, first_column, columns=plan.columns, probabilities=plan.has_probabilities
    )
    into = None
    if target is not None:
        number = (SAMPLE_NUMBER,)
        into = plan_target(
            context.engine,
            statement.select,
            parts,
            columns=names if len(names) > 1 or plan.columns else (),
            features=stored.about.features,
            samples=[classes_of(stored) or number, *[number] * (len(names) - 1)],
            replace_table=plan.replace_table,
            replace_values=plan.replace_values,
        )
        if into.guarded_columns:
            context.tell(
                f"PREDICT did not create {', '.join(into.guarded_columns)}, so it only fills NULLs"
                " there: to replace other values, too, write WITH predict.replace_values=True."
            )
    values = {**plan.settings, "trained_model": str(stored.trained_model)}
    if context.is_dry_run:
        return context.describe_job("predict", values, notes=(str(into),) if into else ())
    if into is not None:
        try_writing(context.engine, into)
    with context.job(f"PREDICT {target or 'rows'}") as job:
        config = context.config("predict", values, job, job.output)
        select = statement.select if into is None else into.select
        try:
            table = context.export(
                select,
                job.data,
                job,
                plan.nulls,
                target=into,
                columns=stored.about.features,
                num_first_rows=MOST_ROWS if into is None else 0,
                dates=stored.about.dates,
            )
        except NoRows:
            message = f"The SELECT gives no rows, so {stored} predicts nothing."
            result_columns = () if into is not None else (*columns, *names)
            return Result(columns=result_columns, message=message, model=str(stored))
        check_rows(context, stored, table, statement.using.position)
        digest = _digest(stored, table) if into is not None else ""
        is_reused = into is not None and job.take_predictions(digest)
        if is_reused:
            sentence = (
                "The predictions of an earlier attempt, which could not write them, are used."
            )
            context.tell(sentence)
        else:
            context.run(config, table.data, job)
        rows_of_predictions = _predicted_rows(
            read_predictions(job.output), stored, probabilities=plan.has_probabilities
        )
        if into is not None:
            action = f"of {table.num_rows:,} predictions are sent to the database"
            progress = context.progress(job, action)
            try:
                counts = write_predictions(
                    context.engine,
                    into,
                    table,
                    rows_of_predictions,
                    tell=context.tell,
                    on_progress=progress,
                )
            except (AllRowsChanged, Interrupted):
                raise
            except EdlError as e:
                # Reused predictions are kept only if the database failed: other errors would recur.
                if not is_reused or isinstance(e, DatabaseError):
                    job.keep_predictions(digest)
                    context.tell("The predictions are kept: run the statement again to write them.")
                raise
            message = f"{counts.num_rows:,} rows of {into.table} have predictions of {stored}."
            return Result(message=message, model=str(stored))
        pairs = zip(table.first_rows, rows_of_predictions, strict=False)
        return Result(
            columns=(*columns, *names),
            rows=tuple((*row, *predictions) for row, predictions in pairs),
            has_more_rows=table.num_rows > len(table.first_rows),
            model=str(stored),
        )


def read_predictions(folder: Path) -> _Predictions:
    """Open the predictions in a folder.

    Raises:
        DataError: An output has no fixed shape, or the folder is damaged.
    """
    schema = json.loads((folder / _SCHEMA).read_bytes())
    shapes = {name: tuple(feature["shape"]) for name, feature in schema["features"].items()}
    if varying := [name for name, shape in shapes.items() if None in shape]:
        problem = f"The output {varying[0]!r} of the model differs in size from row to row."
        hint = "Use a model of the zoo that gives one value a row."
        raise DataError(problem, received=f"shape {shapes[varying[0]]}", hint=hint)
    return _Predictions(folder, shapes)


def classes_of(stored: StoredModel) -> tuple[Any, ...]:
    """The classes of a classifier, in the order of the probabilities; empty for a regressor.

    Raises:
        DataError: The trained model is damaged.
    """
    classes = read_summary(stored.trained_model).get("classes")
    return tuple(classes["values"]) if classes else ()


def check_rows(
    context: StatementContext, stored: StoredModel, table: ExportedTable, position: SourcePosition
) -> None:
    """Refuse rows of other kinds than in the training, and tell the user of unknown values.

    Args:
        context: Tells how many rows of each column have values that the training did not have.
        stored: The model.
        table: The rows.
        position: The position of the model in the statement.

    Raises:
        StatementError: A column holds values of another kind.
        DataError: The trained model is damaged.
    """
    kinds = {column.name: column.kind for column in table.columns}
    planning.check_kinds(stored.about, kinds, position)
    shards = sorted(table.data.glob("*.parquet"))
    for unknown in unknown_values(read_summary(stored.trained_model), shards):
        context.tell(str(unknown))


def _output_names(
    stored: StoredModel, first: str, *, columns: Sequence[Any] = (), probabilities: bool = False
) -> tuple[str, ...]:
    """The names of the columns of predictions.

    Args:
        stored: The model.
        first: The name of the column for the number or the class.
        columns: The user's names for all columns; if empty, the columns of probabilities are named
            `first_probability_class`, or `probability_class` if `first` is the default.
        probabilities: Whether there is also a column for the probability of each class.

    Raises:
        ConfigError: The number of names is wrong, or probabilities are requested of a regressor.
    """
    classes = classes_of(stored)
    if probabilities and not classes:
        problem = f"predict.probabilities is only for classifiers, and {stored} predicts a number."
        raise ConfigError(problem, received={"predict.probabilities": True}, hint="Leave it out.")
    # Columns of two models in the same table must have different names.
    prefix = "" if first == DEFAULT_COLUMN else f"{first}_"
    labels = classes if probabilities else ()
    usual_names = (first, *(f"{prefix}probability_{label}" for label in labels))
    names = tuple(map(str, columns)) or usual_names
    if len(names) != len(usual_names):
        problem = f"There are {len(usual_names)} columns of predictions, {len(names)} names."
        hint = f"Write a name for each of {', '.join(usual_names)}."
        raise ConfigError(problem, received={"predict.columns": list(names)}, hint=hint)
    return names


def _predicted_rows(
    predictions: _Predictions, stored: StoredModel, *, probabilities: bool
) -> Iterator[tuple[Any, ...]]:
    """The predictions for each row, in order: the number, or the class and its probabilities.

    Raises:
        DataError: The model has other outputs, or the predictions are damaged.
    """
    classes = classes_of(stored)
    outputs = (_CLASS, PROBABILITIES) if classes else (VALUE,)
    if missing := [name for name in outputs if name not in predictions.shapes]:
        problem = f"The model {stored} has no output {missing[0]!r}."
        hint = "Use a regressor or a classifier of the zoo."
        raise DataError(problem, received=f"{', '.join(predictions.shapes)}", hint=hint)
    for batch in predictions.batches():
        if not classes:
            columns = [batch[VALUE].reshape(-1).tolist()]
        else:
            columns = [[classes[number] for number in batch[_CLASS].reshape(-1).tolist()]]
            columns += batch[PROBABILITIES].T.tolist() if probabilities else []
        yield from zip(*columns, strict=True)


def _digest(stored: StoredModel, table: ExportedTable) -> str:
    """A digest of a model and the rows that it reads."""
    digest = hashlib.sha256(f"{stored} {stored.about.trained}".encode())
    for file in sorted(table.data.glob("*.parquet")):
        digest.update(file.read_bytes())
    return digest.hexdigest()
