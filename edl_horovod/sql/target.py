"""Where the predictions of a PREDICT go: decided, or refused, before anything is computed.

A table that the SELECT reads is never dropped. Its rows get their predictions by their key, which
the export reads beside the selected columns.
"""

import math
import re
import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import sqlalchemy as sa

from edl_horovod.errors import ConfigError, DataError
from edl_horovod.sql.engine import Engine
from edl_horovod.sql.select import OneTable, SelectParts, TableName, inspect_select
from edl_horovod.sql.staging import AsGiven, type_of_value

__all__ = [
    "COLUMN",
    "MARK",
    "NUMBER",
    "TargetPlan",
    "column_definition",
    "declared_types",
    "plan_target",
    "quoted_table",
    "revise",
]

COLUMN = "prediction"
"""The column of a target that names a table alone."""
MARK = "Predictions, which PREDICT renews"
"""The comment in the database on a column that PREDICT added."""
NUMBER = 0.1234567
"""Stands for predictions that are numbers: with as many digits as 32-bit floating point has."""
_ROUNDED = 1e-5
"""Relative error of a number in the coarsest type that is for floating point, FLOAT of MySQL."""
_ROW_NUMBERS = ("rowid", "_rowid_", "oid")
"""What sqlite calls the number of a row; a column of such a name hides it."""


@dataclass(frozen=True, kw_only=True)
class TargetPlan:
    """What happens to the table of a PREDICT."""

    action: Literal["update", "create", "replace"]
    table: TableName
    columns: tuple[str, ...]
    """Columns of predictions."""
    new_columns: tuple[str, ...]
    """Those of them that the table lacks and that are added; for `update`."""
    select: str
    """What the export runs: the SELECT, with the keys behind its columns where it lacks them."""
    selected: tuple[str, ...]
    """The columns of the SELECT as it was written."""
    unread_columns: tuple[str, ...] = ()
    """Those of them that the predictions replace: they are no part of the records."""
    keys: tuple[str, ...]
    """Columns that tell the table's rows apart; for `update`."""
    key_places: tuple[int, ...]
    """Where they are among the columns of `select`."""
    has_row_numbers: bool
    """Whether the key is the number that the engine gives each row."""
    one_table: OneTable | None
    """The SELECT by its parts, if its rows are rows of the table; then changed ones are found."""
    guarded_columns: tuple[str, ...] = ()
    """Those of `columns` whose values, should there be any by then, must not be replaced."""
    samples: tuple[Sequence[Any], ...] = ()
    """Values that each of `columns` must hold."""

    def __str__(self) -> str:
        columns = ", ".join(self.columns)
        if self.action == "update":
            keys = ", ".join(self.keys)
            return f"The table {self.table} gets {columns} by its key {keys}."
        verb = "is made" if self.action == "create" else "is replaced"
        return f"The table {self.table} {verb}, with the selected columns and {columns}."


@dataclass(frozen=True, kw_only=True)
class _Found:
    """A table of the database."""

    name: TableName
    definitions: Mapping[str, Any]
    """Its columns as SQLAlchemy reflects them, by their names."""
    key: tuple[str, ...]
    is_view: bool
    predicted: frozenset[str] = frozenset()
    """Columns that PREDICT added."""

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(self.definitions)


def column_definition(engine: Engine, name: str, type_text: str) -> str:
    """A column of predictions as the engine's SQL defines it, marked as PREDICT's.

    PostgreSQL has the mark in a statement of its own. SQLite has no comments on columns, but keeps
    the text by which a column was defined.
    """
    mark = {"sqlite": f" /* {MARK} */", "mysql": f" COMMENT '{MARK}'"}.get(engine.dialect, "")
    return f"{engine.quoted(name)} {type_text}{mark}"


def quoted_table(engine: Engine, table: TableName) -> str:
    """A table as the engine's SQL names it."""
    return ".".join(engine.quoted(part) for part in (table.schema, table.name) if part)


def plan_target(
    engine: Engine,
    select: str,
    target: Sequence[str],
    *,
    columns: Sequence[str] = (),
    features: Collection[str] = (),
    samples: Sequence[Sequence[Any]] = (),
    replace_table: bool = False,
    replace_values: bool = False,
) -> TargetPlan:
    """Decide what happens to the table of a PREDICT; nothing is changed yet.

    Args:
        engine: The database.
        select: The SELECT of the statement.
        target: The parts of the target's name: table, table and column, or schema, table and
            column.
        columns: The names of the columns of predictions; without them it is the target's, or
            `prediction`.
        features: The columns that the model reads.
        samples: Values that each column of predictions must be able to hold; without them a number
            with digits behind its point.
        replace_table: Whether a table may be dropped that has nothing to do with the rows.
        replace_values: Whether values may be replaced in a column that PREDICT did not add.

    Raises:
        ConfigError: The target names no table, or its columns are in the way.
        DataError: Rows cannot be matched, the table or values must not be replaced, or the engine
            refuses the SELECT.
    """
    if engine.dialect == "duckdb":
        raise DataError(
            "Predictions cannot be written into a database of DuckDB.",
            received={"target": ".".join(target)},
            hint="Leave the target out, which gives the predictions as rows.",
        )
    plan, found = _plan(
        engine, select, target, columns, features=features, replace_table=replace_table
    )
    plan = replace(plan, samples=tuple(samples) or ((NUMBER,),) * len(plan.columns))
    if found is None or plan.action != "update":
        return plan
    _require_room(engine, plan, found)
    if replace_values:
        return plan
    guarded = [name for name in plan.columns if name in found.columns]
    guarded = [name for name in guarded if name not in found.predicted]
    _require_no_values(engine, plan, guarded)
    return replace(plan, guarded_columns=tuple(guarded))


def revise(engine: Engine, plan: TargetPlan) -> TargetPlan:
    """The plan for a table that somebody may have given the columns of predictions since.

    Raises:
        DataError: Such a column cannot hold predictions, or the engine is gone.
    """
    with engine.connecting() as connection:
        found = _find(sa.inspect(connection), plan.table)
        added = [name for name in plan.new_columns if found is not None and name in found.columns]
        if found is None or not added:
            return plan
        predicted = _predicted(connection, found)
    _require_room(engine, plan, found)
    return replace(
        plan,
        new_columns=tuple(name for name in plan.new_columns if name not in added),
        guarded_columns=(
            *plan.guarded_columns,
            *(name for name in added if name not in predicted),
        ),
    )


def _plan(
    engine: Engine,
    select: str,
    target: Sequence[str],
    columns: Sequence[str],
    *,
    features: Collection[str],
    replace_table: bool,
) -> tuple[TargetPlan, _Found | None]:
    """What happens to the table, and the table if it is there."""
    wanted, names = _names(target, columns)
    parts = inspect_select(select, engine.dialect)
    selected = [column.name for column in engine.select_columns(select)]
    with engine.connecting() as connection:
        inspector = sa.inspect(connection)
        found = _find(inspector, wanted)
        if found is not None:
            found = replace(found, predicted=_predicted(connection, found))
        sources = [_find(inspector, source) for source in parts.sources]
        one = _find(inspector, parts.one_table.table) if parts.one_table else None
    if found is not None:
        names = tuple(_same(name, found.columns) or name for name in names)
    if found is not None and found.is_view:
        raise _refused(
            f"{found.name} is a view, and predictions go to tables", wanted, "Name a table."
        )
    if found is not None and found.name in [each.name for each in sources if each]:
        return _update_source(engine, parts, one, found, names, selected, features), found
    if found is not None and found.key and all(_same(key, selected) for key in found.key):
        _require_others(names, found.key, "are its key")
        places = tuple(selected.index(_same(key, selected) or key) for key in found.key)
        plan = TargetPlan(
            action="update",
            table=found.name,
            columns=names,
            new_columns=tuple(name for name in names if name not in found.columns),
            select=select,
            selected=tuple(selected),
            keys=found.key,
            key_places=places,
            has_row_numbers=False,
            one_table=None,
        )
        return plan, found
    if found is not None:
        _require_replaceable(engine, found, wanted, sources, is_allowed=replace_table)
        if engine.dialect == "mysql":
            raise DataError(
                f"{found.name} cannot be replaced: this database has no transaction for that.",
                received={"target": str(wanted)},
                hint="Name a new table, or DROP this one first.",
            )
    _require_others(names, tuple(features), "are what the model reads")
    plan = TargetPlan(
        action="create" if found is None else "replace",
        table=wanted if found is None else found.name,
        columns=names,
        new_columns=(),
        unread_columns=tuple(name for name in selected if _same(name, names)),
        select=select,
        selected=tuple(selected),
        keys=(),
        key_places=(),
        has_row_numbers=False,
        one_table=None,
    )
    return plan, found


def _names(target: Sequence[str], columns: Sequence[str]) -> tuple[TableName, tuple[str, ...]]:
    if not 1 <= len(target) <= 3:
        raise ConfigError(
            "The target of a PREDICT is a table, or a column of one.",
            received=".".join(target),
            hint="Write it as table, table.column or schema.table.column.",
        )
    *before, table, column = (*target, "") if len(target) == 1 else target
    schema = before[0] if before else ""
    names = tuple(columns) or (column or COLUMN,)
    if column and column not in names:
        raise ConfigError(
            f"The target names the column {column!r}, which is none of predict.columns.",
            received={"predict.columns": list(names)},
            hint="Name the same one in both, or the table alone in the target.",
        )
    if twice := [
        name for name in names if [each.lower() for each in names].count(name.lower()) > 1
    ]:
        raise ConfigError(
            f"Two columns of predictions have the name {twice[0]!r}.",
            received={"columns": list(names)},
            hint="Give each another name by predict.columns.",
        )
    return TableName(schema=schema, name=table), names


def _find(inspector: sa.Inspector, wanted: TableName) -> _Found | None:
    """The table that a statement means: by its exact name, or the only one but for its case."""
    schema = wanted.schema or None
    if schema is not None and schema not in inspector.get_schema_names():
        schema = _same(schema, inspector.get_schema_names())
        if schema is None:
            return None
    views = inspector.get_view_names(schema)
    name = _same(wanted.name, [*inspector.get_table_names(schema), *views])
    if name is None:
        return None
    default = inspector.default_schema_name or "main"
    return _Found(
        name=TableName(schema="" if schema in (None, default) else schema, name=name),
        definitions={column["name"]: column for column in inspector.get_columns(name, schema)},
        key=tuple(inspector.get_pk_constraint(name, schema)["constrained_columns"]),
        is_view=name in views,
    )


def _same(name: str, names: Sequence[str]) -> str | None:
    """The name among some, or the only one that differs from it in case alone."""
    if name in names:
        return name
    alike = [each for each in names if each.lower() == name.lower()]
    return alike[0] if len(alike) == 1 else None


def _update_source(
    engine: Engine,
    parts: SelectParts,
    one: _Found | None,
    found: _Found,
    names: tuple[str, ...],
    selected: Sequence[str],
    features: Collection[str],
) -> TargetPlan:
    """Predictions for the rows of a table that the SELECT reads."""
    why = f"The SELECT reads {found.name}, so the table is never replaced"
    if parts.one_table is None:
        raise DataError(
            f"{why}, and its rows cannot be matched with those of the SELECT: {parts.obstacle}.",
            received={"target": str(found.name)},
            hint="Select from this table alone, without sums; or predict into a new table.",
        )
    if one is None or one.name != found.name:
        raise DataError(
            f"{why}, and the rows of the SELECT are those of {parts.one_table.table}.",
            received={"target": str(found.name)},
            hint=f"Select from {found.name} alone, or predict into a new table.",
        )
    keys = found.key
    if not keys and engine.dialect == "sqlite":
        columns = [column.lower() for column in found.columns]
        keys = tuple(name for name in _ROW_NUMBERS if name not in columns)[:1]
    if not keys:
        raise DataError(
            f"{why}, and it has no primary key by which its rows get their predictions.",
            received={"target": str(found.name)},
            hint="Give it a primary key, or predict into a new table.",
        )
    _require_others(names, keys, "are its key")
    replaced = [name for name in names if name in found.columns]
    used = parts.column_names - {name.lower() for name in selected}
    read = [name for name in replaced if name.lower() in used]
    if read := [*read, *(name for name in replaced if name in features)]:
        raise ConfigError(
            f"The model would read the column {read[0]!r}, which the predictions would replace.",
            received={"target": f"{found.name}.{names[0]}"},
            hint="Predict into another column.",
        )
    # In quotes a row number that is not there would be a text.
    texts = keys if keys != found.key else [engine.quoted(key) for key in keys]
    return TargetPlan(
        action="update",
        table=found.name,
        columns=names,
        new_columns=tuple(name for name in names if name not in found.columns),
        unread_columns=tuple(name for name in replaced if name in selected),
        select=parts.one_table.with_columns(
            [
                f"{parts.one_table.qualifier}.{text} AS edl_key_{number}"
                for number, text in enumerate(texts)
            ]
        ),
        selected=tuple(selected),
        keys=keys,
        key_places=tuple(range(len(selected), len(selected) + len(keys))),
        has_row_numbers=keys != found.key,
        one_table=parts.one_table,
    )


def _require_others(names: Sequence[str], others: Sequence[str], what: str) -> None:
    if clash := [name for name in names if _same(name, others) is not None]:
        raise ConfigError(
            f"Predictions cannot go to {clash[0]!r}: of the columns, {', '.join(others)} {what}.",
            received={"columns": list(names)},
            hint="Name another column.",
        )


def _predicted(connection: sa.Connection, found: _Found) -> frozenset[str]:
    """The columns of a table that carry our mark."""
    if connection.dialect.name == "sqlite":
        quoted = connection.dialect.identifier_preparer.quote_identifier
        schema = quoted(found.name.schema or "main")
        texts = f"SELECT sql FROM {schema}.sqlite_schema WHERE type = 'table' AND name = ?"
        text = connection.exec_driver_sql(texts, (found.name.name,)).scalar() or ""
        marked = re.compile(rf" \w+ /\* {MARK} \*/")
        return frozenset(
            name
            for name in found.columns
            if any(
                marked.match(text, match.end())
                for match in re.finditer(re.escape(quoted(name)), text)
            )
        )
    return frozenset(
        name for name, column in found.definitions.items() if column.get("comment") == MARK
    )


def declared_types(engine: Engine, connection: sa.Connection, table: TableName) -> dict[str, str]:
    """The types of a table of sqlite as they were declared; nothing of other engines."""
    if engine.dialect != "sqlite":
        return {}
    columns = sa.text("SELECT name, type FROM pragma_table_info(:table, :schema)")
    names = {"table": table.name, "schema": table.schema or "main"}
    # A column that is an INTEGER key is the number of the row, and takes nothing else.
    return {
        name: "INT" if declared.upper() == "INTEGER" else declared
        for name, declared in connection.execute(columns, names)
    }


def _require_room(engine: Engine, plan: TargetPlan, found: _Found) -> None:
    """Refuse a column that is there and would round or refuse predictions."""
    for name, values in zip(plan.columns, plan.samples, strict=True):
        definition = found.definitions.get(name, {})
        if definition.get("computed"):
            raise DataError(
                f"Predictions cannot go to {name} of {found.name}: the database computes it.",
                received={"target": f"{found.name}.{name}"},
                hint="Name another column.",
            )
        if definition and (lost := _first_lost(engine, found, name, values)):
            value, becomes = lost
            type_ = "double precision" if isinstance(value, float) else "text"
            raise DataError(
                f"The column {name} of {found.name} cannot hold the predictions: {value!r} would"
                f" {becomes}.",
                received={"type": str(definition["type"])},
                hint=f"Name a column that does not exist, or make this one {type_}.",
            )


def _first_lost(
    engine: Engine, found: _Found, name: str, values: Sequence[Any]
) -> tuple[Any, str] | None:
    """A value that a column would not hold, and what would become of it; tried beside the table."""
    trial, column = f"edl_trial_{secrets.token_hex(8)}", engine.quoted(name)
    target = sa.table(trial, sa.column(name, type_of_value(values[0])))
    with engine.connecting() as connection:
        definition = f"AS SELECT {column} FROM {quoted_table(engine, found.name)} LIMIT 0"
        if engine.dialect == "sqlite":
            declared = AsGiven(declared_types(engine, connection, found.name)[name])
            strict = sa.text("SELECT strict FROM pragma_table_list(:table) WHERE schema = :schema")
            names = {"table": found.name.name, "schema": found.name.schema or "main"}
            is_strict = connection.execute(strict, names).scalar()
            definition = f"({column} {declared.get_col_spec()}){' STRICT' if is_strict else ''}"
        connection.rollback()
        with engine.transaction(connection, writes=False):
            engine.run_text(connection, f"CREATE TEMPORARY TABLE {trial} {definition}")
            try:
                lost = _first_changed(connection, target, name, values)
            finally:
                connection.rollback()
                if engine.dialect == "mysql":  # There the table stays.
                    engine.run_text(connection, f"DROP TEMPORARY TABLE {trial}")
    return lost


def _first_changed(
    connection: sa.Connection, target: sa.TableClause, name: str, values: Sequence[Any]
) -> tuple[Any, str] | None:
    for value in values:
        try:
            connection.execute(sa.insert(target).values({name: value}))
        except (sa.exc.DataError, sa.exc.IntegrityError, sa.exc.ProgrammingError):
            return value, "be refused"
        stored = connection.execute(sa.select(sa.column(name)).select_from(target)).scalar()
        if not _is_same(value, stored):
            return value, f"become {stored}"
        connection.execute(sa.delete(target))
    return None


def _is_same(value: Any, stored: Any) -> bool:
    if not isinstance(value, float):
        return bool(stored == value) or str(stored) == str(value)
    try:
        return math.isclose(float(stored), value, rel_tol=_ROUNDED)
    except (TypeError, ValueError):
        return False


def _require_no_values(engine: Engine, plan: TargetPlan, columns: Sequence[str]) -> None:
    """Refuse to replace values that PREDICT did not write."""
    if not columns:
        return
    if plan.one_table is not None:
        place = plan.one_table.qualifier
        rows = plan.one_table.with_columns(
            [f"{place}.{engine.quoted(name)} AS edl_{n}" for n, name in enumerate(columns)]
        )
        counted = [f"count(edl_{number})" for number in range(len(columns))]
        rows = f"(\n{rows}\n) AS edl_select"
    else:
        match = " AND ".join(
            f"edl_select.{engine.quoted(plan.selected[place])} = edl_target.{engine.quoted(key)}"
            for key, place in zip(plan.keys, plan.key_places, strict=True)
        )
        counted = [f"count(edl_target.{engine.quoted(name)})" for name in columns]
        table = quoted_table(engine, plan.table)
        rows = f"(\n{plan.select}\n) AS edl_select JOIN {table} AS edl_target ON {match}"
    with engine.reading(f"SELECT {', '.join(counted)} FROM {rows}") as found:
        (counts,) = found.fetch(1)
    lost = {name: count for name, count in zip(columns, counts, strict=True) if count}
    if lost:
        names = " and ".join(f"{count:,} values of {name}" for name, count in lost.items())
        raise DataError(
            f"Predictions are not written: {names} in {plan.table}, which PREDICT did not write,"
            " would be lost.",
            received={"target": f"{plan.table}.{next(iter(lost))}"},
            hint="Name another column; or, to lose these values, write"
            " WITH predict.replace_values=True.",
        )


def _require_replaceable(
    engine: Engine,
    found: _Found,
    wanted: TableName,
    sources: Sequence[_Found | None],
    *,
    is_allowed: bool,
) -> None:
    if views := [each.name for each in sources if each is not None and each.is_view]:
        raise _refused(
            f"the SELECT reads the view {views[0]}, which may read {found.name}",
            wanted,
            "Name another table.",
        )
    if is_allowed:
        return
    with engine.reading(f"SELECT count(*) FROM {quoted_table(engine, found.name)}") as rows:
        ((num_rows,),) = rows.fetch(1)
    raise _refused(
        f"{found.name} exists with {num_rows:,} rows, the SELECT does not read it, and does not"
        " give its primary key",
        wanted,
        "Name another table; or, to drop this one with all its rows, write"
        " WITH predict.replace_table=True.",
    )


def _refused(why: str, wanted: TableName, hint: str) -> DataError:
    return DataError(
        f"Predictions are not written: {why}.", received={"target": str(wanted)}, hint=hint
    )
