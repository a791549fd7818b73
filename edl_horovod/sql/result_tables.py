"""Writes the rows of EVALUATE and EXPLAIN into a table of the database, all of them or none."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from edl_horovod.errors import DataError
from edl_horovod.sql.engine import Engine
from edl_horovod.sql.kinds import Kind
from edl_horovod.sql.staging import type_of_kind
from edl_horovod.sql.statements import Name, StatementError

__all__ = ["ResultTable", "plan_result_table", "write_result_table"]


@dataclass(frozen=True, kw_only=True)
class ResultTable:
    """The table for the rows of a statement."""

    name: Name
    columns: Mapping[str, Kind]
    """The kinds of values by column."""
    exists: bool
    """Whether the table exists and holds earlier results."""
    overwrite: bool
    """Whether earlier results are replaced; else rows are added."""


def plan_result_table(
    engine: Engine, name: Name, columns: Mapping[str, Kind], *, overwrite: bool
) -> ResultTable:
    """Check that a table can be created, or that rows can be added; nothing is changed yet.

    Args:
        engine: The database.
        name: The table, with or without its schema.
        columns: The kinds of values by column.
        overwrite: Whether earlier results in the same columns are replaced; else rows are added.

    Raises:
        StatementError: The name has too many parts.
        DataError: A table of that name has other columns, or the database does not answer.
    """
    if len(name.parts) > 2:
        problem = f"{name} cannot name a table."
        raise StatementError(problem, name.position, hint="Write table or schema.table.")
    schema, table = _schema_and_table(name)
    with engine.connecting() as connection:
        inspector = sa.inspect(connection)
        exists = inspector.has_table(table, schema)
        existing_columns = (
            [column["name"] for column in inspector.get_columns(table, schema)] if exists else []
        )
    if exists and existing_columns != list(columns):
        raise DataError(
            f"The table {name} exists and has other columns than results of this statement.",
            received=f"its columns {', '.join(existing_columns)}",
            hint="Write the name of a new table.",
        )
    return ResultTable(name=name, columns=columns, exists=exists, overwrite=overwrite)


def write_result_table(engine: Engine, plan: ResultTable, rows: Sequence[Sequence[Any]]) -> None:
    """Add rows to the table, which is created if necessary, in one transaction.

    MariaDB commits each CREATE and DROP immediately. A process that is killed in between may leave
    a new table without rows there, or lose the earlier results.

    Raises:
        DataError: The database refuses a statement, or does not answer.
    """
    schema, name = _schema_and_table(plan.name)
    columns: list[sa.Column[Any]] = [
        sa.Column(column, type_of_kind(kind)) for column, kind in plan.columns.items()
    ]
    table = sa.Table(name, sa.MetaData(), *columns, schema=schema)
    values = [dict(zip(plan.columns, row, strict=True)) for row in rows]
    with engine.connecting() as connection, engine.transaction(connection):
        if plan.exists and plan.overwrite:
            table.drop(connection, checkfirst=False)
        if plan.overwrite or not plan.exists:
            table.create(connection, checkfirst=False)
        connection.execute(table.insert(), values)


def _schema_and_table(name: Name) -> tuple[str | None, str]:
    schema = name.parts[0] if len(name.parts) == 2 else None
    return schema, name.parts[-1]
