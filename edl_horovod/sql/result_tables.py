"""The rows of EVALUATE and EXPLAIN as a table of the database, made whole or not at all."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from edl_horovod.errors import DataError
from edl_horovod.sql.engine import Engine
from edl_horovod.sql.kinds import Kind
from edl_horovod.sql.problems import StatementError
from edl_horovod.sql.staging import type_of_kind
from edl_horovod.sql.statements import Name

__all__ = ["ResultTable", "plan_result_table", "write_result_table"]


@dataclass(frozen=True, kw_only=True)
class ResultTable:
    """A table that a statement's rows go into."""

    name: Name
    columns: Mapping[str, Kind]
    """Names to kinds."""
    is_there: bool
    """Whether it holds earlier results."""
    overwrite: bool
    """Whether these are replaced."""


def plan_result_table(
    engine: Engine, name: Name, columns: Mapping[str, Kind], *, overwrite: bool
) -> ResultTable:
    """Decide whether a table can be made, or added to; nothing is changed yet.

    Args:
        engine: The database.
        name: Of the table, or its schema and the table.
        columns: Names to kinds.
        overwrite: Whether earlier results of the same columns are replaced; else rows are added.

    Raises:
        StatementError: The name has too many parts.
        DataError: Another table of that name is there, or the engine is gone.
    """
    if len(name.parts) > 2:
        what = f"{name} is no table."
        raise StatementError(what, name.position, hint="Write table, or schema.table.")
    schema, table = _parts(name)
    with engine.connecting() as connection:
        inspector = sa.inspect(connection)
        is_there = inspector.has_table(table, schema)
        found = [it["name"] for it in inspector.get_columns(table, schema)] if is_there else []
    if is_there and found != list(columns):
        raise DataError(
            f"{name} exists, and is no earlier result of such a statement.",
            received=f"its columns {', '.join(found)}",
            hint="Give the name of a new table.",
        )
    return ResultTable(name=name, columns=columns, is_there=is_there, overwrite=overwrite)


def write_result_table(engine: Engine, plan: ResultTable, rows: Sequence[Sequence[Any]]) -> None:
    """Add rows to the table, which is made where it is not there or replaced, in one transaction.

    MariaDB commits each change of a table's name or columns by itself: there, whoever is killed in
    between may leave a new table without rows, or without the earlier results.

    Raises:
        DataError: The engine refuses something, or is gone.
    """
    schema, name = _parts(plan.name)
    columns: list[sa.Column[Any]] = [
        sa.Column(column, type_of_kind(kind)) for column, kind in plan.columns.items()
    ]
    table = sa.Table(name, sa.MetaData(), *columns, schema=schema)
    values = [dict(zip(plan.columns, row, strict=True)) for row in rows]
    with engine.connecting() as connection, engine.transaction(connection):
        if plan.is_there and plan.overwrite:
            table.drop(connection, checkfirst=False)
        if plan.overwrite or not plan.is_there:
            table.create(connection, checkfirst=False)
        connection.execute(table.insert(), values)


def _parts(name: Name) -> tuple[str | None, str]:
    schema = name.parts[0] if len(name.parts) == 2 else None
    return schema, name.parts[-1]
