"""A database: run a SELECT unchanged and stream its rows, run other statements, name its tables.

Rows come straight from the driver's cursor. SQLAlchemy connects, quotes names and binds values.
"""

import importlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from edl_horovod.errors import DataError, MissingDependency, how_to_install
from edl_horovod.sql import sqlite_rows
from edl_horovod.sql.confinement import DUCKDB_CONFIG, MYSQL_ARGUMENTS, confine_sqlite
from edl_horovod.sql.rows import Rows, SelectColumn, from_server
from edl_horovod.sql.urls import DatabaseURL, parse_url

__all__ = ["Engine", "StatementResult", "open_engine"]

CONNECT_SECONDS = 10
"""How long a server may take to accept a connection."""
LOCK_SECONDS = 30
"""How long another writer of a sqlite file is waited for."""
MOST_ROWS = 10_000
"""Rows of a statement's result that are read."""
_SHOWN_CHARACTERS = 500
_CONFINED = (
    "See to the statement, or to the database. In this service statements reach no files and load"
    " no code."
)


@dataclass(frozen=True, kw_only=True)
class StatementResult:
    """What a statement gave: rows, or how many rows it changed."""

    columns: tuple[str, ...] = ()
    """Empty if the statement gives no rows."""
    rows: tuple[tuple[Any, ...], ...] = ()
    has_more_rows: bool = False
    """Whether there are more than the MOST_ROWS that were read."""
    num_changed: int | None = None
    """None if the engine does not say."""


@contextmanager
def open_engine(url: str, *, is_confined: bool = False) -> Iterator["Engine"]:
    """A database, closed when the `with` ends. Nothing is connected yet.

    Args:
        url: Names the database.
        is_confined: Whether statements must stay within it; see `confinement`.

    Raises:
        ConfigError: The URL names no engine that is supported.
        DataError: The file that it names does not exist.
        MissingDependency: The engine's driver is not installed.
    """
    where = parse_url(url)
    try:
        importlib.import_module(where.module)
    except ImportError as e:
        raise MissingDependency(
            f"The driver of this database, {where.module}, is not installed.",
            received={"db": where.label},
            cure=f"To get it, {how_to_install(where.extra)}.",
        ) from e
    engine = sa.create_engine(where.url, **_options(where, is_confined=is_confined))
    if where.dialect == "sqlite":
        sa.event.listen(engine, "connect", _leave_transactions_to_us)
        if is_confined:
            sa.event.listen(engine, "connect", lambda connection, _: confine_sqlite(connection))
    try:
        yield Engine(engine, where, is_confined=is_confined)
    finally:
        engine.dispose()


def _options(where: DatabaseURL, *, is_confined: bool) -> dict[str, Any]:
    if where.dialect == "sqlite":
        return {"poolclass": sa.NullPool, "connect_args": {"timeout": LOCK_SECONDS}}
    if where.dialect == "duckdb":
        # Its own pool: one connection to what is in memory alone.
        return {"connect_args": {"config": DUCKDB_CONFIG}} if is_confined else {}
    options = {} if "connect_timeout" in where.url.query else {"connect_timeout": CONNECT_SECONDS}
    if is_confined and where.dialect == "mysql":
        options |= MYSQL_ARGUMENTS
    return {"poolclass": sa.NullPool, "connect_args": options}


def _leave_transactions_to_us(connection: Any, _: Any) -> None:
    # Python's sqlite3 begins no transaction before DDL, unless it begins none at all.
    connection.isolation_level = None


class Engine:
    """A database that statements run in; `open_engine` makes it."""

    def __init__(self, engine: sa.Engine, where: DatabaseURL, *, is_confined: bool) -> None:
        self._engine = engine
        self._where = where
        self._is_confined = is_confined

    def __repr__(self) -> str:
        return f"Engine({self.label!r})"

    @property
    def label(self) -> str:
        """The URL without user, password and options."""
        return self._where.label

    @property
    def dialect(self) -> str:
        """The name that sqlglot has for the SQL that the engine reads."""
        return self._where.dialect

    def select_columns(self, select: str) -> tuple[SelectColumn, ...]:
        """The columns that a SELECT gives, without reading its rows.

        Raises:
            DataError: The engine refuses the SELECT.
        """
        if self.dialect == "mysql":
            # Its cursor reads all rows that are left when it is closed.
            select = f"SELECT * FROM (\n{select}\n) AS edl_select LIMIT 0"
        with self.reading(select) as rows:
            return rows.columns

    @contextmanager
    def reading(self, select: str) -> Iterator[Rows]:
        """Run a SELECT unchanged, in a transaction that cannot write, and stream its rows.

        Raises:
            DataError: The engine refuses the SELECT, gives no rows for it, or is gone.
        """
        with self.said("run the SELECT"):
            if self.dialect == "sqlite":
                arguments, options = self._engine.dialect.create_connect_args(self._where.url)
                options = {**options, "timeout": LOCK_SECONDS}
                with sqlite_rows.reading(
                    arguments, options, select, is_confined=self._is_confined
                ) as rows:
                    yield rows
            else:
                with self._engine.connect() as connection:
                    self._forbid_writing(connection)
                    with self.streaming(connection, select) as cursor:
                        yield self._rows(cursor, select)

    @contextmanager
    def streaming(self, connection: sa.Connection, select: str) -> Iterator[Any]:
        """The driver's cursor over the rows of a SELECT, which stay in the server until read."""
        # SQLAlchemy's own results take rows apart and build them anew, which costs half the speed.
        driver = connection.connection
        if self.dialect == "postgres":
            cursor = driver.cursor("edl_rows")
        elif self.dialect == "mysql":
            cursor = driver.cursor(importlib.import_module("pymysql.cursors").SSCursor)
        else:
            cursor = driver.cursor()
        try:
            cursor.execute(select)
            yield cursor
        finally:
            with suppress(self._engine.dialect.loaded_dbapi.Error):
                cursor.close()

    def execute(self, text: str) -> StatementResult:
        """Run any other statement unchanged, by itself, and commit it.

        Raises:
            DataError: The engine refuses the statement, or is gone.
        """
        with self.said("run the statement"), self._engine.connect() as connection:
            if self.dialect in ("postgres", "mysql"):  # Some statements run in no transaction.
                connection = connection.execution_options(isolation_level="AUTOCOMMIT")
            result = self.run_text(connection, text)
            if result.returns_rows:
                rows = [tuple(row) for row in result.fetchmany(MOST_ROWS + 1)]
                found = StatementResult(
                    columns=tuple(result.keys()),
                    rows=tuple(rows[:MOST_ROWS]),
                    has_more_rows=len(rows) > MOST_ROWS,
                )
            else:
                changed = result.rowcount
                found = StatementResult(num_changed=changed if changed >= 0 else None)
            result.close()
            connection.commit()
            return found

    def tables(self) -> tuple[str, ...]:
        """The names of tables and views where the engine looks first, sorted.

        Raises:
            DataError: The engine is gone.
        """
        with self.said("list the tables"), self._engine.connect() as connection:
            found = sa.inspect(connection)
            return tuple(sorted({*found.get_table_names(), *found.get_view_names()}))

    def primary_key(self, table: str, *, schema: str | None = None) -> tuple[str, ...]:
        """The columns of a table's primary key; none if it has none.

        Raises:
            DataError: There is no such table, or the engine is gone.
        """
        with self.said("look at a table"), self._engine.connect() as connection:
            found = sa.inspect(connection).get_pk_constraint(table, schema=schema)
            return tuple(found["constrained_columns"])

    @contextmanager
    def connecting(self) -> Iterator[sa.Connection]:
        """A connection; what is written is in a `transaction`.

        Raises:
            DataError: The engine refuses a statement, or is gone.
        """
        with self.said("do what a statement needs"), self._engine.connect() as connection:
            yield connection

    @contextmanager
    def transaction(self, connection: sa.Connection, *, writes: bool = True) -> Iterator[None]:
        """Commit what is done on a connection if the `with` ends without an error.

        Without `writes` only temporary tables change, and no other writer of sqlite has to wait.
        """
        if self.dialect == "sqlite":
            connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
        try:
            yield
        except BaseException:
            connection.rollback()
            raise
        connection.commit()

    def quoted(self, name: str) -> str:
        """A name as the engine's SQL has it, in quotes."""
        # Not SQLAlchemy's function, which doubles % for drivers that are given values, too.
        preparer = self._engine.dialect.identifier_preparer
        escaped = name.replace(preparer.final_quote, 2 * preparer.final_quote)
        return f"{preparer.initial_quote}{escaped}{preparer.final_quote}"

    @contextmanager
    def said(self, doing: str) -> Iterator[None]:
        """Turn what the driver and SQLAlchemy raise into an error without secrets.

        Raises:
            DataError: The engine refused what was asked, or is gone.
        """
        drivers_error = self._engine.dialect.loaded_dbapi.Error
        try:
            yield
        except (sa.exc.SQLAlchemyError, drivers_error) as e:
            error = getattr(e, "orig", None) or e
            said = " ".join(str(error).split()) or type(error).__name__
            said = self._where.without_secrets(said)[:_SHOWN_CHARACTERS]
            # Without its cause, which may show what the URL holds.
            raise DataError(
                f"The database could not {doing}: {said.rstrip('.')}.",
                received={"db": self.label},
                cure=_CONFINED
                if self._is_confined
                else "See to the statement, or to the database.",
            ) from None

    @staticmethod
    def run_text(connection: sa.Connection, text: str) -> sa.CursorResult[Any]:
        """Run a text as it is: what looks like a parameter in it is none."""
        return connection.exec_driver_sql(text, execution_options={"no_parameters": True})

    def _forbid_writing(self, connection: sa.Connection) -> None:
        if self.dialect == "postgres":
            connection.execution_options(
                isolation_level="REPEATABLE READ", postgresql_readonly=True
            )
        elif self.dialect == "mysql":
            connection.exec_driver_sql("SET TRANSACTION READ ONLY")

    def _rows(self, cursor: Any, select: str) -> Rows:
        if cursor.description is None:
            raise DataError(
                "The statement gives no rows.",
                received={"statement": _short(select)},
                cure="Write a SELECT.",
            )
        columns = tuple(
            SelectColumn(name=str(column[0]), declared_type=self._type_name(column))
            for column in cursor.description
        )
        if self.dialect == "postgres":
            return Rows(columns=columns, fetch=from_server(cursor))
        return Rows(columns=columns, fetch=lambda num_rows: list(cursor.fetchmany(num_rows)))

    def _type_name(self, column: Any) -> str:
        if self.dialect == "postgres":
            return str(column.type_display)
        if self.dialect == "mysql":
            codes = vars(importlib.import_module("pymysql.constants.FIELD_TYPE"))
            return next((name for name, code in codes.items() if code == column[1]), "")
        return str(column[1])


def _short(text: str) -> str:
    one_line = " ".join(text.split())
    return one_line if len(one_line) <= 80 else f"{one_line[:77]}..."
