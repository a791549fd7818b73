"""Write predictions into the table of a PREDICT: stage them, then apply them in one transaction.

A process that is killed before the commit leaves the database unchanged. MariaDB and MySQL commit
ALTER TABLE by itself, so there it may leave a new column that is empty. Staged rows are in a
temporary table, which the engine drops with the connection.
"""

import datetime
import itertools
import math
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from edl_horovod.errors import DataError
from edl_horovod.sql.engine import LOCK_SECONDS, Engine
from edl_horovod.sql.export import (
    PROGRESS_SECONDS,
    ExportedTable,
    Progress,
    digest_of,
    read_key_data,
)
from edl_horovod.sql.kinds import DeclaredType, exact_type, type_of_value
from edl_horovod.sql.target import (
    MARK,
    TargetPlan,
    column_definition,
    declared_types,
    quoted_table,
    with_current_columns,
)

__all__ = ["try_writing", "write_predictions"]

_BATCH_ROWS = 1_000
_Row = tuple[Any, ...]
_LOCK_TIMEOUTS = {
    "postgres": (("lock_timeout",), "'{}s'", "current_setting('{}')"),
    "mysql": (("lock_wait_timeout", "innodb_lock_wait_timeout"), "{}", "@@SESSION.{}"),
}
"""Session settings that limit waits for locks: their names, the format of a value, how to query."""


@dataclass(frozen=True, kw_only=True)
class WriteSummary:
    """The numbers of rows that did and did not get predictions."""

    num_rows: int
    """Rows of the table that got a new prediction."""
    num_changed: int
    """Rows without a new prediction because their values changed since the SELECT ran."""
    num_gone: int
    """Rows that were deleted since the SELECT ran."""


@dataclass(frozen=True, kw_only=True)
class _StagedRows:
    """Rows in a temporary table of the connection that created it."""

    table: sa.Table
    """`edl_row`, the index of a row from 0, and the requested columns."""
    num_rows: int


def try_writing(engine: Engine, plan: TargetPlan) -> None:
    """Try the statements of `write_predictions` on no row and roll them back.

    This shows missing privileges and locks before the job runs. MariaDB commits DDL by itself, so
    there only existing columns are tried.

    Raises:
        DataError: The engine refuses a statement, or waits too long for a lock.
    """
    types = [type_of_value(values[0]) for values in plan.samples]
    table = quoted_table(engine, plan.table)
    with (
        engine.connecting() as connection,
        _limited_lock_waits(engine, connection),
        engine.transaction(connection),
    ):
        if plan.action == "update":
            _lock_table(engine, connection, plan)
            names = [name for name in plan.columns if name not in plan.new_columns]
            if engine.dialect != "mysql":
                _add_columns(engine, connection, plan, types)
                names = list(plan.columns)
            if names:
                values = ", ".join(f"{engine.quoted(name)} = NULL" for name in names)
                engine.run_text(connection, f"UPDATE {table} SET {values} WHERE 1 = 0")
        elif engine.dialect != "mysql":
            if plan.action == "replace":
                engine.run_text(connection, f"DROP TABLE {table}")
            engine.run_text(connection, f"CREATE TABLE {table} (edl_column INTEGER)")
        connection.rollback()


def write_predictions(
    engine: Engine,
    plan: TargetPlan,
    exported: ExportedTable,
    predictions: Iterable[Sequence[Any]],
    *,
    tell: Callable[[str], None],
    on_progress: Progress | None = None,
) -> WriteSummary:
    """Write predictions into their table, all of them or none.

    Args:
        engine: The database.
        plan: The changes to the table.
        exported: The rows of the predictions, exported with this plan.
        predictions: For each row a value for each column of the plan.
        tell: Called with a sentence about rows that got no prediction.
        on_progress: Called about twice a second while predictions are staged, and at the end.

    Raises:
        DataError: The numbers of predictions and rows differ, or the engine refuses a statement;
            the database is unchanged.
    """
    assert exported.key_data is not None
    first, predictions = _peek(predictions)
    replacement = _NullReplacement(engine.dialect)
    predictions = map(replacement.apply, predictions)
    types = [type_of_value(value) for value in first]
    key_data = read_key_data(exported.key_data)
    rows = _with_predictions(key_data, predictions, num_rows=exported.num_rows)
    if on_progress is not None:
        rows = _with_progress(rows, on_progress)
    plan = with_current_columns(engine, plan) if plan.action == "update" else plan
    with engine.connecting() as connection, _limited_lock_waits(engine, connection):
        if plan.action == "update":
            summary = _update_table(engine, connection, plan, types, rows, tell=tell)
        else:
            summary = _create_table(engine, connection, plan, exported, types, rows)
    if replacement.num_rows:
        tell(
            f"{replacement.num_rows:,} rows have predictions that the database cannot store, NaN or"
            " infinite numbers: these are NULL there."
        )
    return summary


class _NullReplacement:
    """Replaces predictions that the database cannot store by NULL."""

    def __init__(self, dialect: str) -> None:
        self.num_rows = 0
        self._dialect = dialect

    def apply(self, predicted: Sequence[Any]) -> Sequence[Any]:
        """The predictions of a row with such values replaced by NULL."""
        are_null = [isinstance(value, float) and self._is_null(value) for value in predicted]
        if not any(are_null):
            return predicted
        self.num_rows += 1
        return [
            None if is_null else value for value, is_null in zip(predicted, are_null, strict=True)
        ]

    def _is_null(self, value: float) -> bool:
        if self._dialect == "sqlite":
            return math.isnan(value)
        return self._dialect == "mysql" and not math.isfinite(value)


def _peek(
    predictions: Iterable[Sequence[Any]],
) -> tuple[Sequence[Any], Iterator[Sequence[Any]]]:
    remaining = iter(predictions)
    first = next(remaining, None)
    if first is None:
        raise DataError("There are no predictions.")
    return first, itertools.chain((first,), remaining)


def _with_progress(rows: Iterable[_Row], on_progress: Progress) -> Iterator[_Row]:
    began = reported = time.monotonic()
    num_rows = 0
    for num_rows, row in enumerate(rows, 1):
        yield row
        if not num_rows % _BATCH_ROWS and (now := time.monotonic()) - reported > PROGRESS_SECONDS:
            reported = now
            on_progress(num_rows, num_rows / (now - began))
    on_progress(num_rows, num_rows / max(time.monotonic() - began, 1e-9))


def _with_predictions(
    rows: Iterable[Sequence[Any]], predictions: Iterable[Sequence[Any]], *, num_rows: int
) -> Iterator[tuple[Any, ...]]:
    """The key data of each row with its predictions appended."""
    missing = ()
    for number, (row, predicted) in enumerate(
        itertools.zip_longest(rows, predictions, fillvalue=missing)
    ):
        if row is missing or predicted is missing:
            raise DataError(
                f"There are {'fewer' if predicted is missing else 'more'} predictions than rows.",
                received=f"{num_rows:,} rows, of which {number:,} have predictions",
            )
        yield (*row, *predicted)


def _update_table(
    engine: Engine,
    connection: sa.Connection,
    plan: TargetPlan,
    types: Sequence[sa.types.TypeEngine[Any]],
    rows: Iterable[tuple[Any, ...]],
    *,
    tell: Callable[[str], None],
) -> WriteSummary:
    schema = plan.table.schema or None
    table_columns = {
        column["name"]: column
        for column in sa.inspect(connection).get_columns(plan.table.name, schema)
    }
    # Staged keys have the affinity of the table's keys; otherwise SQLite uses no index.
    declared = declared_types(engine, connection, plan.table)
    connection.rollback()
    # With AUTO_INCREMENT, MariaDB would replace a key of 0.
    keys = [
        sa.Column(
            f"edl_key_{number}",
            DeclaredType(declared.get(key, "INT"))
            if declared
            else _key_type(table_columns.get(key)),
            primary_key=True,
            autoincrement=False,
        )
        for number, key in enumerate(plan.keys)
    ]
    digest = sa.Column("edl_digest", sa.BigInteger())
    values = [sa.Column(f"edl_value_{number}", type_) for number, type_ in enumerate(types)]
    with (
        _stage(engine, connection, [*keys, digest, *values], rows) as staged,
        _committed_columns(engine, connection, plan, types),
        engine.transaction(connection),
    ):
        _lock_table(engine, connection, plan)
        num_changed = _unstage_changed_rows(engine, connection, plan, staged)
        num_changed += _unstage_filled_rows(
            connection, plan, staged, _table_clause(plan, table_columns)
        )
        if engine.dialect != "mysql":
            _add_columns(engine, connection, plan, types)
        table = _table_clause(plan, table_columns)
        source = staged.table
        statement = (
            sa.update(table)
            .values({name: source.c[f"edl_value_{n}"] for n, name in enumerate(plan.columns)})
            .where(*_key_conditions(plan, staged, table))
        )
        num_rows = connection.execute(statement).rowcount
    num_gone = staged.num_rows - num_changed - num_rows
    if num_changed or num_gone:
        tell(
            f"Since the SELECT ran, {num_changed:,} rows of {plan.table} were changed and"
            f" {num_gone:,} were deleted: these got no new prediction."
        )
    return WriteSummary(num_rows=num_rows, num_changed=num_changed, num_gone=num_gone)


def _key_type(column: Any) -> sa.types.TypeEngine[Any]:
    if column is None:  # The row number of SQLite.
        return sa.BigInteger()
    type_: sa.types.TypeEngine[Any] = column["type"]
    if isinstance(type_, sa.Uuid):
        return sa.Uuid(as_uuid=False)
    if isinstance(type_, postgresql.DOMAIN):
        return type_.data_type
    if isinstance(type_, postgresql.ENUM):
        type_.create_type = False  # The type exists already.
    return type_


def _lock_table(engine: Engine, connection: sa.Connection, plan: TargetPlan) -> None:
    """Keep other writers out until the transaction ends, where the engine does not do so."""
    if engine.dialect == "postgres":
        text = quoted_table(engine, plan.table)
        engine.run_text(connection, f"LOCK TABLE {text} IN SHARE ROW EXCLUSIVE MODE")


@contextmanager
def _limited_lock_waits(engine: Engine, connection: sa.Connection) -> Iterator[None]:
    """Limit waits for locks to `LOCK_SECONDS` within the `with`; servers wait for hours."""
    names, value_format, query = _LOCK_TIMEOUTS.get(engine.dialect, ((), "", ""))
    previous_values = [
        engine.run_text(connection, f"SELECT {query.format(name)}").scalar() for name in names
    ]
    connection.rollback()
    for name in names:
        engine.run_text(connection, f"SET SESSION {name} = {value_format.format(LOCK_SECONDS)}")
    try:
        yield
    finally:
        if engine.has_session:  # The session is the user's; any other connection is closed.
            with suppress(sa.exc.SQLAlchemyError):
                for name, value in zip(names, previous_values, strict=True):
                    shown = repr(value) if isinstance(value, str) else value
                    engine.run_text(connection, f"SET SESSION {name} = {shown}")


def _unstage_changed_rows(
    engine: Engine, connection: sa.Connection, plan: TargetPlan, staged: _StagedRows
) -> int:
    """Remove staged rows whose selected values have changed; returns their number."""
    if plan.one_table is None:
        return 0
    source, temporary = plan.one_table, staged.table.name
    match = " AND ".join(
        f"{temporary}.edl_key_{number} = {source.qualifier}.{_key_text(engine, plan, key)}"
        for number, key in enumerate(plan.keys)
    )
    if engine.dialect == "mysql":
        # MySQL does not let a query name a temporary table twice.
        rows = (
            f"SELECT {source.qualified_expressions}\n, {temporary}.edl_row, {temporary}.edl_digest"
            f" FROM {source.reference} JOIN {temporary} ON {match} FOR UPDATE"
        )
    else:
        # Not by JOIN, in which SQLite has no rowid without the name of its table.
        staged_values = [
            f"(SELECT {temporary}.{column} FROM {temporary} WHERE {match})"
            for column in ("edl_row", "edl_digest")
        ]
        rows = f"SELECT {source.expressions}\n, {', '.join(staged_values)} FROM {source.reference}"
        rows += f" WHERE EXISTS (SELECT 1 FROM {temporary} WHERE {match})"
    changed = []
    with engine.streaming(connection, rows) as cursor:
        names = [column[0] for column in cursor.description[:-2]]
        positions: Sequence[int] = range(len(names))
        if len(names) > len(plan.selected):  # In MariaDB a * includes the new columns.
            positions = [
                position for position in positions if names[position] not in plan.new_columns
            ]
        while batch := cursor.fetchmany(_BATCH_ROWS):
            changed += [
                row[-2]
                for row in batch
                if digest_of([row[position] for position in positions]) != row[-1]
            ]
    _unstage(connection, staged, changed)
    return len(changed)


def _unstage_filled_rows(
    connection: sa.Connection, plan: TargetPlan, staged: _StagedRows, table: sa.TableClause
) -> int:
    """Remove staged rows that have got a value since the plan was made; returns their number."""
    if not plan.guarded_columns:
        return 0
    rows = sa.select(staged.table.c.edl_row).where(
        *_key_conditions(plan, staged, table),
        sa.or_(*(table.c[name].is_not(None) for name in plan.guarded_columns)),
    )
    filled = [row.edl_row for row in connection.execute(rows)]
    _unstage(connection, staged, filled)
    return len(filled)


def _unstage(connection: sa.Connection, staged: _StagedRows, numbers: Sequence[int]) -> None:
    if numbers:
        delete = sa.delete(staged.table).where(staged.table.c.edl_row == sa.bindparam("number"))
        connection.execute(delete, [{"number": number} for number in numbers])


def _key_conditions(
    plan: TargetPlan, staged: _StagedRows, table: sa.TableClause
) -> list[sa.ColumnElement[bool]]:
    """Conditions under which a staged row belongs to a row of the table."""
    return [
        staged.table.c[f"edl_key_{number}"] == table.c[key] for number, key in enumerate(plan.keys)
    ]


def _key_text(engine: Engine, plan: TargetPlan, key: str) -> str:
    # Without such a row number SQLite would take the quoted name for a text.
    return key if plan.has_row_numbers else engine.quoted(key)


def _add_columns(
    engine: Engine,
    connection: sa.Connection,
    plan: TargetPlan,
    types: Sequence[sa.types.TypeEngine[Any]],
) -> None:
    table = quoted_table(engine, plan.table)
    for name, type_ in zip(plan.columns, types, strict=True):
        if name in plan.new_columns:
            text = column_definition(engine, name, type_.compile(dialect=connection.dialect))
            engine.run_text(connection, f"ALTER TABLE {table} ADD COLUMN {text}")
    _mark_columns(engine, connection, plan, plan.new_columns)


def _mark_columns(
    engine: Engine, connection: sa.Connection, plan: TargetPlan, names: Sequence[str]
) -> None:
    """Add our mark to columns in PostgreSQL; elsewhere the definitions contain it."""
    if engine.dialect == "postgres":
        table = quoted_table(engine, plan.table)
        for name in names:
            text = f"COMMENT ON COLUMN {table}.{engine.quoted(name)} IS '{MARK}'"
            engine.run_text(connection, text)


@contextmanager
def _committed_columns(
    engine: Engine,
    connection: sa.Connection,
    plan: TargetPlan,
    types: Sequence[sa.types.TypeEngine[Any]],
) -> Iterator[None]:
    """Add the new columns before the transaction in MySQL, and drop them if it fails."""
    if engine.dialect != "mysql" or not plan.new_columns:
        yield
        return
    _add_columns(engine, connection, plan, types)
    try:
        yield
    except BaseException:
        for name in plan.new_columns:
            text = (
                f"ALTER TABLE {quoted_table(engine, plan.table)} DROP COLUMN {engine.quoted(name)}"
            )
            engine.run_text(connection, text)
        raise


def _table_clause(plan: TargetPlan, table_columns: Iterable[str]) -> sa.TableClause:
    names = dict.fromkeys((*table_columns, *plan.columns))
    row_numbers = [key for key in plan.keys if key not in names]
    columns: list[sa.ColumnClause[Any]] = [
        *(sa.column(name) for name in names),
        *(sa.column(name, is_literal=True) for name in row_numbers),
    ]
    return sa.table(plan.table.name, *columns, schema=plan.table.schema or None)


def _exact_rows(engine: Engine, rows: Iterable[_Row], num_columns: int) -> Iterator[_Row]:
    """The selected values with all of their digits, and the predictions."""
    exact_number = int if engine.dialect == "sqlite" else Decimal
    for row in rows:
        selected = (
            _without_zone(value) if exact is None else exact_number(exact)
            for value, exact in zip(
                row[:num_columns], row[num_columns : 2 * num_columns], strict=True
            )
        )
        yield (*selected, *row[2 * num_columns :])


def _create_table(
    engine: Engine,
    connection: sa.Connection,
    plan: TargetPlan,
    exported: ExportedTable,
    types: Sequence[sa.types.TypeEngine[Any]],
    rows: Iterable[tuple[Any, ...]],
) -> WriteSummary:
    """Create or replace the table, with the selected columns and the predictions."""
    columns = [
        *(
            (column.name, exact_type(engine, column.kind, column.declared_type, column.scale))
            for column in exported.columns
        ),
        *zip(plan.columns, types, strict=True),
    ]
    values = [sa.Column(f"edl_value_{number}", type_) for number, (_, type_) in enumerate(columns)]
    exact_rows = _exact_rows(engine, rows, len(exported.columns))
    with _stage(engine, connection, values, exact_rows) as staged:
        _create_from_staged(engine, connection, plan, staged, columns)
    return WriteSummary(num_rows=staged.num_rows, num_changed=0, num_gone=0)


def _create_from_staged(
    engine: Engine,
    connection: sa.Connection,
    plan: TargetPlan,
    staged: _StagedRows,
    columns: Sequence[tuple[str, sa.types.TypeEngine[Any]]],
) -> None:
    definitions = [
        f"{engine.quoted(name)} {type_.compile(dialect=connection.dialect)}"
        for name, type_ in columns[: -len(plan.columns)]
    ]
    definitions += [
        column_definition(engine, name, type_.compile(dialect=connection.dialect))
        for name, type_ in columns[-len(plan.columns) :]
    ]
    table = quoted_table(engine, plan.table)
    create = f"CREATE TABLE {table} ({', '.join(definitions)})"
    expressions = ", ".join(
        f"edl_value_{number} AS {engine.quoted(name)}" for number, (name, _) in enumerate(columns)
    )
    select = f"SELECT {expressions} FROM {staged.table.name} ORDER BY edl_row"
    if engine.dialect == "mysql":
        # One atomic statement: CREATE TABLE cannot be part of a transaction.
        engine.run_text(connection, f"{create} AS {select}")
        return
    with engine.transaction(connection):
        if plan.action == "replace":
            engine.run_text(connection, f"DROP TABLE {table}")
        engine.run_text(connection, create)
        _mark_columns(engine, connection, plan, plan.columns)
        engine.run_text(connection, f"INSERT INTO {table} {select}")


@contextmanager
def _stage(
    engine: Engine,
    connection: sa.Connection,
    columns: Sequence[sa.Column[Any]],
    rows: Iterable[Sequence[Any]],
) -> Iterator[_StagedRows]:
    """Put rows into a new temporary table, which is dropped when the `with` ends.

    Args:
        engine: The database.
        connection: A connection to the database.
        columns: The columns of the table; those of the primary key must be unique.
        rows: Values in the order of the columns.

    Raises:
        DataError: Two rows have the same key, or the engine refuses a statement.
    """
    row_column: sa.Column[Any] = sa.Column("edl_row", sa.BigInteger(), nullable=False)
    if not any(column.primary_key for column in columns):
        row_column = sa.Column("edl_row", sa.BigInteger(), primary_key=True, autoincrement=False)
    name = f"edl_staged_{secrets.token_hex(8)}"
    table = sa.Table(name, sa.MetaData(), row_column, *columns, prefixes=["TEMPORARY"])
    num_rows = 0
    with engine.transaction(connection, writes=False):
        table.create(connection, checkfirst=False)
        names = [column.name for column in table.columns]
        insert = table.insert()
        for batch in _batches(rows):
            values = [
                dict(zip(names, (num_rows + position, *row), strict=True))
                for position, row in enumerate(batch)
            ]
            try:
                connection.execute(insert, values)
            except sa.exc.IntegrityError as e:
                raise DataError(
                    "Two rows of the SELECT have the same key, so their predictions cannot be told"
                    " apart.",
                    received=f"rows {num_rows + 1:,} to {num_rows + len(batch):,}",
                    hint="Leave one of them out by WHERE.",
                ) from e
            num_rows += len(batch)
    try:
        yield _StagedRows(table=table, num_rows=num_rows)
    finally:
        if engine.has_session:  # Any other connection is closed, and the table dropped with it.
            with suppress(sa.exc.SQLAlchemyError):
                table.drop(connection, checkfirst=False)


def _without_zone(value: Any) -> Any:
    """A timestamp in UTC without its time zone; any other value unchanged."""
    return value.replace(tzinfo=None) if isinstance(value, datetime.datetime) else value


def _batches(rows: Iterable[Sequence[Any]]) -> Iterator[list[Sequence[Any]]]:
    remaining_rows = iter(rows)
    while batch := list(itertools.islice(remaining_rows, _BATCH_ROWS)):
        yield batch
