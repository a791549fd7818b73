"""A database: stream the rows of a SELECT, run other statements unchanged, list the tables.

Rows come straight from the driver's cursor. SQLAlchemy connects, quotes names and binds values.
Drivers run in autocommit mode: a transaction begins only where this module or a statement of the
user begins one.

The user's own statements share one connection, with its transaction, temporary tables and settings.
Once this connection exists, `reading` and `connecting` use it, too, and see the same state; only
SQLite is read through another connection unless the session has temporary or attached tables.
`tables` and `primary_key` always use a separate connection.
"""

import importlib
import re
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from typing import Any

import sqlalchemy as sa

from edl_horovod.errors import DataError, Interrupted, MissingDependency, how_to_install
from edl_horovod.sql import sqlite_rows
from edl_horovod.sql.confinement import DUCKDB_CONFIG, MYSQL_ARGUMENTS, confine_sqlite
from edl_horovod.sql.rows import Rows, SelectColumn, first_rows, server_cursor_rows
from edl_horovod.sql.statements import Result
from edl_horovod.sql.urls import DatabaseURL, parse_url

CONNECT_SECONDS = 10
"""How long a server may take to accept a connection."""
LOCK_SECONDS = 30
"""How long to wait for a lock that another writer holds."""
_SHOWN_CHARACTERS = 500
_CONFINED = (
    "Check the statement and the database. In this service statements cannot access files or load"
    " code."
)
_LOST = (
    "The connection is lost: uncommitted changes are rolled back, and temporary tables and settings"
    " of the session are gone. The next statement opens a new connection."
)
_STATELESS = re.compile(
    r"[\s(]*(ALTER|ANALYZE|BEGIN|COMMENT|COMMIT|COPY|CREATE|DELETE|DESC|DESCRIBE|DROP|END|EXPLAIN"
    r"|FROM|GRANT|INSERT|MERGE|OPTIMIZE|REINDEX|RELEASE|REPLACE|REVOKE|ROLLBACK|SAVEPOINT|SELECT"
    r"|SHOW|START|TABLE|TRUNCATE|UPDATE|VACUUM|VALUES|WITH)\b",
    re.IGNORECASE,
)
"""Statements that change nothing in the connection but its transaction, unless they create a
temporary object."""
_TEMPORARY = re.compile(r"\bTEMP(ORARY)?\b", re.IGNORECASE)
_READS = re.compile(r"[\s(]*(SELECT|TABLE|VALUES|WITH)\b", re.IGNORECASE)
_READ_ONLY_BLOCK = ("BEGIN READ ONLY", "COMMIT", "ROLLBACK")
_READ_ONLY_IN_TRANSACTION = (
    "SAVEPOINT edl_reading; SET TRANSACTION READ ONLY",
    "RELEASE edl_reading",
    "ROLLBACK TO edl_reading; RELEASE edl_reading",
)
"""Statements that begin, end and undo a read-only block in PostgreSQL: the first outside of a
transaction, the second within one."""
_NOT_READ_ONLY = ("0A000", "25001", "25006", "42601", "42P11")
"""SQLSTATEs of statements that PostgreSQL refuses in a cursor or a read-only transaction."""
_MYSQL_IN_TRANSACTION = 1
"""`SERVER_STATUS_IN_TRANS` of the protocol."""
_READ_ONLY_SESSION: Mapping[str, tuple[str, str]] = {
    "sqlite": ("", "PRAGMA query_only = OFF"),  # `open_select` turns it on.
    "postgres": ("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY", "ROLLBACK"),
    "mysql": ("START TRANSACTION READ ONLY", "ROLLBACK"),
    "duckdb": ("BEGIN TRANSACTION READ ONLY", "ROLLBACK"),
}
"""Statements that make a connection read-only, and that end this state."""


class DatabaseError(DataError):
    """The database refused a statement or is unreachable."""


@contextmanager
def open_engine(url: str, *, is_confined: bool = False) -> Iterator["Engine"]:
    """Open a database; the end of the `with` closes it and rolls an open transaction back.

    The first statement connects, not this function.

    Args:
        url: URL of the database.
        is_confined: Whether statements must stay within the database; see `confinement`.

    Raises:
        ConfigError: The URL is malformed or names an unsupported engine.
        DataError: The database file does not exist.
        MissingDependency: The engine's driver is not installed.
    """
    database_url = parse_url(url)
    try:
        importlib.import_module(database_url.driver.module)
    except ImportError as e:
        problem = f"The driver of this database, {database_url.driver.module}, is not installed."
        hint = f"To get it, {how_to_install(database_url.driver.extra)}."
        raise MissingDependency(problem, received={"db": database_url.label}, hint=hint) from e
    engine = sa.create_engine(database_url.url, **_options(database_url, is_confined=is_confined))
    if database_url.dialect == "sqlite":
        sa.event.listen(engine, "connect", _disable_implicit_transactions)
        if is_confined:
            sa.event.listen(engine, "connect", lambda connection, _: confine_sqlite(connection))
    database = Engine(engine, database_url, is_confined=is_confined)
    try:
        yield database
    finally:
        database.end_session()
        engine.dispose()


def _options(database_url: DatabaseURL, *, is_confined: bool) -> dict[str, Any]:
    if database_url.dialect == "sqlite":
        return {"poolclass": sa.NullPool, "connect_args": {"timeout": LOCK_SECONDS}}
    if database_url.dialect == "duckdb":
        # Its default pool keeps one connection, which an in-memory database needs.
        return {"connect_args": {"config": DUCKDB_CONFIG}} if is_confined else {}
    has_timeout = "connect_timeout" in database_url.url.query
    options: dict[str, Any] = {} if has_timeout else {"connect_timeout": CONNECT_SECONDS}
    if database_url.dialect == "mysql":
        options |= {"conv": _mysql_converters(), **(MYSQL_ARGUMENTS if is_confined else {})}
    return {"poolclass": sa.NullPool, "connect_args": options, "isolation_level": "AUTOCOMMIT"}


def _mysql_converters() -> dict[Any, Any]:
    """The driver's converters, with whole numbers for values of BIT, which it returns as bytes."""
    bit = importlib.import_module("pymysql.constants.FIELD_TYPE").BIT
    return {
        **importlib.import_module("pymysql.converters").conversions,
        bit: lambda value: int.from_bytes(value, "big"),
    }


def _disable_implicit_transactions(connection: Any, _: Any) -> None:
    # Otherwise sqlite3 begins transactions before INSERT, UPDATE and DELETE, but not before DDL.
    connection.isolation_level = None


class Engine:
    """An open database, created by `open_engine`."""

    def __init__(self, engine: sa.Engine, database_url: DatabaseURL, *, is_confined: bool) -> None:
        self.label = database_url.label
        """The URL without user, password and options."""
        self.dialect = database_url.dialect
        """The engine's SQL dialect by its name in sqlglot."""
        self._engine = engine
        self._database_url = database_url
        self._is_confined = is_confined
        self._session: sa.Connection | None = None
        """The connection of the user's own statements; None before the first."""
        self.open_transaction = ""
        """The statement that opened the session's transaction; empty if no transaction is open."""
        self._has_state = False

    def __repr__(self) -> str:
        return f"Engine({self.label!r})"

    def select_columns(self, select: str) -> tuple[SelectColumn, ...]:
        """The columns of a SELECT, without reading its rows.

        Raises:
            DataError: The engine refuses the SELECT.
        """
        if self.dialect == "mysql":
            # Closing its cursor reads all remaining rows.
            select = f"SELECT * FROM (\n{select}\n) AS edl_select LIMIT 0"
        with self.reading(select) as rows:
            return rows.columns

    @contextmanager
    def reading(self, select: str) -> Iterator[Rows]:
        """Run a SELECT unchanged, in a transaction that cannot write, and stream its rows.

        Raises:
            DataError: The engine refuses the SELECT, returns no result set, or is unreachable.
        """
        with self.translated_errors("run the SELECT"):
            if self.dialect == "sqlite" and not self._has_private_tables():
                url, dialect = self._database_url.url, self._engine.dialect
                arguments, options = dialect.create_connect_args(url)
                options, is_confined = {**options, "timeout": LOCK_SECONDS}, self._is_confined
                with sqlite_rows.reading(
                    arguments, options, select, is_confined=is_confined
                ) as rows:
                    yield rows
                return
            with self._connected() as connection, self._read_only(connection):
                driver = _driver_of(connection)
                if self.dialect == "sqlite":
                    cursor, columns = sqlite_rows.open_select(driver, select)
                    yield Rows(columns=columns, fetch=cursor.fetchmany)
                    return
                if self.dialect == "duckdb":
                    _require_select(driver, select)
                with self.streaming(connection, select) as cursor:
                    yield self._rows(cursor, select)

    @contextmanager
    def streaming(self, connection: sa.Connection, select: str) -> Iterator[Any]:
        """The driver's cursor over the rows of a SELECT, which stay in the server until fetched."""
        # SQLAlchemy's results copy every row, which halves the speed.
        driver = connection.connection
        is_named = self.dialect == "postgres"
        cursor = driver.cursor("edl_rows") if is_named else self._unbuffered_cursor(driver)
        try:
            cursor.execute(select)
            yield cursor
        finally:
            with suppress(self._engine.dialect.loaded_dbapi.Error):
                cursor.close()

    def execute(self, text: str) -> Result:
        """Run a statement of the user unchanged, on the connection of the session.

        Raises:
            DataError: The engine refuses the statement or is unreachable.
            Interrupted: Ctrl-C ended the connection.
        """
        with self.translated_errors("run the statement"):
            if self._session is None:
                self._session = self._engine.connect()
            try:
                result = self._execute(self._session, text)
            finally:
                self._note_transaction(text)
            # Only after success: a session without state can end with its call.
            if _TEMPORARY.search(text) or not _STATELESS.match(text):
                self._has_state = True
            return result

    def _execute(self, session: sa.Connection, text: str) -> Result:
        driver = _driver_of(session)
        if self.dialect == "postgres" and _READS.match(text):
            result = self._first_rows_in_postgres(session, text)
            if result is not None:
                return result
        # In MySQL closing it reads and discards the remaining rows: statements run to their end.
        with closing(self._unbuffered_cursor(driver)) as cursor:
            cursor.execute(text)
            return _statement_result(cursor)

    def _unbuffered_cursor(self, driver: Any) -> Any:
        """A cursor that fetches rows when they are asked for, if the driver has such ones."""
        if self.dialect != "mysql":
            return driver.cursor()
        return driver.cursor(importlib.import_module("pymysql.cursors").SSCursor)

    def _first_rows_in_postgres(self, session: sa.Connection, text: str) -> Result | None:
        """The first rows of a SELECT in PostgreSQL; the others are never transferred.

        None, and nothing has been executed, if the statement also writes: it must then run for all
        of its rows.
        """
        driver = _driver_of(session)
        is_open = bool(driver.info.transaction_status)
        begin, end, undo = _READ_ONLY_IN_TRANSACTION if is_open else _READ_ONLY_BLOCK
        try:
            self._run(driver, begin)
            with self.streaming(session, text) as cursor:
                result = _statement_result(cursor)
            self._run(driver, end)
        except BaseException as e:
            if getattr(e, "sqlstate", None) in _NOT_READ_ONLY:
                self._run(driver, undo)
                return None
            if not is_open and not driver.closed:
                driver.rollback()
            raise
        return result

    @property
    def session_state(self) -> str:
        """What the end of the session would lose, as a phrase; empty if it would lose nothing."""
        if self.open_transaction:
            return f"the open transaction of {self.open_transaction!r}"
        return "its temporary tables and settings" if self._has_state else ""

    @property
    def has_session(self) -> bool:
        """Whether the user's statements have opened the shared connection."""
        return self._session is not None

    def end_session(self) -> None:
        """Close the connection of the user's statements; an open transaction is rolled back."""
        if self._session is not None:
            session, self._session = self._session, None
            self.open_transaction, self._has_state = "", False
            with suppress(sa.exc.SQLAlchemyError, self._engine.dialect.loaded_dbapi.Error):
                _driver_of(session).rollback()
            with suppress(sa.exc.SQLAlchemyError, self._engine.dialect.loaded_dbapi.Error):
                session.close()

    def tables(self) -> dict[str, tuple[str, ...]]:
        """The tables and views of the default schema, with their columns.

        This uses a separate connection, so it may be called while a statement runs.

        Raises:
            DataError: The engine is unreachable.
        """
        with self.translated_errors("list the tables"), self._engine.connect() as connection:
            inspector = sa.inspect(connection)
            if self.dialect == "mysql" and inspector.default_schema_name is None:
                return {}
            return {
                table: tuple(column["name"] for column in inspector.get_columns(table))
                for table in sorted({*inspector.get_table_names(), *inspector.get_view_names()})
            }

    @contextmanager
    def connecting(self) -> Iterator[sa.Connection]:
        """The connection of the session, or a new one; writes need a `transaction`.

        Raises:
            DataError: The engine refuses a statement or is unreachable.
        """
        with self.translated_errors("run the statement"), self._connected() as connection:
            yield connection

    def session_database(self, connection: sa.Connection) -> str:
        """The database in which MySQL looks up names now; SQLAlchemy does not notice USE.

        Empty for other engines, which look up names in several schemas.

        Raises:
            DataError: No database is selected, so that no temporary table can be made either.
        """
        if self.dialect != "mysql":
            return ""
        database = self.run_text(connection, "SELECT DATABASE()").scalar()
        if database is None:
            raise DataError(
                "The statement needs a database, and the connection has selected none.",
                received={"db": self.label},
                hint="Name a database at the end of the URL, or run USE with its name first.",
            )
        return str(database)

    @contextmanager
    def transaction(self, connection: sa.Connection, *, writes: bool = True) -> Iterator[None]:
        """A transaction that is committed if the `with` ends without an error.

        Without `writes` only temporary tables may change; then SQLite does not lock other writers
        out.
        """
        if self.dialect != "duckdb":  # SQLAlchemy begins one there.
            is_immediate = writes and self.dialect == "sqlite"
            connection.exec_driver_sql("BEGIN IMMEDIATE" if is_immediate else "BEGIN")
        try:
            yield
        except BaseException:
            connection.rollback()
            raise
        connection.commit()

    def quoted(self, name: str) -> str:
        """A name in the quotes of the engine's SQL."""
        # SQLAlchemy's own function doubles %, which is right only for statements with parameters.
        preparer = self._engine.dialect.identifier_preparer
        escaped = name.replace(preparer.final_quote, 2 * preparer.final_quote)
        return f"{preparer.initial_quote}{escaped}{preparer.final_quote}"

    @contextmanager
    def translated_errors(self, action: str) -> Iterator[None]:
        """Replace errors of the driver and of SQLAlchemy by a `DatabaseError` without secrets.

        Args:
            action: What the database is asked to do, as an infinitive.

        Raises:
            DataError: The engine refuses the request or is unreachable.
            Interrupted: Ctrl-C ended the connection.
        """
        drivers_error = self._engine.dialect.loaded_dbapi.Error
        try:
            yield
        except (sa.exc.SQLAlchemyError, drivers_error) as e:
            error = getattr(e, "orig", None) or e
            message = " ".join(str(error).split()) or type(error).__name__
            message = self._database_url.without_secrets(message)[:_SHOWN_CHARACTERS]
            # Without its cause, which may show the password in the URL.
            problem = f"The database could not {action}: {message.rstrip('.')}."
            raise DatabaseError(problem, received={"db": self.label}, hint=self._hint()) from None
        except KeyboardInterrupt:
            if self._drop_lost_session():
                raise Interrupted("The statement was interrupted.", hint=_LOST) from None
            raise

    @staticmethod
    def run_text(connection: sa.Connection, text: str) -> sa.CursorResult[Any]:
        """Run a text in which nothing is taken for a parameter."""
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
            with suppress(sa.exc.SQLAlchemyError):  # The connection may be lost.
                self._session.rollback()

    @contextmanager
    def _read_only(self, connection: sa.Connection) -> Iterator[None]:
        """Make a connection read-only within the `with`."""
        driver = _driver_of(connection)
        begin, end = _READ_ONLY_SESSION[self.dialect]
        if begin:
            self._run(driver, begin)
        try:
            yield
        finally:
            with suppress(self._engine.dialect.loaded_dbapi.Error):  # The connection may be lost.
                self._run(driver, end)

    @staticmethod
    def _run(driver: Any, text: str) -> Any:
        """Run a statement and return its cursor."""
        cursor = driver.cursor()
        cursor.execute(text)
        return cursor

    def _has_private_tables(self) -> bool:
        """Whether the session of SQLite has temporary or attached tables."""
        if self._session is None:
            return False
        text = (
            "SELECT EXISTS (SELECT 1 FROM sqlite_temp_master) OR EXISTS"
            " (SELECT 1 FROM pragma_database_list WHERE name NOT IN ('main', 'temp'))"
        )
        return bool(self._run(_driver_of(self._session), text).fetchone()[0])

    def _note_transaction(self, text: str) -> None:
        """Remember the statement that opened the current transaction."""
        assert self._session is not None
        try:
            is_open = self._is_in_transaction(_driver_of(self._session))
        except self._engine.dialect.loaded_dbapi.Error:
            # DuckDB answers no query in a failed transaction; elsewhere the connection is lost.
            is_open = self.dialect == "duckdb"
        if not is_open:
            self.open_transaction = ""
        elif not self.open_transaction:
            self.open_transaction = _shortened(text)

    def _is_in_transaction(self, driver: Any) -> bool:
        if self.dialect == "sqlite":
            return bool(driver.in_transaction)
        if self.dialect == "postgres":
            return bool(driver.info.transaction_status)
        if self.dialect == "mysql":
            driver.ping()  # The last packet of a result does not carry the status.
            return bool(driver.server_status & _MYSQL_IN_TRANSACTION)
        # In autocommit mode every statement has another transaction.
        transaction_ids = [self._run(driver, "SELECT txid_current()").fetchone() for _ in range(2)]
        return bool(transaction_ids[0] == transaction_ids[1])

    def _drop_lost_session(self) -> bool:
        """Drop the session's connection if it is lost; returns whether it was."""
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
        if self._drop_lost_session():
            return _LOST
        return _CONFINED if self._is_confined else "Check the statement and the database."

    def _rows(self, cursor: Any, select: str) -> Rows:
        if cursor.description is None:
            problem = "The statement returns no rows."
            hint = "Write a SELECT."
            raise DataError(problem, received={"statement": _shortened(select)}, hint=hint)
        description = cursor.description
        columns = tuple(SelectColumn(str(item[0]), self._type_name(item)) for item in description)
        if self.dialect == "postgres":
            return Rows(columns=columns, fetch=server_cursor_rows(cursor))
        return Rows(columns=columns, fetch=lambda num_rows: list(cursor.fetchmany(num_rows)))

    def _type_name(self, column: Any) -> str:
        if self.dialect == "postgres":
            return str(column.type_display)
        if self.dialect == "mysql":
            codes = vars(importlib.import_module("pymysql.constants.FIELD_TYPE"))
            return next((name for name, code in codes.items() if code == column[1]), "")
        return str(column[1])


def _driver_of(connection: sa.Connection) -> Any:
    """The driver's connection, on which SQLAlchemy does not begin or commit transactions."""
    return connection.connection.driver_connection


def _require_select(driver: Any, text: str) -> None:
    """Refuse text that DuckDB would run as another statement, such as WITH ... DELETE.

    Its read-only transactions can still change temporary tables.
    """
    kinds = [statement.type.name for statement in driver.extract_statements(text)]
    if kinds != ["SELECT"]:
        problem = "The statement is not a SELECT."
        raise DataError(problem, received={"statement": _shortened(text)}, hint="Write a SELECT.")


def _statement_result(cursor: Any) -> Result:
    """The first rows of a statement, or the number of rows that it changed."""
    if cursor.description is None:
        num_changed = cursor.rowcount
        return Result(
            message=f"{num_changed:,} rows were changed." if num_changed >= 0 else "Done."
        )
    rows, has_more_rows = first_rows(cursor.fetchmany)
    columns = tuple(str(column[0]) for column in cursor.description)
    # PostgreSQL's SELECT may have no columns.
    message = "" if columns else "Done."
    return Result(columns=columns, rows=rows, has_more_rows=has_more_rows, message=message)


def _shortened(text: str) -> str:
    one_line = " ".join(text.split())
    return one_line if len(one_line) <= 80 else f"{one_line[:77]}..."
