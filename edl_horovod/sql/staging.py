"""Rows with predictions in a temporary table: the engine drops it if the connection ends early.

So nothing of ours stays in the database if this process, its machine or the network dies.
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

__all__ = ["AsGiven", "Staged", "exact_type", "stage", "type_of_kind", "type_of_value"]

_ROWS = 1_000


class AsGiven(sa.types.UserDefinedType[Any]):
    """A column of sqlite that gets values as they are, and has the affinity of a declared type."""

    cache_ok = True

    def __init__(self, declared: str = "") -> None:
        self.declared = declared

    def get_col_spec(self, **_: Any) -> str:
        """The type in a definition, as SQLAlchemy asks for it."""
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
"""As many as a DECIMAL may have."""
_KINDS: Mapping[type, Kind] = {bool: "boolean", int: "integer", float: "number", str: "text"}


@dataclass(frozen=True, kw_only=True)
class Staged:
    """A temporary table of the connection that made it."""

    table: sa.Table
    """`row`, and the columns that were asked for."""
    num_rows: int


def type_of_kind(kind: Kind) -> sa.types.TypeEngine[Any]:
    """The type of a column that we make."""
    return _TYPES[kind]


def exact_type(engine: Engine, kind: Kind, declared: str, scale: int | None) -> Any:
    """The type of a column that we make for values of the database, which keeps their digits.

    Args:
        engine: The database.
        kind: What the values are.
        declared: Their type as the engine calls it.
        scale: Digits behind the point of numbers that floating point does not hold.
    """
    if engine.dialect == "sqlite" and kind in ("integer", "number"):
        return AsGiven("" if scale is not None else declared)
    if kind != "number" or scale is None:
        return _TYPES[kind]
    return mysql.DECIMAL(_MYSQL_DIGITS, scale) if engine.dialect == "mysql" else sa.Numeric()


def type_of_value(value: object) -> sa.types.TypeEngine[Any]:
    """The type of a column of predictions.

    Raises:
        DataError: It is neither a number nor a text.
    """
    kind = _KINDS.get(type(value))
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
) -> Iterator[Staged]:
    """Put rows into a new temporary table, which is dropped when the `with` ends.

    Args:
        engine: The database.
        connection: Of it.
        columns: Of the table; those of a primary key tell its rows apart.
        rows: Values in the order of the columns.

    Raises:
        DataError: Two rows have the same key, or the engine refuses something.
    """
    number: sa.Column[Any] = sa.Column("edl_row", sa.BigInteger(), nullable=False)
    if not any(column.primary_key for column in columns):
        number = sa.Column("edl_row", sa.BigInteger(), primary_key=True, autoincrement=False)
    name = f"edl_staged_{secrets.token_hex(8)}"
    table = sa.Table(name, sa.MetaData(), number, *columns, prefixes=["TEMPORARY"])
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
                    "Two rows of the SELECT have the same key, so that nobody can say which of"
                    " their predictions counts.",
                    received=f"rows {num_rows + 1:,} to {num_rows + len(batch):,}",
                    hint="Leave one of them out by WHERE.",
                ) from e
            num_rows += len(batch)
    try:
        yield Staged(table=table, num_rows=num_rows)
    finally:
        if engine.has_session:  # Another connection is closed now, and the table gone with it.
            with suppress(sa.exc.SQLAlchemyError):
                table.drop(connection, checkfirst=False)


def without_zone(value: Any) -> Any:
    """A timestamp in UTC as a column without zones holds it; anything else as it is."""
    return value.replace(tzinfo=None) if isinstance(value, datetime.datetime) else value


def _batches(rows: Iterable[Sequence[Any]]) -> Iterator[list[Sequence[Any]]]:
    rest = iter(rows)
    while batch := list(itertools.islice(rest, _ROWS)):
        yield batch
