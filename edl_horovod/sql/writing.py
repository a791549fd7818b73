"""Predictions into the table of a PREDICT: staged, then put in place by one transaction.

Whoever is killed in between leaves the database as it was. MariaDB and MySQL commit a change of
columns by itself, so one who is killed there may leave a column that is added and empty.
"""

import itertools
import math
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
from edl_horovod.sql.export import PROGRESS_SECONDS, ExportedTable, Progress
from edl_horovod.sql.side import digest_of, read_rows
from edl_horovod.sql.staging import (
    AsGiven,
    Staged,
    exact_type,
    stage,
    type_of_value,
    without_zone,
)
from edl_horovod.sql.target import (
    MARK,
    TargetPlan,
    column_definition,
    declared_types,
    quoted_table,
    revise,
)

__all__ = ["Written", "try_writing", "write_predictions"]

_ROWS = 1_000
_Row = tuple[Any, ...]
_WAITING = {
    "postgres": (("lock_timeout",), "'{}s'", "current_setting('{}')"),
    "mysql": (("lock_wait_timeout", "innodb_lock_wait_timeout"), "{}", "@@SESSION.{}"),
}
"""Settings of a session that limit how long locks are waited for: names, a value, how to read."""


@dataclass(frozen=True, kw_only=True)
class Written:
    """What became of the predictions."""

    num_rows: int
    """Rows of the table that have a new prediction."""
    num_changed: int
    """Rows whose selected values changed since the SELECT ran: they have none."""
    num_gone: int
    """Rows that are not in the table any more."""


def try_writing(engine: Engine, plan: TargetPlan) -> None:
    """Do what needs rights and locks for no row, and take it back.

    MariaDB commits what changes a table by itself, so there only columns that exist are tried.

    Raises:
        DataError: The engine refuses something, or waits too long.
    """
    types = [type_of_value(values[0]) for values in plan.samples]
    table = quoted_table(engine, plan.table)
    with (
        engine.connecting() as connection,
        _waiting_briefly(engine, connection),
        engine.transaction(connection),
    ):
        if plan.action == "update":
            _keep_others_out(engine, connection, plan)
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
) -> Written:
    """Put predictions into their table, all of them or none.

    Args:
        engine: The database.
        plan: What is to happen.
        exported: The rows that the predictions are of, exported by this plan.
        predictions: A value for each column of the plan, row after row.
        tell: Is called with a sentence about rows that have no prediction.
        on_progress: Is called about twice a second while the database gets predictions, and at the
            end of that.

    Raises:
        DataError: There is another number of predictions than of rows, or the engine refuses
            something; the database is as it was.
    """
    assert exported.side is not None
    first, predictions = _first_of(predictions)
    nulls = _Nulls(engine.dialect)
    predictions = map(nulls.without, predictions)
    types = [type_of_value(value) for value in first]
    rows = _joined(read_rows(exported.side), predictions, num_rows=exported.num_rows)
    if on_progress is not None:
        rows = _counted(rows, on_progress)
    plan = revise(engine, plan) if plan.action == "update" else plan
    with engine.connecting() as connection, _waiting_briefly(engine, connection):
        if plan.action == "update":
            written = _update(engine, connection, plan, types, rows, tell=tell)
        else:
            written = _make(engine, connection, plan, exported, types, rows)
    if nulls.num_rows:
        tell(
            f"{nulls.num_rows:,} rows have predictions that are not numbers, or infinite, for which"
            " the database has no value: they are NULL there."
        )
    return written


class _Nulls:
    """Predictions that a database has no value for."""

    def __init__(self, dialect: str) -> None:
        self.num_rows = 0
        self._dialect = dialect

    def without(self, predicted: Sequence[Any]) -> Sequence[Any]:
        """The predictions of a row, with NULL in their place."""
        nulls = [isinstance(value, float) and self._is_null(value) for value in predicted]
        if not any(nulls):
            return predicted
        self.num_rows += 1
        return [None if is_null else value for value, is_null in zip(predicted, nulls, strict=True)]

    def _is_null(self, value: float) -> bool:
        if self._dialect == "sqlite":
            return math.isnan(value)
        return self._dialect == "mysql" and not math.isfinite(value)


def _first_of(
    predictions: Iterable[Sequence[Any]],
) -> tuple[Sequence[Any], Iterator[Sequence[Any]]]:
    rest = iter(predictions)
    first = next(rest, None)
    if first is None:
        raise DataError("There are no predictions.")
    return first, itertools.chain((first,), rest)


def _counted(rows: Iterable[_Row], on_progress: Progress) -> Iterator[_Row]:
    began = reported = time.monotonic()
    num_rows = 0
    for num_rows, row in enumerate(rows, 1):
        yield row
        if not num_rows % _ROWS and (now := time.monotonic()) - reported > PROGRESS_SECONDS:
            reported = now
            on_progress(num_rows, num_rows / (now - began))
    on_progress(num_rows, num_rows / max(time.monotonic() - began, 1e-9))


def _joined(
    rows: Iterable[Sequence[Any]], predictions: Iterable[Sequence[Any]], *, num_rows: int
) -> Iterator[tuple[Any, ...]]:
    """What is beside each record, and its predictions."""
    none = ()
    for number, (row, predicted) in enumerate(
        itertools.zip_longest(rows, predictions, fillvalue=none)
    ):
        if row is none or predicted is none:
            raise DataError(
                "The predictions are not those of the rows: there are"
                f" {'fewer' if predicted is none else 'more'} than rows.",
                received=f"{num_rows:,} rows, and {number:,} of both",
            )
        yield (*row, *predicted)


def _update(
    engine: Engine,
    connection: sa.Connection,
    plan: TargetPlan,
    types: Sequence[sa.types.TypeEngine[Any]],
    rows: Iterable[tuple[Any, ...]],
    *,
    tell: Callable[[str], None],
) -> Written:
    schema = plan.table.schema or None
    own = {
        each["name"]: each for each in sa.inspect(connection).get_columns(plan.table.name, schema)
    }
    # A key that is staged has the affinity of the table's: otherwise sqlite uses no index.
    declared = declared_types(engine, connection, plan.table)
    connection.rollback()
    # Counted up by the engine, a key of 0 would become another one in MariaDB.
    keys = [
        sa.Column(
            f"edl_key_{number}",
            AsGiven(declared.get(key, "INT")) if declared else _key_type(own.get(key)),
            primary_key=True,
            autoincrement=False,
        )
        for number, key in enumerate(plan.keys)
    ]
    digest = sa.Column("edl_digest", sa.BigInteger())
    values = [sa.Column(f"edl_value_{number}", type_) for number, type_ in enumerate(types)]
    with (
        stage(engine, connection, [*keys, digest, *values], rows) as staged,
        _columns_that_commit(engine, connection, plan, types),
        engine.transaction(connection),
    ):
        _keep_others_out(engine, connection, plan)
        num_changed = _drop_changed(engine, connection, plan, staged)
        num_changed += _drop_filled(connection, plan, staged, _table_of(engine, plan, own))
        if engine.dialect != "mysql":
            _add_columns(engine, connection, plan, types)
        table = _table_of(engine, plan, own)
        source = staged.table
        statement = (
            sa.update(table)
            .values({name: source.c[f"edl_value_{n}"] for n, name in enumerate(plan.columns)})
            .where(*_matches(plan, staged, table))
        )
        num_rows = connection.execute(statement).rowcount
    num_gone = staged.num_rows - num_changed - num_rows
    if num_changed or num_gone:
        tell(
            f"Since the SELECT ran, {num_changed:,} rows of {plan.table} were changed and"
            f" {num_gone:,} are not there any more: these have no new prediction."
        )
    return Written(num_rows=num_rows, num_changed=num_changed, num_gone=num_gone)


def _key_type(column: Any) -> sa.types.TypeEngine[Any]:
    if column is None:  # The number of a row.
        return sa.BigInteger()
    type_: sa.types.TypeEngine[Any] = column["type"]
    if isinstance(type_, sa.Uuid):
        return sa.Uuid(as_uuid=False)
    if isinstance(type_, postgresql.DOMAIN):
        return type_.data_type
    if isinstance(type_, postgresql.ENUM):
        type_.create_type = False  # It exists.
    return type_


def _keep_others_out(engine: Engine, connection: sa.Connection, plan: TargetPlan) -> None:
    """Nobody else changes the table until the transaction ends; waits for those who do."""
    if engine.dialect == "postgres":
        text = quoted_table(engine, plan.table)
        engine.run_text(connection, f"LOCK TABLE {text} IN SHARE ROW EXCLUSIVE MODE")


@contextmanager
def _waiting_briefly(engine: Engine, connection: sa.Connection) -> Iterator[None]:
    """Wait for locks as long as for those of sqlite, where servers wait for hours."""
    names, limit, current = _WAITING.get(engine.dialect, ((), "", ""))
    before = [
        engine.run_text(connection, f"SELECT {current.format(name)}").scalar() for name in names
    ]
    connection.rollback()
    for name in names:
        engine.run_text(connection, f"SET SESSION {name} = {limit.format(LOCK_SECONDS)}")
    try:
        yield
    finally:
        if engine.has_session:  # It is the user's; another connection is closed now.
            with suppress(sa.exc.SQLAlchemyError):
                for name, value in zip(names, before, strict=True):
                    shown = repr(value) if isinstance(value, str) else value
                    engine.run_text(connection, f"SET SESSION {name} = {shown}")


def _drop_changed(
    engine: Engine, connection: sa.Connection, plan: TargetPlan, staged: Staged
) -> int:
    """Take rows out of the staged ones whose selected values are others now; returns how many."""
    if plan.one_table is None:
        return 0
    one, temporary = plan.one_table, staged.table.name
    match = " AND ".join(
        f"{temporary}.edl_key_{number} = {one.qualifier}.{_key_text(engine, plan, key)}"
        for number, key in enumerate(plan.keys)
    )
    if engine.dialect == "mysql":
        # MySQL lets a query name a temporary table once.
        rows = (
            f"SELECT {one.qualified_expressions}\n, {temporary}.edl_row, {temporary}.edl_digest"
            f" FROM {one.reference} JOIN {temporary} ON {match} FOR UPDATE"
        )
    else:
        # Not by JOIN, where sqlite knows no rowid but that of a named table.
        look = [
            f"(SELECT {temporary}.{column} FROM {temporary} WHERE {match})"
            for column in ("edl_row", "edl_digest")
        ]
        rows = f"SELECT {one.expressions}\n, {', '.join(look)} FROM {one.reference}"
        rows += f" WHERE EXISTS (SELECT 1 FROM {temporary} WHERE {match})"
    changed = []
    with engine.streaming(connection, rows) as cursor:
        names = [column[0] for column in cursor.description[:-2]]
        places: Sequence[int] = range(len(names))
        if len(names) > len(plan.selected):  # A * of MariaDB, where the new columns are there.
            places = [place for place in places if names[place] not in plan.new_columns]
        while batch := cursor.fetchmany(_ROWS):
            changed += [
                row[-2] for row in batch if digest_of([row[place] for place in places]) != row[-1]
            ]
    _drop_rows(connection, staged, changed)
    return len(changed)


def _drop_filled(
    connection: sa.Connection, plan: TargetPlan, staged: Staged, table: sa.TableClause
) -> int:
    """Take rows out of the staged ones that somebody gave a value since; returns how many."""
    if not plan.guarded_columns:
        return 0
    rows = sa.select(staged.table.c.edl_row).where(
        *_matches(plan, staged, table),
        sa.or_(*(table.c[name].is_not(None) for name in plan.guarded_columns)),
    )
    filled = [row.edl_row for row in connection.execute(rows)]
    _drop_rows(connection, staged, filled)
    return len(filled)


def _drop_rows(connection: sa.Connection, staged: Staged, numbers: Sequence[int]) -> None:
    if numbers:
        delete = sa.delete(staged.table).where(staged.table.c.edl_row == sa.bindparam("number"))
        connection.execute(delete, [{"number": number} for number in numbers])


def _matches(
    plan: TargetPlan, staged: Staged, table: sa.TableClause
) -> list[sa.ColumnElement[bool]]:
    """The rows of the table that the staged ones are for."""
    return [
        staged.table.c[f"edl_key_{number}"] == table.c[key] for number, key in enumerate(plan.keys)
    ]


def _key_text(engine: Engine, plan: TargetPlan, key: str) -> str:
    # A row's number has no quotes: where it is not there it would be a text.
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
    _comment(engine, connection, plan, plan.new_columns)


def _comment(
    engine: Engine, connection: sa.Connection, plan: TargetPlan, names: Sequence[str]
) -> None:
    """Mark columns as PREDICT's where their definitions do not."""
    if engine.dialect == "postgres":
        table = quoted_table(engine, plan.table)
        for name in names:
            text = f"COMMENT ON COLUMN {table}.{engine.quoted(name)} IS '{MARK}'"
            engine.run_text(connection, text)


@contextmanager
def _columns_that_commit(
    engine: Engine,
    connection: sa.Connection,
    plan: TargetPlan,
    types: Sequence[sa.types.TypeEngine[Any]],
) -> Iterator[None]:
    """Add the columns before the transaction where they are no part of one, and undo it."""
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


def _table_of(engine: Engine, plan: TargetPlan, own: Iterable[str]) -> sa.TableClause:
    names = dict.fromkeys((*own, *plan.columns))
    numbers = [key for key in plan.keys if key not in names]
    columns: list[sa.ColumnClause[Any]] = [
        *(sa.column(name) for name in names),
        *(sa.column(name, is_literal=True) for name in numbers),
    ]
    return sa.table(plan.table.name, *columns, schema=plan.table.schema or None)


def _plain(engine: Engine, rows: Iterable[_Row], num_columns: int) -> Iterator[_Row]:
    """Values of selected columns as the database had them, and the predictions."""
    exact_number = int if engine.dialect == "sqlite" else Decimal
    for row in rows:
        selected = (
            without_zone(value) if exact is None else exact_number(exact)
            for value, exact in zip(
                row[:num_columns], row[num_columns : 2 * num_columns], strict=True
            )
        )
        yield (*selected, *row[2 * num_columns :])


def _make(
    engine: Engine,
    connection: sa.Connection,
    plan: TargetPlan,
    exported: ExportedTable,
    types: Sequence[sa.types.TypeEngine[Any]],
    rows: Iterable[tuple[Any, ...]],
) -> Written:
    """A new table of the selected columns and the predictions."""
    made = [
        *(
            (column.name, exact_type(engine, column.kind, column.declared_type, column.scale))
            for column in exported.columns
        ),
        *zip(plan.columns, types, strict=True),
    ]
    values = [sa.Column(f"edl_value_{number}", type_) for number, (_, type_) in enumerate(made)]
    plain = _plain(engine, rows, len(exported.columns))
    with stage(engine, connection, values, plain) as staged:
        _make_of_staged(engine, connection, plan, staged, made)
    return Written(num_rows=staged.num_rows, num_changed=0, num_gone=0)


def _make_of_staged(
    engine: Engine,
    connection: sa.Connection,
    plan: TargetPlan,
    staged: Staged,
    made: Sequence[tuple[str, sa.types.TypeEngine[Any]]],
) -> None:
    definitions = [
        f"{engine.quoted(name)} {type_.compile(dialect=connection.dialect)}"
        for name, type_ in made[: -len(plan.columns)]
    ]
    definitions += [
        column_definition(engine, name, type_.compile(dialect=connection.dialect))
        for name, type_ in made[-len(plan.columns) :]
    ]
    table = quoted_table(engine, plan.table)
    create = f"CREATE TABLE {table} ({', '.join(definitions)})"
    shown = ", ".join(
        f"edl_value_{number} AS {engine.quoted(name)}" for number, (name, _) in enumerate(made)
    )
    rows_of = f"SELECT {shown} FROM {staged.table.name} ORDER BY edl_row"
    if engine.dialect == "mysql":
        # One statement, all or nothing: what makes a table is no part of a transaction.
        engine.run_text(connection, f"{create} AS {rows_of}")
        return
    with engine.transaction(connection):
        if plan.action == "replace":
            engine.run_text(connection, f"DROP TABLE {table}")
        engine.run_text(connection, create)
        _comment(engine, connection, plan, plan.columns)
        engine.run_text(connection, f"INSERT INTO {table} {rows_of}")
