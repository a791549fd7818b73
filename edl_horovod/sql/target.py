"""Decide into which table the predictions of a PREDICT go, or refuse it, before the job runs.

A table that the SELECT reads is never dropped. Its rows get their predictions by their key, which
the export reads beside the selected columns.
"""

import math
import re
import secrets
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import sqlalchemy as sa

from edl_horovod.errors import ConfigError, DataError
from edl_horovod.sql.engine import Engine
from edl_horovod.sql.kinds import DeclaredType, type_of_value
from edl_horovod.sql.select import OneTable, SelectParts, TableName, inspect_select

DEFAULT_COLUMN = "prediction"
"""The column of predictions if the target names only a table."""
MARK = "Predictions, which PREDICT renews"
"""The database's comment on columns that PREDICT added."""
SAMPLE_NUMBER = 0.1234567
"""A sample of numeric predictions, with the digits of 32-bit floating point."""
_ROUNDING_TOLERANCE = 1e-5
"""Relative error of the coarsest floating point type, FLOAT of MySQL."""
_ROW_NUMBERS = ("rowid", "_rowid_", "oid")
"""SQLite's names of the row number; a column of such a name hides it."""
_RELATION_QUERIES = {
    "sqlite": """
        SELECT schema, name, type = 'view' AS is_view, schema = 'temp' AS is_temporary,
            schema = 'main' AS is_default
        FROM pragma_table_list AS relations
        WHERE lower(name) = lower(:name) AND (:schema = '' OR lower(schema) = lower(:schema))
        ORDER BY schema <> 'temp',
            (SELECT seq FROM pragma_database_list AS files WHERE files.name = relations.schema)
        LIMIT 1""",
    "postgres": """
        SELECT nspname AS schema, relname AS name,
            relkind IN ('v', 'm') AND nspname <> 'pg_catalog' AS is_view,
            relpersistence = 't' AS is_temporary, nspname = current_schema() AS is_default
        FROM pg_catalog.pg_class AS c
        JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
        WHERE relkind IN ('r', 'p', 'f', 'v', 'm')
            AND (relname = :name OR lower(relname) = lower(:name))
            AND CASE WHEN :schema = '' THEN pg_catalog.pg_table_is_visible(c.oid)
                ELSE nspname = :schema OR lower(nspname) = lower(:schema) END
        ORDER BY nspname <> :schema""",
    "mysql": """
        SELECT table_schema AS `schema`, table_name AS name,
            table_type IN ('VIEW', 'SYSTEM VIEW') AS is_view, FALSE AS is_temporary,
            table_schema = DATABASE() AS is_default
        FROM information_schema.tables
        WHERE table_schema = :schema AND lower(table_name) = lower(:name)
            AND table_type <> 'TEMPORARY'""",
}
"""The tables and views of a name in any case; of equal names the first is the one that is meant.

SQLAlchemy's inspector leaves temporary ones out, and does not notice `SET search_path` and `USE`.
"""
_NO_TABLE_OF_MYSQL = (1046, 1049, 1142, 1146)
"""MySQL's errors for a table, its database or the right to see it that is not there."""
_TEMPORARY_SCHEMAS = {"sqlite": "temp", "postgres": r"pg_temp(_\d+)?"}
"""Patterns of the names of schemas with temporary tables."""


@dataclass(frozen=True, kw_only=True)
class TargetPlan:
    """The changes that a PREDICT makes to its table."""

    action: Literal["update", "create", "replace"]
    table: TableName
    columns: tuple[str, ...]
    """Columns of predictions."""
    new_columns: tuple[str, ...] = ()
    """The names in `columns` that are added to the table; for `update`."""
    select: str
    """The SELECT that the export runs; keys that the user's SELECT lacks follow its columns."""
    selected: tuple[str, ...]
    """The columns of the user's SELECT."""
    unread_columns: tuple[str, ...] = ()
    """The names in `selected` that the predictions replace; the records do not contain them."""
    keys: tuple[str, ...] = ()
    """Columns that identify the table's rows; for `update`."""
    key_positions: tuple[int, ...] = ()
    """Positions of the keys among the columns of `select`."""
    has_row_numbers: bool = False
    """Whether the key is SQLite's number of a row instead of a column."""
    one_table: OneTable | None = None
    """The parsed SELECT if its rows are rows of the table; then changed rows can be detected."""
    guarded_columns: tuple[str, ...] = ()
    """The names in `columns` whose values PREDICT did not write and must not replace."""
    samples: tuple[Sequence[Any], ...] = ()
    """For each of `columns` sample values that it must be able to hold."""

    def __str__(self) -> str:
        columns = ", ".join(self.columns)
        if self.action == "update":
            keys = ", ".join(self.keys)
            return f"The table {self.table} gets {columns} by its key {keys}."
        verb = "is created" if self.action == "create" else "is replaced"
        return f"The table {self.table} {verb}, with the selected columns and {columns}."


@dataclass(frozen=True, kw_only=True)
class _Relation:
    """A table or a view that exists in the database."""

    name: TableName
    """As statements of the session name it: with its schema if that was written or is another."""
    identity: TableName
    """The same for all names of the table: with its schema."""
    is_view: bool
    is_temporary: bool


@dataclass(frozen=True, kw_only=True)
class _Table:
    """A table with its columns."""

    relation: _Relation
    definitions: Mapping[str, Any]
    """SQLAlchemy's descriptions of the columns, by column name."""
    key: tuple[str, ...]
    marked_columns: frozenset[str]
    """Columns that PREDICT added."""

    @property
    def name(self) -> TableName:
        """As statements of the session name it."""
        return self.relation.name

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(self.definitions)


def column_definition(engine: Engine, name: str, type_text: str) -> str:
    """The definition of a column of predictions in the engine's SQL, with our mark.

    PostgreSQL needs a separate statement for the mark. SQLite has no comments on columns, but
    stores the text of their definitions.
    """
    mark = {"sqlite": f" /* {MARK} */", "mysql": f" COMMENT '{MARK}'"}.get(engine.dialect, "")
    return f"{engine.quoted(name)} {type_text}{mark}"


def quoted_table(engine: Engine, table: TableName) -> str:
    """The quoted name of a table, with its schema if it has one."""
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
    """Decide what happens to the table of a PREDICT; this changes nothing in the database.

    Args:
        engine: The database.
        select: The SELECT of the statement.
        target: The parts of the target's name: table, table and column, or schema, table and
            column.
        columns: Names of the columns of predictions; empty means the target's column, or
            `prediction`.
        features: The columns that the model reads.
        samples: For each column of predictions the values that it must be able to hold; empty means
            a fractional number.
        replace_table: Whether an existing table that the SELECT does not read may be dropped.
        replace_values: Whether values that PREDICT did not write may be replaced.

    Raises:
        ConfigError: The target is malformed, or a column of predictions is a key or is read.
        DataError: Rows cannot be matched, the table or its values must not be replaced, or the
            engine refuses the SELECT.
    """
    if engine.dialect == "duckdb":
        problem = "Predictions cannot be written into a database of DuckDB."
        hint = "Leave the target out; the predictions are then returned as rows."
        raise DataError(problem, received={"target": ".".join(target)}, hint=hint)
    plan, existing = _plan(
        engine, select, target, columns, features=features, replace_table=replace_table
    )
    plan = replace(plan, samples=tuple(samples) or ((SAMPLE_NUMBER,),) * len(plan.columns))
    if existing is None or plan.action != "update":
        return plan
    _require_fitting_columns(engine, plan, existing)
    if replace_values:
        return plan
    unmarked = {*existing.columns} - existing.marked_columns
    guarded = [name for name in plan.columns if name in unmarked]
    _require_no_values(engine, plan, guarded)
    return replace(plan, guarded_columns=tuple(guarded))


def with_current_columns(engine: Engine, plan: TargetPlan) -> TargetPlan:
    """The plan, updated for columns of predictions that the table has got since it was made.

    Raises:
        DataError: Such a column cannot hold predictions, or the engine is unreachable.
    """
    with engine.connecting() as connection:
        existing = _find_table(engine, connection, plan.table)
    columns = existing.columns if existing is not None else ()
    added = [name for name in plan.new_columns if name in columns]
    if existing is None or not added:
        return plan
    _require_fitting_columns(engine, plan, existing)
    new_columns = tuple(name for name in plan.new_columns if name not in added)
    unmarked = [name for name in added if name not in existing.marked_columns]
    guarded = (*plan.guarded_columns, *unmarked)
    return replace(plan, new_columns=new_columns, guarded_columns=guarded)


def _plan(
    engine: Engine,
    select: str,
    target: Sequence[str],
    columns: Sequence[str],
    *,
    features: Collection[str],
    replace_table: bool,
) -> tuple[TargetPlan, _Table | None]:
    """The plan without checks of values, and the table if it exists."""
    table, names = _table_and_columns(target, columns)
    parts = inspect_select(select, engine.dialect)
    selected = tuple(column.name for column in engine.select_columns(select))
    with engine.connecting() as connection:
        relation = _find_relation(engine, connection, table)
        _require_permanent_table(engine, table, relation)
        existing = _described(connection, relation) if relation is not None else None
        relations = {name: _find_relation(engine, connection, name) for name in parts.sources}
    sources = [source for source in relations.values() if source is not None]
    selected_source = relations[parts.one_table.table] if parts.one_table else None
    plan = TargetPlan(action="create", table=table, columns=names, select=select, selected=selected)
    if existing is not None:
        names = tuple(_matching_name(name, existing.columns) or name for name in names)
        new_columns = tuple(name for name in names if name not in existing.columns)
        plan = replace(plan, action="replace", table=existing.name, columns=names)
        update = replace(plan, action="update", new_columns=new_columns)
        if existing.relation.identity in [source.identity for source in sources]:
            return _update_of_source(
                engine, update, parts, selected_source, existing, features
            ), existing
        if existing.key and all(_matching_name(key, selected) for key in existing.key):
            _require_disjoint(names, existing.key, "are the primary key")
            keys = [_matching_name(key, selected) or key for key in existing.key]
            positions = tuple(map(selected.index, keys))
            return replace(update, keys=existing.key, key_positions=positions), existing
        _require_replaceable(engine, existing, table, sources, is_allowed=replace_table)
        if engine.dialect == "mysql":
            problem = f"{existing.name} cannot be replaced: DROP TABLE is not transactional here."
            hint = "Name a new table, or DROP this one first."
            raise DataError(problem, received={"target": str(table)}, hint=hint)
    _require_disjoint(names, tuple(features), "are read by the model")
    unread_columns = tuple(name for name in selected if _matching_name(name, names))
    return replace(plan, unread_columns=unread_columns), existing


def _table_and_columns(
    target: Sequence[str], columns: Sequence[str]
) -> tuple[TableName, tuple[str, ...]]:
    if not 1 <= len(target) <= 3:
        problem = "The target of a PREDICT is a table or a column."
        hint = "Write it as table, table.column or schema.table.column."
        raise ConfigError(problem, received=".".join(target), hint=hint)
    *schemas, table, column = (*target, "") if len(target) == 1 else target
    schema = schemas[0] if schemas else ""
    names = tuple(columns) or (column or DEFAULT_COLUMN,)
    if column and column not in names:
        problem = f"The target names the column {column!r}, which is not one of predict.columns."
        hint = "Name the same column in both, or only the table in the target."
        raise ConfigError(problem, received={"predict.columns": list(names)}, hint=hint)
    counts = Counter(name.lower() for name in names)
    if duplicates := [name for name in names if counts[name.lower()] > 1]:
        problem = f"Two columns of predictions have the name {duplicates[0]!r}."
        hint = "Give them different names by predict.columns."
        raise ConfigError(problem, received={"columns": list(names)}, hint=hint)
    return TableName(schema=schema, name=table), names


def column_definitions(
    engine: Engine, connection: sa.Connection, table: TableName
) -> Mapping[str, Any]:
    """SQLAlchemy's descriptions of a table's columns, by name; empty if there is no such table."""
    existing = _find_table(engine, connection, table)
    return existing.definitions if existing is not None else {}


def _find_table(engine: Engine, connection: sa.Connection, table: TableName) -> _Table | None:
    relation = _find_relation(engine, connection, table)
    return _described(connection, relation) if relation is not None else None


def _find_relation(engine: Engine, connection: sa.Connection, table: TableName) -> _Relation | None:
    """The table or view of a name in the session.

    If none has it exactly, it is the only one that differs in case alone.
    """
    database = engine.session_database(connection)
    values = {"name": table.name, "schema": table.schema or database}
    rows = connection.execute(sa.text(_RELATION_QUERIES[engine.dialect]), values).all()
    if engine.dialect == "mysql" and _is_temporary_in_mysql(engine, connection, table):
        return _Relation(name=table, identity=table, is_view=False, is_temporary=True)
    name = _matching_name(table.name, [row.name for row in rows])
    if name is None:
        return None
    row = next(row for row in rows if row.name == name)
    is_default = row.is_default and not table.schema
    return _Relation(
        name=TableName(schema="" if is_default else row.schema, name=name),
        identity=TableName(schema=row.schema, name=name),
        is_view=bool(row.is_view),
        is_temporary=bool(row.is_temporary),
    )


def _is_temporary_in_mysql(engine: Engine, connection: sa.Connection, table: TableName) -> bool:
    """Whether a name is that of a temporary table, which no list of MySQL contains."""
    try:
        rows = engine.run_text(connection, f"SHOW CREATE TABLE {quoted_table(engine, table)}")
    except sa.exc.DBAPIError as error:
        if error.orig is None or error.orig.args[0] not in _NO_TABLE_OF_MYSQL:
            raise
        return False
    return str(rows.scalars(1).one()).startswith("CREATE TEMPORARY")


def _described(connection: sa.Connection, relation: _Relation) -> _Table:
    inspector = sa.inspect(connection)
    schema, name = relation.identity.schema, relation.identity.name
    definitions = {column["name"]: column for column in inspector.get_columns(name, schema)}
    return _Table(
        relation=relation,
        definitions=definitions,
        key=tuple(inspector.get_pk_constraint(name, schema)["constrained_columns"]),
        marked_columns=_marked_columns(connection, relation.identity, definitions),
    )


def _require_permanent_table(engine: Engine, table: TableName, relation: _Relation | None) -> None:
    """Refuse views, and temporary tables, which end with the connection."""
    schemas = _TEMPORARY_SCHEMAS.get(engine.dialect, "")
    is_temporary = bool(schemas and re.fullmatch(schemas, table.schema, re.IGNORECASE))
    if is_temporary or (relation is not None and relation.is_temporary):
        raise _refused(
            f"{table} is temporary, and ends with the connection", table, "Name a permanent table."
        )
    if relation is not None and relation.is_view:
        raise _refused(
            f"{relation.name} is a view, and predictions can only be written into tables",
            table,
            "Name a table.",
        )


def _matching_name(name: str, names: Sequence[str]) -> str | None:
    """The equal name among some, or the only one that differs in case alone."""
    if name in names:
        return name
    candidates = [candidate for candidate in names if candidate.lower() == name.lower()]
    return candidates[0] if len(candidates) == 1 else None


def _update_of_source(
    engine: Engine,
    plan: TargetPlan,
    parts: SelectParts,
    selected_source: _Relation | None,
    existing: _Table,
    features: Collection[str],
) -> TargetPlan:
    """The plan for predictions into a table that the SELECT reads."""
    reason = f"The SELECT reads {existing.name}, so the table must not be replaced"
    if parts.one_table is None:
        problem = f"{reason}, and its rows cannot be matched with the SELECT's: {parts.obstacle}."
        hint = "Select from this table alone, without aggregates; or predict into a new table."
        raise DataError(problem, received={"target": str(existing.name)}, hint=hint)
    if selected_source is None or selected_source.identity != existing.relation.identity:
        problem = f"{reason}, and the rows of the SELECT are rows of {parts.one_table.table}."
        hint = f"Select from {existing.name} alone, or predict into a new table."
        raise DataError(problem, received={"target": str(existing.name)}, hint=hint)
    keys = existing.key
    if not keys and engine.dialect == "sqlite":
        columns = [column.lower() for column in existing.columns]
        keys = tuple(name for name in _ROW_NUMBERS if name not in columns)[:1]
    if not keys:
        problem = f"{reason}, and it has no primary key that identifies its rows."
        hint = "Give it a primary key, or predict into a new table."
        raise DataError(problem, received={"target": str(existing.name)}, hint=hint)
    _require_disjoint(plan.columns, keys, "are the primary key")
    replaced = [name for name in plan.columns if name in existing.columns]
    used = parts.column_names - {name.lower() for name in plan.selected}
    read = [name for name in replaced if name.lower() in used]
    if read := [*read, *(name for name in replaced if name in features)]:
        raise ConfigError(
            f"The model would read the column {read[0]!r}, which the predictions would replace.",
            received={"target": f"{existing.name}.{plan.columns[0]}"},
            hint="Predict into another column.",
        )
    # Without such a row number SQLite would take the quoted name for a text.
    texts = keys if keys != existing.key else [engine.quoted(key) for key in keys]
    qualifier, num_selected = parts.one_table.qualifier, len(plan.selected)
    return replace(
        plan,
        unread_columns=tuple(name for name in replaced if name in plan.selected),
        select=parts.one_table.with_columns(
            [f"{qualifier}.{text} AS edl_key_{number}" for number, text in enumerate(texts)]
        ),
        keys=keys,
        key_positions=tuple(range(num_selected, num_selected + len(keys))),
        has_row_numbers=keys != existing.key,
        one_table=parts.one_table,
    )


def _require_disjoint(names: Sequence[str], reserved: Sequence[str], reason: str) -> None:
    if conflicts := [name for name in names if _matching_name(name, reserved) is not None]:
        raise ConfigError(
            f"Predictions cannot be written into {conflicts[0]!r}: the columns"
            f" {', '.join(reserved)} {reason}.",
            received={"columns": list(names)},
            hint="Name another column.",
        )


def _marked_columns(
    connection: sa.Connection, table: TableName, definitions: Mapping[str, Any]
) -> frozenset[str]:
    """The columns of a table that carry our mark."""
    if connection.dialect.name == "sqlite":
        quoted = connection.dialect.identifier_preparer.quote_identifier
        schema = quoted(table.schema)
        query = f"SELECT sql FROM {schema}.sqlite_schema WHERE type = 'table' AND name = ?"
        definition = connection.exec_driver_sql(query, (table.name,)).scalar() or ""
        mark = re.compile(rf" \w+ /\* {MARK} \*/")

        def is_marked(name: str) -> bool:
            places = re.finditer(re.escape(quoted(name)), definition)
            return any(mark.match(definition, place.end()) for place in places)

        return frozenset(filter(is_marked, definitions))
    return frozenset(name for name, column in definitions.items() if column.get("comment") == MARK)


def declared_types(engine: Engine, connection: sa.Connection, table: TableName) -> dict[str, str]:
    """The declared types of a SQLite table's columns; empty for other engines."""
    if engine.dialect != "sqlite":
        return {}
    columns = sa.text("SELECT name, type FROM pragma_table_info(:table, :schema)")
    names = {"table": table.name, "schema": table.schema or "main"}
    # A primary key INTEGER is the row number; staged as such it would refuse other values.
    return {
        name: "INT" if declared.upper() == "INTEGER" else declared
        for name, declared in connection.execute(columns, names)
    }


def _require_fitting_columns(engine: Engine, plan: TargetPlan, table: _Table) -> None:
    """Refuse an existing column that would round or refuse predictions."""
    for name, values in zip(plan.columns, plan.samples, strict=True):
        definition = table.definitions.get(name, {})
        if definition.get("computed"):
            raise DataError(
                f"Predictions cannot be written into {name} of {table.name}, a computed column.",
                received={"target": f"{table.name}.{name}"},
                hint="Name another column.",
            )
        if definition and (lost := _first_unfit_value(engine, table, name, values)):
            value, outcome = lost
            type_ = "double precision" if isinstance(value, float) else "text"
            raise DataError(
                f"The column {name} of {table.name} cannot hold the predictions: {value!r} would"
                f" {outcome}.",
                received={"type": str(definition["type"])},
                hint=f"Name a new column, or change the type of this one to {type_}.",
            )


def _first_unfit_value(
    engine: Engine, table: _Table, name: str, values: Sequence[Any]
) -> tuple[Any, str] | None:
    """The first value that a column would change or refuse, tried in a temporary table."""
    trial, column = f"edl_trial_{secrets.token_hex(8)}", engine.quoted(name)
    trial_table = sa.table(trial, sa.column(name, type_of_value(values[0])))
    with engine.connecting() as connection:
        definition = f"AS SELECT {column} FROM {quoted_table(engine, table.name)} LIMIT 0"
        if engine.dialect == "sqlite":
            declared = DeclaredType(declared_types(engine, connection, table.name)[name])
            strict = sa.text("SELECT strict FROM pragma_table_list(:table) WHERE schema = :schema")
            names = {"table": table.name.name, "schema": table.name.schema or "main"}
            is_strict = connection.execute(strict, names).scalar()
            definition = f"({column} {declared.get_col_spec()}){' STRICT' if is_strict else ''}"
        connection.rollback()
        with engine.transaction(connection, writes=False):
            engine.run_text(connection, f"CREATE TEMPORARY TABLE {trial} {definition}")
            try:
                unfit = _first_changed(connection, trial_table, name, values)
            finally:
                connection.rollback()
                if engine.dialect == "mysql":  # There the table stays.
                    engine.run_text(connection, f"DROP TEMPORARY TABLE {trial}")
    return unfit


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
        return math.isclose(float(stored), value, rel_tol=_ROUNDING_TOLERANCE)
    except (TypeError, ValueError):
        return False


def _require_no_values(engine: Engine, plan: TargetPlan, columns: Sequence[str]) -> None:
    """Refuse to replace values in columns that PREDICT did not add."""
    if not columns:
        return
    if plan.one_table is not None:
        qualifier = plan.one_table.qualifier
        rows = plan.one_table.with_columns(
            [f"{qualifier}.{engine.quoted(name)} AS edl_{n}" for n, name in enumerate(columns)]
        )
        expressions = [f"count(edl_{number})" for number in range(len(columns))]
        rows = f"(\n{rows}\n) AS edl_select"
    else:
        match = " AND ".join(
            f"edl_select.{engine.quoted(plan.selected[position])} = edl_target.{engine.quoted(key)}"
            for key, position in zip(plan.keys, plan.key_positions, strict=True)
        )
        expressions = [f"count(edl_target.{engine.quoted(name)})" for name in columns]
        table = quoted_table(engine, plan.table)
        rows = f"(\n{plan.select}\n) AS edl_select JOIN {table} AS edl_target ON {match}"
    with engine.reading(f"SELECT {', '.join(expressions)} FROM {rows}") as counted_rows:
        (counts,) = counted_rows.fetch(1)
    num_lost = {name: count for name, count in zip(columns, counts, strict=True) if count}
    if num_lost:
        names = " and ".join(f"{count:,} values of {name}" for name, count in num_lost.items())
        raise DataError(
            f"Predictions are not written, because {names} in {plan.table} would be lost, which"
            " PREDICT did not write.",
            received={"target": f"{plan.table}.{next(iter(num_lost))}"},
            hint="Name another column; or, to replace these values, write"
            " WITH predict.replace_values=True.",
        )


def _require_replaceable(
    engine: Engine,
    existing: _Table,
    table: TableName,
    sources: Sequence[_Relation],
    *,
    is_allowed: bool,
) -> None:
    if views := [source.name for source in sources if source.is_view]:
        raise _refused(
            f"the SELECT reads the view {views[0]}, which may read {existing.name}",
            table,
            "Name another table.",
        )
    if is_allowed:
        return
    with engine.reading(f"SELECT count(*) FROM {quoted_table(engine, existing.name)}") as rows:
        ((num_rows,),) = rows.fetch(1)
    raise _refused(
        f"{existing.name} exists with {num_rows:,} rows, and the SELECT neither reads it nor has"
        " its primary key",
        table,
        "Name another table; or, to drop this one with all its rows, write"
        " WITH predict.replace_table=True.",
    )


def _refused(reason: str, table: TableName, hint: str) -> DataError:
    return DataError(
        f"Predictions are not written: {reason}.", received={"target": str(table)}, hint=hint
    )
