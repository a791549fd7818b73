"""Statements on one database, one after the other."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from edl_horovod.sql.catalog import run_catalog_statement
from edl_horovod.sql.engine import open_engine
from edl_horovod.sql.evaluation import evaluate, evaluate_columns, explain
from edl_horovod.sql.parser import parse
from edl_horovod.sql.prediction import predict
from edl_horovod.sql.results import Result
from edl_horovod.sql.settings import SqlSettings
from edl_horovod.sql.statements import (
    Evaluate,
    EvaluateColumns,
    Explain,
    Predict,
    Standard,
    Statement,
    StatementError,
    Train,
)
from edl_horovod.sql.training import train
from edl_horovod.sql.work import RunJob, Work

__all__ = ["Session", "open_session"]

_READING = (Train, Predict, Evaluate, EvaluateColumns, Explain)
"""Statements that read the rows of a SELECT."""


@contextmanager
def open_session(settings: SqlSettings, run_job: RunJob, **more: Any) -> Iterator["Session"]:
    """A session with a database, closed when the `with` ends; `more` are other fields of `Work`.

    What no COMMIT has ended by then is rolled back, and that is told.

    Raises:
        ConfigError: There is no such database.
        MissingDependency: Its driver is not installed.
    """
    with open_engine(settings.db, is_confined=settings.is_confined) as engine:
        session = Session(Work(settings, engine, run_job, **more))
        try:
            yield session
        finally:
            if engine.open_transaction:
                session.work.tell(
                    f"The transaction of {engine.open_transaction!r} is rolled back: no COMMIT"
                    " ended it."
                )


class Session:
    """Runs statements."""

    def __init__(self, work: Work) -> None:
        self.work = work

    def parse(self, text: str) -> tuple[Statement, ...]:
        """The statements of a program in the database's SQL.

        Raises:
            StatementError: One cannot be understood.
        """
        return parse(text, self.work.engine.dialect)

    def run(self, statement: Statement) -> Result:
        """Run one statement.

        Raises:
            EdlError: A subclass says what went wrong; `Interrupted` after Ctrl-C or KILL.
        """
        if isinstance(statement, _READING):
            self._require_no_transaction(statement)
        match statement:
            case Train():
                return train(self.work, statement)
            case Predict():
                return predict(self.work, statement)
            case Evaluate():
                return evaluate(self.work, statement)
            case EvaluateColumns():
                return evaluate_columns(self.work, statement)
            case Explain():
                return explain(self.work, statement)
            case Standard():
                return self._standard(statement)
        return run_catalog_statement(statement, self.work.store, is_dry_run=self.work.is_dry_run)

    def _require_no_transaction(self, statement: Statement) -> None:
        """Refuse what reads rows in a transaction of its own, and often runs for long.

        Raises:
            StatementError: One is open.
        """
        if opened_by := self.work.engine.open_transaction:
            verb = type(statement).__name__.removesuffix("Columns").upper()
            raise StatementError(
                f"{verb} cannot run within a transaction, and that of {opened_by!r} is open.",
                statement.position,
                hint="COMMIT or ROLLBACK it first.",
            )

    def _standard(self, statement: Standard) -> Result:
        engine = self.work.engine
        if self.work.is_dry_run:
            return Result(message=f"{engine.label} would get: {statement.text}")
        found = engine.execute(statement.text)
        message = ""
        if not found.columns:
            changed = found.num_changed
            message = "Done." if changed is None else f"{changed:,} rows were changed."
        return Result(
            columns=found.columns,
            rows=found.rows,
            has_more_rows=found.has_more_rows,
            message=message,
        )
