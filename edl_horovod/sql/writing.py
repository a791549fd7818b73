"""Write predictions into the table of a PREDICT: stage them, then apply them in one transaction.

A process that is killed before the commit leaves the database unchanged. MariaDB and MySQL commit
ALTER TABLE by itself, so there it may leave a new column that is empty. Staged rows are in a
temporary table, which the engine drops with the connection.
"""

import itertools
import math
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from edl_horovod.errors import DataError
from edl_horovod.sql import target
from edl_horovod.sql.engine import LOCK_SECONDS, Engine
from edl_horovod.sql.export import (
    PROGRESS_SECONDS,
    ExportedTable,
    Progress,
    digest_of,
    read_key_data,
)
from edl_horovod.sql.kinds import DeclaredType, exact_type, type_of_value
from edl_horovod.sql.target import MARK, TargetPlan, column_definition

_BATCH_ROWS = 1_000
_Row = Sequence[Any]
_LOCK_TIMEOUTS = {
    "postgres": (("lock_timeout",), "'{}s'", "current_setting('{}')"),
    "mysql": (("lock_wait_timeout", "innodb_lock_wait_timeout"), "{}", "@@SESSION.{}"),
}
"""Session settings that limit waits for locks: their names, the format of a value, how to query."""
_CANNOT_STORE: Mapping[str, Callable[[float], bool]] = {
    "sqlite": math.isnan,
    "mysql": lambda value: not math.isfinite(value),
}
"""The numbers that an engine cannot store, by dialect."""


class AllRowsChanged(DataError):
    """All rows have other values than when they were read, so their predictions are of no use."""


@dataclass(frozen=True, kw_only=True)
class WriteSummary:
    """The numbers of rows that did and did not get predictions."""

    num_rows: int
    """Rows of the table that got a new prediction."""
    num_changed: int
    """Rows without a new prediction because their values changed since the SELECT ran."""
    num_gone: int
    """Rows that were deleted since the SELECT ran."""


def try_writing(engine: Engine, plan: TargetPlan) -> None:
    """Try the statements of `write_predictions` on no row and roll them back.

    This shows missing privileges and locks before the job runs. MariaDB commits DDL by itself, so
    there only existing columns are tried.

    Raises:
        DataError: The engine refuses a statement, or waits too long for a lock.
    """
    types = [type_of_value(values[0]) for values in plan.samples]
    with (
        engine.connecting() as connection,
        _limited_lock_waits(engine, connection),
        engine.transaction(connection),
    ):
        _TableWriter(engine, connection, plan, types).try_statements()
        connection.rollback()


def write_predictions(
    engine: Engine,
    plan: TargetPlan,
    exported: ExportedTable,
    predictions: Iterable[_Row],
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
        AllRowsChanged: All rows have changed; the database is unchanged.
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
    plan = target.with_current_columns(engine, plan) if plan.action == "update" else plan
    with engine.connecting() as connection, _limited_lock_waits(engine, connection):
        writer = _TableWriter(engine, connection, plan, types)
        if plan.action == "update":
            summary = writer.update(rows, tell)
        else:
            summary = writer.create(exported, rows)
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
        self._is_null: Callable[[float], bool] = _CANNOT_STORE.get(dialect, lambda _: False)

    def apply(self, predicted: _Row) -> _Row:
        """The predictions of a row with such values replaced by NULL."""
        are_null = [isinstance(value, float) and self._is_null(value) for value in predicted]
        if not any(are_null):
            return predicted
        self.num_rows += 1
        return [
            None if is_null else value for value, is_null in zip(predicted, are_null, strict=True)
        ]


def _peek(predictions: Iterable[_Row]) -> tuple[_Row, Iterator[_Row]]:
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
    rows: Iterable[_Row], predictions: Iterable[_Row], *, num_rows: int
) -> Iterator[_Row]:
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


@dataclass(frozen=True)
class _TableWriter:
    """Writes predictions into their table, on one connection."""

    engine: Engine
    connection: sa.Connection
    plan: TargetPlan
    types: Sequence[sa.types.TypeEngine[Any]]
    """The types of the columns of predictions."""

    def try_statements(self) -> None:
        """Run the statements of `update` or `create` on no row, as far as they can be undone."""
        plan, is_transactional = self.plan, self.engine.dialect != "mysql"
        if plan.action == "update":
            self._lock_table()
            names = [name for name in plan.columns if name not in plan.new_columns]
            if is_transactional:
                self._add_columns()
                names = list(plan.columns)
            if names:
                values = ", ".join(f"{self.engine.quoted(name)} = NULL" for name in names)
                self._run(f"UPDATE {self._table} SET {values} WHERE 1 = 0")
        elif is_transactional:
            if plan.action == "replace":
                self._run(f"DROP TABLE {self._table}")
            self._run(f"CREATE TABLE {self._table} (edl_column INTEGER)")

    def update(self, rows: Iterable[_Row], tell: Callable[[str], None]) -> WriteSummary:
        """Write predictions into the rows with the same keys.

        Args:
            rows: For each row its keys, its digest and its predictions.
            tell: Called with a sentence about rows that got no prediction.
        """
        plan, connection = self.plan, self.connection
        table_columns = target.column_definitions(self.engine, connection, plan.table)
        # Staged keys have the affinity of the table's keys; otherwise SQLite uses no index.
        declared = target.declared_types(self.engine, connection, plan.table)
        connection.rollback()
        key_types = [
            DeclaredType(declared.get(key, "INT"))
            if declared
            else _key_type(table_columns.get(key))
            for key in plan.keys
        ]
        # With AUTO_INCREMENT, MariaDB would replace a key of 0.
        keys = [
            sa.Column(f"edl_key_{number}", type_, primary_key=True, autoincrement=False)
            for number, type_ in enumerate(key_types)
        ]
        digest = sa.Column("edl_digest", sa.BigInteger())
        values = [
            sa.Column(f"edl_value_{number}", type_) for number, type_ in enumerate(self.types)
        ]
        table = _table_clause(plan, table_columns)
        with (
            self._stage([*keys, digest, *values], rows) as (staged, num_staged),
            self._committed_columns(),
            self.engine.transaction(connection),
        ):
            self._lock_table()
            num_changed = self._unstage_changed_rows(staged)
            num_filled = self._unstage_filled_rows(staged, table)
            if self.engine.dialect != "mysql":
                self._add_columns()
            statement = (
                sa.update(table)
                .values({name: staged.c[f"edl_value_{n}"] for n, name in enumerate(plan.columns)})
                .where(*_key_conditions(plan, staged, table))
            )
            num_rows = connection.execute(statement).rowcount
            if num_changed and not num_rows + num_filled:
                raise AllRowsChanged(
                    f"No prediction is written, because all {num_changed:,} rows of {plan.table}"
                    " have other values than when they were read.",
                    received=f"the columns {', '.join(plan.selected)}",
                    hint="An expression such as now() or random() gives other values each time:"
                    " select a fixed date or a column instead, or predict into a new table. If"
                    " others changed the rows, run the statement again.",
                )
        num_changed += num_filled
        num_gone = num_staged - num_changed - num_rows
        if num_changed or num_gone:
            tell(
                f"Since the SELECT ran, {num_changed:,} rows of {plan.table} were changed and"
                f" {num_gone:,} were deleted: these got no new prediction."
            )
        return WriteSummary(num_rows=num_rows, num_changed=num_changed, num_gone=num_gone)

    def create(self, exported: ExportedTable, rows: Iterable[_Row]) -> WriteSummary:
        """Create or replace the table, with the selected columns and the predictions."""
        plan, engine = self.plan, self.engine
        selected = {
            column.name: exact_type(engine, column.kind, column.declared_type, column.scale)
            for column in exported.columns
        }
        predicted = dict(zip(plan.columns, self.types, strict=True))
        definitions = [
            *(
                f"{engine.quoted(name)} {self._type_text(type_)}"
                for name, type_ in selected.items()
            ),
            *(
                column_definition(engine, name, self._type_text(type_))
                for name, type_ in predicted.items()
            ),
        ]
        create = f"CREATE TABLE {self._table} ({', '.join(definitions)})"
        expressions = ", ".join(
            f"edl_value_{number} AS {engine.quoted(name)}"
            for number, name in enumerate((*selected, *predicted))
        )
        values = [
            sa.Column(f"edl_value_{number}", type_)
            for number, type_ in enumerate((*selected.values(), *predicted.values()))
        ]
        exact_rows = _exact_rows(engine, rows, list(selected.values()))
        with self._stage(values, exact_rows) as (staged, num_rows):
            select = f"SELECT {expressions} FROM {staged.name} ORDER BY edl_row"
            if engine.dialect == "mysql":
                # One atomic statement: CREATE TABLE cannot be part of a transaction.
                self._run(f"{create} AS {select}")
            else:
                with engine.transaction(self.connection):
                    if plan.action == "replace":
                        self._run(f"DROP TABLE {self._table}")
                    self._run(create)
                    self._mark_columns(plan.columns)
                    self._run(f"INSERT INTO {self._table} {select}")
        return WriteSummary(num_rows=num_rows, num_changed=0, num_gone=0)

    @property
    def _table(self) -> str:
        return target.quoted_table(self.engine, self.plan.table)

    def _run(self, text: str) -> None:
        self.engine.run_text(self.connection, text)

    def _type_text(self, type_: sa.types.TypeEngine[Any]) -> str:
        return type_.compile(dialect=self.connection.dialect)

    def _lock_table(self) -> None:
        """Keep other writers out until the transaction ends, where the engine does not do so."""
        if self.engine.dialect == "postgres":
            self._run(f"LOCK TABLE {self._table} IN SHARE ROW EXCLUSIVE MODE")

    def _add_columns(self) -> None:
        for name, type_ in zip(self.plan.columns, self.types, strict=True):
            if name in self.plan.new_columns:
                definition = column_definition(self.engine, name, self._type_text(type_))
                self._run(f"ALTER TABLE {self._table} ADD COLUMN {definition}")
        self._mark_columns(self.plan.new_columns)

    def _mark_columns(self, names: Sequence[str]) -> None:
        """Add our mark to columns in PostgreSQL; elsewhere the definitions contain it."""
        if self.engine.dialect == "postgres":
            for name in names:
                column = f"{self._table}.{self.engine.quoted(name)}"
                self._run(f"COMMENT ON COLUMN {column} IS '{MARK}'")

    @contextmanager
    def _committed_columns(self) -> Iterator[None]:
        """Add the new columns before the transaction in MySQL, and drop them if it fails."""
        if self.engine.dialect != "mysql" or not self.plan.new_columns:
            yield
            return
        self._add_columns()
        try:
            yield
        except BaseException:
            for name in self.plan.new_columns:
                self._run(f"ALTER TABLE {self._table} DROP COLUMN {self.engine.quoted(name)}")
            raise

    @contextmanager
    def _stage(
        self, columns: Sequence[sa.Column[Any]], rows: Iterable[_Row]
    ) -> Iterator[tuple[sa.Table, int]]:
        """Put rows into a new temporary table, which is dropped when the `with` ends.

        Args:
            columns: The columns of the table; those of the primary key must be unique.
            rows: Values in the order of the columns.

        Returns:
            The table, with `edl_row`, the index of a row from 0, before the columns; and the number
            of rows.

        Raises:
            DataError: Two rows have the same key, or the engine refuses a statement.
        """
        is_key = not any(column.primary_key for column in columns)
        row: sa.Column[Any] = sa.Column(
            "edl_row", sa.BigInteger(), primary_key=is_key, autoincrement=False, nullable=False
        )
        name = f"edl_staged_{secrets.token_hex(8)}"
        table = sa.Table(name, sa.MetaData(), row, *columns, prefixes=["TEMPORARY"])
        num_rows = 0
        with self.engine.transaction(self.connection, writes=False):
            table.create(self.connection, checkfirst=False)
            names = [column.name for column in table.columns]
            insert = table.insert()
            for batch in _batches(rows):
                values = [
                    dict(zip(names, (num_rows + position, *row_values), strict=True))
                    for position, row_values in enumerate(batch)
                ]
                try:
                    self.connection.execute(insert, values)
                except sa.exc.IntegrityError as e:
                    raise DataError(
                        "Two rows of the SELECT have the same key, so their predictions cannot be"
                        " told apart.",
                        received=f"rows {num_rows + 1:,} to {num_rows + len(batch):,}",
                        hint="Leave one of them out by WHERE.",
                    ) from e
                num_rows += len(batch)
        try:
            yield table, num_rows
        finally:
            if self.engine.has_session:  # Any other connection is closed, which drops the table.
                with suppress(sa.exc.SQLAlchemyError):
                    table.drop(self.connection, checkfirst=False)

    def _unstage_changed_rows(self, staged: sa.Table) -> int:
        """Remove staged rows whose selected values have changed; returns their number."""
        plan, engine, temporary = self.plan, self.engine, staged.name
        if (source := plan.one_table) is None:
            return 0
        # Without such a row number SQLite would take the quoted name for a text.
        keys = plan.keys if plan.has_row_numbers else map(engine.quoted, plan.keys)
        match = " AND ".join(
            f"{temporary}.edl_key_{number} = {source.qualifier}.{key}"
            for number, key in enumerate(keys)
        )
        if engine.dialect == "mysql":
            # MySQL does not let a query name a temporary table twice.
            rows = (
                f"SELECT {source.qualified_expressions}\n, {temporary}.edl_row,"
                f" {temporary}.edl_digest FROM {source.reference} JOIN {temporary} ON {match}"
                " FOR UPDATE"
            )
        else:
            # Not by JOIN, in which SQLite has no rowid without the name of its table.
            staged_values = [
                f"(SELECT {temporary}.{column} FROM {temporary} WHERE {match})"
                for column in ("edl_row", "edl_digest")
            ]
            rows = (
                f"SELECT {source.expressions}\n, {', '.join(staged_values)} FROM {source.reference}"
                f" WHERE EXISTS (SELECT 1 FROM {temporary} WHERE {match})"
            )
        changed = []
        with engine.streaming(self.connection, rows) as cursor:
            names = [column[0] for column in cursor.description[:-2]]
            positions = _positions_of(plan.selected, names)
            while batch := cursor.fetchmany(_BATCH_ROWS):
                changed += [
                    row[-2]
                    for row in batch
                    if digest_of([row[position] for position in positions]) != row[-1]
                ]
        return self._unstage(staged, changed)

    def _unstage_filled_rows(self, staged: sa.Table, table: sa.TableClause) -> int:
        """Remove staged rows that have got a value after the planning; returns their number."""
        if not self.plan.guarded_columns:
            return 0
        rows = sa.select(staged.c.edl_row).where(
            *_key_conditions(self.plan, staged, table),
            sa.or_(*(table.c[name].is_not(None) for name in self.plan.guarded_columns)),
        )
        return self._unstage(staged, [row.edl_row for row in self.connection.execute(rows)])

    def _unstage(self, staged: sa.Table, numbers: Sequence[int]) -> int:
        if numbers:
            delete = sa.delete(staged).where(staged.c.edl_row == sa.bindparam("number"))
            self.connection.execute(delete, [{"number": number} for number in numbers])
        return len(numbers)


def _positions_of(selected: Sequence[str], names: Sequence[str]) -> list[int]:
    """The positions of the selected columns among those that the SELECT gives now.

    A `*` may give more since then, also with the name of an expression after it, which is why the
    last column comes first. Empty if a column is missing.
    """
    if len(names) == len(selected):
        return list(range(len(names)))
    positions: list[int] = []
    remaining = list(enumerate(names))
    for name in reversed(selected):
        while remaining and remaining[-1][1] != name:
            remaining.pop()
        if not remaining:
            return []
        positions.insert(0, remaining.pop()[0])
    return positions


def _key_conditions(
    plan: TargetPlan, staged: sa.Table, table: sa.TableClause
) -> list[sa.ColumnElement[bool]]:
    """Conditions under which a staged row belongs to a row of the table."""
    return [staged.c[f"edl_key_{number}"] == table.c[key] for number, key in enumerate(plan.keys)]


def _table_clause(plan: TargetPlan, table_columns: Iterable[str]) -> sa.TableClause:
    names = dict.fromkeys((*table_columns, *plan.columns))
    row_numbers = [key for key in plan.keys if key not in names]
    columns: list[sa.ColumnClause[Any]] = [
        *(sa.column(name) for name in names),
        *(sa.column(name, is_literal=True) for name in row_numbers),
    ]
    return sa.table(plan.table.name, *columns, schema=plan.table.schema or None)


def _exact_rows(
    engine: Engine, rows: Iterable[_Row], types: Sequence[sa.types.TypeEngine[Any]]
) -> Iterator[_Row]:
    """The selected values with all of their digits, and the predictions."""
    exact_number = int if engine.dialect == "sqlite" else Decimal
    num_columns = len(types)
    # Timestamps are in UTC in the key data, whether their column has a time zone or not.
    naive_positions = [
        position
        for position, type_ in enumerate(types)
        if isinstance(type_, sa.DateTime) and not type_.timezone
    ]
    for row in rows:
        values, digits = row[:num_columns], row[num_columns : 2 * num_columns]
        selected: list[Any] = [
            value if exact is None else exact_number(exact)
            for value, exact in zip(values, digits, strict=True)
        ]
        for position in naive_positions:
            if selected[position] is not None:
                selected[position] = selected[position].replace(tzinfo=None)
        yield (*selected, *row[2 * num_columns :])


def _batches(rows: Iterable[_Row]) -> Iterator[list[_Row]]:
    remaining_rows = iter(rows)
    while batch := list(itertools.islice(remaining_rows, _BATCH_ROWS)):
        yield batch
