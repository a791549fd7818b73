"""A database: run a SELECT unchanged and stream its rows, run other statements, name its tables.

Rows come straight from the driver's cursor. SQLAlchemy connects, quotes names and binds values.
Drivers commit by themselves: a transaction begins where we, or a statement of the user, say so.

The user's own statements share one connection, with its transaction, temporary tables and settings.
Once there is one, all else is done through it, too, and sees the same.
"""

import importlib
import re
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from edl_horovod.errors import DataError, Interrupted, MissingDependency, how_to_install
from edl_horovod.sql import sqlite_rows
from edl_horovod.sql.confinement import DUCKDB_CONFIG, MYSQL_ARGUMENTS, confine_sqlite
from edl_horovod.sql.rows import Rows, SelectColumn, first_rows, from_server
from edl_horovod.sql.sqlite_process import open_select
from edl_horovod.sql.urls import DatabaseURL, parse_url

__all__ = ["DatabaseError", "Engine", "StatementResult", "open_engine"]

CONNECT_SECONDS = 10
"""How long a server may take to accept a connection."""
LOCK_SECONDS = 30
"""How long another writer of a sqlite file is waited for."""
_SHOWN_CHARACTERS = 500
_CONFINED = (
    "See to the statement, or to the database. In this service statements reach no files and load"
    " no code."
)
_LOST = (
    "The connection is lost: what no COMMIT had ended is rolled back, and temporary tables and"
    " settings of the session are gone. The next statement begins a new one."
)
_LEAVES_NOTHING = re.compile(
    r"[\s(]*(ALTER|ANALYZE|BEGIN|COMMENT|COMMIT|COPY|CREATE|DELETE|DESC|DESCRIBE|DROP|END|EXPLAIN"
    r"|FROM|GRANT|INSERT|MERGE|OPTIMIZE|REINDEX|RELEASE|REPLACE|REVOKE|ROLLBACK|SAVEPOINT|SELECT"
    r"|SHOW|START|TABLE|TRUNCATE|UPDATE|VACUUM|VALUES|WITH)\b",
    re.IGNORECASE,
)
"""Statements that leave nothing in the connection beside a transaction, unless they make something
temporary."""
_TEMPORARY = re.compile(r"\bTEMP(ORARY)?\b", re.IGNORECASE)
_READS = re.compile(r"[\s(]*(SELECT|TABLE|VALUES|WITH)\b", re.IGNORECASE)
_READING = ("BEGIN READ ONLY", "COMMIT", "ROLLBACK")
_READING_WITHIN = (
    "SAVEPOINT edl_reading; SET TRANSACTION READ ONLY",
    "RELEASE edl_reading",
    "ROLLBACK TO edl_reading; RELEASE edl_reading",
)
"""What begins, ends and undoes reading in PostgreSQL, the second within an open transaction."""
_MORE_THAN_READING = ("0A000", "25001", "25006", "42601", "42P11")
"""SQLSTATEs of what PostgreSQL refuses in a cursor, or in a transaction that reads."""
_MYSQL_IN_TRANSACTION = 1
"""`SERVER_STATUS_IN_TRANS` of the protocol."""
_READING_ALONE: Mapping[str, tuple[str, str]] = {
    "sqlite": ("", "PRAGMA query_only = OFF"),  # `open_select` turns it on.
    "postgres": ("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY", "ROLLBACK"),
    "mysql": ("START TRANSACTION READ ONLY", "ROLLBACK"),
    "duckdb": ("BEGIN TRANSACTION READ ONLY", "ROLLBACK"),
}
"""What makes a connection refuse to write, and what ends that."""


class DatabaseError(DataError):
    """The database refused something, or is gone."""


@dataclass(frozen=True, kw_only=True)
class StatementResult:
    """What a statement gave: rows, or how many rows it changed."""

    columns: tuple[str, ...] = ()
    """Empty if the statement gives no rows."""
    rows: tuple[tuple[Any, ...], ...] = ()
    has_more_rows: bool = False
    """Whether there are more than these, which are as many as a user gets."""
    num_changed: int | None = None
    """None if the engine does not say."""


@contextmanager
def open_engine(url: str, *, is_confined: bool = False) -> Iterator["Engine"]:
    """A database, closed when the `with` ends: an open transaction is rolled back.

    Nothing is connected yet.

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
            hint=f"To get it, {how_to_install(where.extra)}.",
        ) from e
    engine = sa.create_engine(where.url, **_options(where, is_confined=is_confined))
    if where.dialect == "sqlite":
        sa.event.listen(engine, "connect", _leave_transactions_to_us)
        if is_confined:
            sa.event.listen(engine, "connect", lambda connection, _: confine_sqlite(connection))
    database = Engine(engine, where, is_confined=is_confined)
    try:
        yield database
    finally:
        database.end_session()
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
    return {"poolclass": sa.NullPool, "connect_args": options, "isolation_level": "AUTOCOMMIT"}


def _leave_transactions_to_us(connection: Any, _: Any) -> None:
    # Python's sqlite3 begins no transaction before DDL, unless it begins none at all.
    connection.isolation_level = None


class Engine:
    """A database that statements run in; `open_engine` makes it."""

    def __init__(self, engine: sa.Engine, where: DatabaseURL, *, is_confined: bool) -> None:
        self._engine = engine
        self._where = where
        self._is_confined = is_confined
        self._session: sa.Connection | None = None
        """Of the user's own statements; None before the first."""
        self._opened_by = ""
        self._has_state = False

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
            if self.dialect == "sqlite" and not self._has_tables_of_its_own():
                arguments, options = self._engine.dialect.create_connect_args(self._where.url)
                options = {**options, "timeout": LOCK_SECONDS}
                with sqlite_rows.reading(
                    arguments, options, select, is_confined=self._is_confined
                ) as rows:
                    yield rows
                return
            with self._connected() as connection, self._reading_alone(connection):
                driver = _driver_of(connection)
                if self.dialect == "sqlite":
                    cursor, columns = open_select(driver, select)
                    yield Rows(columns=sqlite_rows.columns_of(columns), fetch=cursor.fetchmany)
                    return
                if self.dialect == "duckdb":
                    _require_select(driver, select)
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
        """Run a statement of the user unchanged, on the connection of the session.

        Raises:
            DataError: The engine refuses the statement, or is gone.
            Interrupted: Ctrl-C ended the connection.
        """
        with self.said("run the statement"):
            if self._session is None:
                self._session = self._engine.connect()
            try:
                result = self._execute(self._session, text)
            finally:
                self._note_transaction(text)
            # Not where it was refused: a session without state ends with its call.
            if _TEMPORARY.search(text) or not _LEAVES_NOTHING.match(text):
                self._has_state = True
            return result

    def _execute(self, session: sa.Connection, text: str) -> StatementResult:
        driver = _driver_of(session)
        if self.dialect == "postgres" and _READS.match(text):
            found = self._first_rows_of_server(session, text)
            if found is not None:
                return found
        if self.dialect == "mysql":
            # When it is closed it reads what is left, and forgets it: no statement ends early.
            cursor = driver.cursor(importlib.import_module("pymysql.cursors").SSCursor)
        else:
            cursor = driver.cursor()
        with closing(cursor):
            cursor.execute(text)
            return _taken(cursor)

    def _first_rows_of_server(self, session: sa.Connection, text: str) -> StatementResult | None:
        """The first rows of a SELECT of PostgreSQL, whose others stay in the server.

        None if it does more than reading, which must happen for all rows: nothing is done then.
        """
        driver = _driver_of(session)
        is_open = bool(driver.info.transaction_status)
        begin, end, undo = _READING_WITHIN if is_open else _READING
        try:
            self._run(driver, begin)
            with self.streaming(session, text) as cursor:
                found = _taken(cursor)
            self._run(driver, end)
        except BaseException as e:
            if getattr(e, "sqlstate", None) in _MORE_THAN_READING:
                self._run(driver, undo)
                return None
            if not is_open and not driver.closed:
                driver.rollback()
            raise
        return found

    @property
    def session_state(self) -> str:
        """What would be lost if the session ended now, as a phrase; empty for nothing."""
        if self._opened_by:
            return f"the open transaction of {self._opened_by!r}"
        return "its temporary tables and settings" if self._has_state else ""

    @property
    def has_session(self) -> bool:
        """Whether there is a connection of the user's own statements, which others go through."""
        return self._session is not None

    @property
    def open_transaction(self) -> str:
        """The statement that opened the transaction of the session; empty if none is open."""
        return self._opened_by

    def end_session(self) -> None:
        """Close the connection of the user's own statements, which rolls back what is open."""
        if self._session is not None:
            session, self._session = self._session, None
            self._opened_by, self._has_state = "", False
            with suppress(sa.exc.SQLAlchemyError, self._engine.dialect.loaded_dbapi.Error):
                _driver_of(session).rollback()
            with suppress(sa.exc.SQLAlchemyError, self._engine.dialect.loaded_dbapi.Error):
                session.close()

    def tables(self) -> dict[str, tuple[str, ...]]:
        """Tables and views where the engine looks first, with their columns.

        It has a connection of its own, so it may be called while a statement runs.

        Raises:
            DataError: The engine is gone.
        """
        with self.said("list the tables"), self._engine.connect() as connection:
            found = sa.inspect(connection)
            return {
                table: tuple(column["name"] for column in found.get_columns(table))
                for table in sorted({*found.get_table_names(), *found.get_view_names()})
            }

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
        """The connection of the session, or a new one; what is written is in a `transaction`.

        Raises:
            DataError: The engine refuses a statement, or is gone.
        """
        with self.said("do what a statement needs"), self._connected() as connection:
            yield connection

    @contextmanager
    def transaction(self, connection: sa.Connection, *, writes: bool = True) -> Iterator[None]:
        """Commit what is done on a connection if the `with` ends without an error.

        Without `writes` only temporary tables change, and no other writer of sqlite has to wait.
        """
        if self.dialect != "duckdb":  # There SQLAlchemy begins one by itself.
            is_immediate = writes and self.dialect == "sqlite"
            connection.exec_driver_sql("BEGIN IMMEDIATE" if is_immediate else "BEGIN")
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
            raise DatabaseError(
                f"The database could not {doing}: {said.rstrip('.')}.",
                received={"db": self.label},
                hint=self._hint(),
            ) from None
        except KeyboardInterrupt:
            if self._forget_lost():
                raise Interrupted("The statement was interrupted.", hint=_LOST) from None
            raise

    @staticmethod
    def run_text(connection: sa.Connection, text: str) -> sa.CursorResult[Any]:
        """Run a text as it is: what looks like a parameter in it is none."""
        return connection.exec_driver_sql(text, execution_options={"no_parameters": True})

    @contextmanager
    def _connected(self) -> Iterator[sa.Connection]:
        if self._session is None:
            with self._engine.connect() as connection:
                yield connection
            return
        try:
            yield self._session
        finally:
            with suppress(sa.exc.SQLAlchemyError):  # It may be lost.
                self._session.rollback()

    @contextmanager
    def _reading_alone(self, connection: sa.Connection) -> Iterator[None]:
        """Nothing can be written in the `with`."""
        driver = _driver_of(connection)
        begin, end = _READING_ALONE[self.dialect]
        if begin:
            self._run(driver, begin)
        try:
            yield
        finally:
            with suppress(self._engine.dialect.loaded_dbapi.Error):  # It may be lost.
                self._run(driver, end)

    @staticmethod
    def _run(driver: Any, text: str) -> Any:
        """Run a text; returns its cursor."""
        cursor = driver.cursor()
        cursor.execute(text)
        return cursor

    def _has_tables_of_its_own(self) -> bool:
        """Whether the session of sqlite has tables that another process does not see."""
        if self._session is None:
            return False
        text = (
            "SELECT EXISTS (SELECT 1 FROM sqlite_temp_master) OR EXISTS"
            " (SELECT 1 FROM pragma_database_list WHERE name NOT IN ('main', 'temp'))"
        )
        return bool(self._run(_driver_of(self._session), text).fetchone()[0])

    def _note_transaction(self, text: str) -> None:
        """Remember which statement opened the transaction that is open."""
        assert self._session is not None
        try:
            is_open = self._is_in_transaction(_driver_of(self._session))
        except self._engine.dialect.loaded_dbapi.Error:
            # DuckDB answers nothing within a transaction that has failed; or it is lost.
            is_open = self.dialect == "duckdb"
        if not is_open:
            self._opened_by = ""
        elif not self._opened_by:
            self._opened_by = _short(text)

    def _is_in_transaction(self, driver: Any) -> bool:
        if self.dialect == "sqlite":
            return bool(driver.in_transaction)
        if self.dialect == "postgres":
            return bool(driver.info.transaction_status)
        if self.dialect == "mysql":
            driver.ping()  # The end of rows does not bring the state along.
            return bool(driver.server_status & _MYSQL_IN_TRANSACTION)
        # By itself each statement has a transaction of its own.
        numbers = [self._run(driver, "SELECT txid_current()").fetchone() for _ in range(2)]
        return bool(numbers[0] == numbers[1])

    def _forget_lost(self) -> bool:
        """Drop the connection of the session if it is lost; whether it was."""
        if self._session is None:
            return False
        if not self._session.invalidated:
            driver = _driver_of(self._session)
            if self.dialect not in ("postgres", "mysql"):
                return False
            if not driver.closed if self.dialect == "postgres" else driver.open:
                return False
        self.end_session()
        return True

    def _hint(self) -> str:
        """What to do about an error of the database."""
        if self._forget_lost():
            return _LOST
        return _CONFINED if self._is_confined else "See to the statement, or to the database."

    def _rows(self, cursor: Any, select: str) -> Rows:
        if cursor.description is None:
            raise DataError(
                "The statement gives no rows.",
                received={"statement": _short(select)},
                hint="Write a SELECT.",
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


def _driver_of(connection: sa.Connection) -> Any:
    """The driver's connection, by which SQLAlchemy neither begins nor commits anything."""
    return connection.connection.driver_connection


def _require_select(driver: Any, text: str) -> None:
    """Refuse what DuckDB would run as another kind of statement, as WITH before DELETE.

    Its transactions that cannot write can still change temporary tables.
    """
    kinds = [statement.type.name for statement in driver.extract_statements(text)]
    if kinds != ["SELECT"]:
        raise DataError(
            "The statement is not a SELECT.",
            received={"statement": _short(text)},
            hint="Write a SELECT.",
        )


def _taken(cursor: Any) -> StatementResult:
    """The first rows of a statement, or how many it changed."""
    if cursor.description is None:
        changed = cursor.rowcount
        return StatementResult(num_changed=changed if changed >= 0 else None)
    rows, has_more_rows = first_rows(cursor.fetchmany)
    return StatementResult(
        columns=tuple(str(column[0]) for column in cursor.description),
        rows=rows,
        has_more_rows=has_more_rows,
    )


def _short(text: str) -> str:
    one_line = " ".join(text.split())
    return one_line if len(one_line) <= 80 else f"{one_line[:77]}..."
