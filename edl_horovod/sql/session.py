"""A session, which runs statements on one database one after the other."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from edl_horovod.sql.catalog import run_catalog_statement
from edl_horovod.sql.context import RunJob, StatementContext
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

__all__ = ["Session", "open_session"]

_SELECTING = (Train, Predict, Evaluate, EvaluateColumns, Explain)
"""Statements that read the rows of a SELECT."""


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
        if isinstance(statement, _SELECTING):
            self._require_no_transaction(statement)
        match statement:
            case Train():
                return train(self.context, statement)
            case Predict():
                return predict(self.context, statement)
            case Evaluate():
                return evaluate(self.context, statement)
            case EvaluateColumns():
                return evaluate_columns(self.context, statement)
            case Explain():
                return explain(self.context, statement)
            case Standard():
                return self._run_standard(statement)
        return run_catalog_statement(
            statement, self.context.store, is_dry_run=self.context.is_dry_run
        )

    def _require_no_transaction(self, statement: Statement) -> None:
        """Refuse, within a transaction, statements that read rows in a transaction of their own.

        Raises:
            StatementError: A transaction is open.
        """
        if opened_by := self.context.engine.open_transaction:
            verb = type(statement).__name__.removesuffix("Columns").upper()
            raise StatementError(
                f"{verb} cannot run within a transaction, and {opened_by!r} has opened one.",
                statement.position,
                hint="COMMIT or ROLLBACK it first.",
            )

    def _run_standard(self, statement: Standard) -> Result:
        engine = self.context.engine
        if self.context.is_dry_run:
            return Result(message=f"This would run on {engine.label}: {statement.text}")
        result = engine.execute(statement.text)
        message = ""
        if not result.columns:
            row_count = result.num_changed
            message = "Done." if row_count is None else f"{row_count:,} rows were changed."
        return Result(
            columns=result.columns,
            rows=result.rows,
            has_more_rows=result.has_more_rows,
            message=message,
        )
