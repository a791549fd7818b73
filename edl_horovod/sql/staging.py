"""Stage rows with predictions in a temporary table, which the engine drops with the connection.

So no table is left in the database if this process, its machine or the network dies.
"""

import datetime
import itertools
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import mysql

from edl_horovod.errors import DataError
from edl_horovod.sql.engine import Engine
from edl_horovod.sql.kinds import Kind

__all__ = ["DeclaredType", "StagedRows", "exact_type", "stage", "type_of_kind", "type_of_value"]

_BATCH_ROWS = 1_000


class DeclaredType(sa.types.UserDefinedType[Any]):
    """A SQLite column with the affinity of a declared type, which binds values unchanged."""

    cache_ok = True

    def __init__(self, declared: str = "") -> None:
        self.declared = declared

    def get_col_spec(self, **_: Any) -> str:
        """The type in a column definition; SQLAlchemy calls this."""
        quoted = self.declared.replace('"', '""')
        return f'"{quoted}"' if quoted else ""


_TEXT = sa.Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")
_BYTES = sa.LargeBinary().with_variant(mysql.LONGBLOB(), "mysql", "mariadb")
_TIMESTAMP = sa.DateTime().with_variant(mysql.DATETIME(fsp=6), "mysql", "mariadb")
_TYPES: Mapping[Kind, sa.types.TypeEngine[Any]] = {
    "boolean": sa.Boolean(),
    "integer": sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
    "number": sa.Double().with_variant(sa.REAL(), "sqlite"),
    "text": _TEXT,
    "bytes": _BYTES,
    "date": sa.Date(),
    "timestamp": _TIMESTAMP,
}
_MYSQL_DIGITS = 65
"""Maximum digits of a DECIMAL."""
_KINDS_OF_PREDICTIONS: Mapping[type, Kind] = {
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "text",
}


@dataclass(frozen=True, kw_only=True)
class StagedRows:
    """Rows in a temporary table of the connection that created it."""

    table: sa.Table
    """`edl_row`, the index of a row from 0, and the requested columns."""
    num_rows: int


def type_of_kind(kind: Kind) -> sa.types.TypeEngine[Any]:
    """The type of a new column for values of a kind."""
    return _TYPES[kind]


def exact_type(engine: Engine, kind: Kind, declared: str, scale: int | None) -> Any:
    """The type of a new column that holds selected values with all of their digits.

    Args:
        engine: The database.
        kind: The kind of the values.
        declared: The engine's name of their type.
        scale: Decimal places of numbers that floating point cannot hold; otherwise None.
    """
    if engine.dialect == "sqlite" and kind in ("integer", "number"):
        return DeclaredType("" if scale is not None else declared)
    if kind != "number" or scale is None:
        return _TYPES[kind]
    return mysql.DECIMAL(_MYSQL_DIGITS, scale) if engine.dialect == "mysql" else sa.Numeric()


def type_of_value(value: object) -> sa.types.TypeEngine[Any]:
    """The type of a column of predictions.

    Raises:
        DataError: The value is neither a number nor a text.
    """
    kind = _KINDS_OF_PREDICTIONS.get(type(value))
    if kind is None:
        raise DataError(
            "A prediction is neither a number nor a text.", received=type(value).__name__
        )
    return _TYPES[kind]


@contextmanager
def stage(
    engine: Engine,
    connection: sa.Connection,
    columns: Sequence[sa.Column[Any]],
    rows: Iterable[Sequence[Any]],
) -> Iterator[StagedRows]:
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
                dict(zip(names, (num_rows + place, *row), strict=True))
                for place, row in enumerate(batch)
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
        yield StagedRows(table=table, num_rows=num_rows)
    finally:
        if engine.has_session:  # Any other connection is closed, and the table dropped with it.
            with suppress(sa.exc.SQLAlchemyError):
                table.drop(connection, checkfirst=False)


def without_zone(value: Any) -> Any:
    """A timestamp in UTC without its time zone; any other value unchanged."""
    return value.replace(tzinfo=None) if isinstance(value, datetime.datetime) else value


def _batches(rows: Iterable[Sequence[Any]]) -> Iterator[list[Sequence[Any]]]:
    remaining_rows = iter(rows)
    while batch := list(itertools.islice(remaining_rows, _BATCH_ROWS)):
        yield batch
