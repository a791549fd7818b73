"""Finds out which tables a SELECT reads, and whether its rows are rows of one table.

The text of the SELECT is kept: columns are added to it in front of its FROM.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.tokenizer_core import Token, TokenType

from edl_horovod.errors import DataError


@dataclass(frozen=True, kw_only=True)
class TableName:
    """The name of a table in a statement, without quotes."""

    schema: str
    """Empty if the statement names no schema."""
    name: str

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}" if self.schema else self.name


@dataclass(frozen=True, kw_only=True)
class OneTable:
    """The parts of a SELECT whose rows are rows of one table, as texts."""

    table: TableName
    expressions: str
    """The text between SELECT and FROM."""
    qualified_expressions: str
    """The same with `table.*` for `*`, so that a joined table adds no columns."""
    reference: str
    """The table with its alias, as it stands after FROM."""
    qualifier: str
    """The name or the alias that qualifies columns of the table."""
    rest: str
    """The text from FROM to the end."""

    def with_columns(self, columns: Sequence[str]) -> str:
        """The SELECT with more columns after its own."""
        # On separate lines, because the expressions may end with a comment.
        return "\n, ".join((f"SELECT {self.expressions}", *columns)) + f"\n{self.rest}"


@dataclass(frozen=True)
class SelectParts:
    """The tables and columns that a SELECT reads."""

    sources: tuple[TableName, ...]
    """Tables that it may read: a name of a WITH is one of them, too."""
    column_names: frozenset[str]
    """Names of columns in its expressions, in lower case; `*` stands for all."""
    one_table: OneTable | None
    """None if its rows are not rows of one table, for the reason in `obstacle`."""
    obstacle: str
    """Why its rows are not rows of one table, as a clause; else empty."""


def inspect_select(select: str, dialect: str) -> SelectParts:
    """Analyse a SELECT.

    Raises:
        DataError: The SELECT cannot be parsed.
    """
    try:
        tree = sqlglot.parse_one(select, read=dialect)
        tokens = sqlglot.tokenize(select, read=dialect)
    except SqlglotError as e:
        raise DataError(
            "The SELECT cannot be parsed, so the tables that it reads are unknown:"
            f" {str(e).splitlines()[0]}",
            received={"select": select},
            hint="Simplify the SELECT, and write the predictions to a new table.",
        ) from e
    # Elsewhere in the SELECT the name of a WITH may be that of a table.
    sources = {
        _table_name(table, dialect): None for table in tree.find_all(exp.Table) if table.name
    }
    obstacle = _obstacle_to_one_table(tree)
    one_table = None if obstacle else _one_table(select, tree, tokens, dialect)
    if one_table is not None and not _adds_a_column(one_table, tree, dialect):
        one_table = None
    if one_table is None and not obstacle:
        obstacle = "its FROM names no plain table"
    names = {
        "*" if isinstance(column, exp.Star) else column.name.lower()
        for expression in (tree.expressions if isinstance(tree, exp.Select) else [])
        for column in expression.find_all(exp.Column, exp.Star)
    }
    return SelectParts(tuple(sources), frozenset(names), one_table, obstacle)


def _table_name(table: exp.Table, dialect: str) -> TableName:
    """The name that the database looks up: PostgreSQL lowers names without quotes."""
    schema, name = (
        part.name.lower()
        if dialect == "postgres" and isinstance(part, exp.Identifier) and not part.quoted
        else getattr(part, "name", "")
        for part in (table.args.get("db"), table.this)
    )
    return TableName(schema=schema, name=name)


def _obstacle_to_one_table(tree: exp.Expr) -> str:
    """Why the rows of a SELECT are not rows of one table, as a clause; empty if they are."""
    if not isinstance(tree, exp.Select):
        return "it is no plain SELECT"
    clauses = {
        "with_": "it has a WITH in front",
        "joins": "it reads more than one table",
        "laterals": "it reads more than one table",
        "distinct": "it has DISTINCT",
        "group": "it has GROUP BY",
        "having": "it has HAVING",
        "qualify": "it has QUALIFY",
        "windows": "it has WINDOW",
        "pivots": "it has PIVOT",
        "sample": "it takes a sample",
        "into": "it has INTO",
    }
    for clause, reason in clauses.items():
        if tree.args.get(clause):
            return reason
    if any(expression.find(exp.Window) for expression in tree.expressions):
        return "it has a window function"
    # MAX of several arguments is no aggregate: it gives the largest value of a row.
    is_aggregated = any(
        aggregate.find_ancestor(exp.Select) is tree and not aggregate.expressions
        for expression in tree.expressions
        for aggregate in expression.find_all(exp.AggFunc)
    )
    return "it sums up many rows in one" if is_aggregated else ""


def _adds_a_column(one_table: OneTable, tree: exp.Expr, dialect: str) -> bool:
    """Whether adding a column to the text adds just that column to the parsed SELECT."""
    try:
        extended = sqlglot.parse_one(one_table.with_columns(["edl_column"]), read=dialect)
    except SqlglotError:
        return False
    if not extended.expressions or extended.expressions[-1].name != "edl_column":
        return False
    extended.expressions[-1].pop()
    return bool(extended == tree)


def _one_table(
    select: str, tree: exp.Expr, tokens: Sequence[Token], dialect: str
) -> OneTable | None:
    table = tree.args["from_"].this if tree.args.get("from_") else None
    if not isinstance(table, exp.Table) or not isinstance(table.this, exp.Identifier):
        return None
    plain = {"this", "db", "catalog", "alias", "indexed"}
    alias = table.args.get("alias")
    if any(table.args[key] for key in table.args.keys() - plain) or (alias and alias.columns):
        return None
    from_index = _index_of_from(tokens)
    if tokens[0].token_type != TokenType.SELECT or from_index is None:
        return None
    # Each part of the table's name but the first has a dot before it.
    last_index = from_index + 2 * len(table.parts) - 1
    qualifier = select[tokens[from_index + 1].start : tokens[last_index].end + 1]
    if table.alias:
        last_index += 2 if tokens[last_index + 1].token_type == TokenType.ALIAS else 1
        qualifier = select[tokens[last_index].start : tokens[last_index].end + 1]
    return OneTable(
        table=_table_name(table, dialect),
        expressions=select[tokens[0].end + 1 : tokens[from_index].start].strip(),
        qualified_expressions=_qualify_stars(select, tokens[: from_index + 1], qualifier),
        reference=select[tokens[from_index + 1].start : tokens[last_index].end + 1],
        qualifier=qualifier,
        rest=select[tokens[from_index].start :],
    )


def _qualify_stars(select: str, tokens: Sequence[Token], qualifier: str) -> str:
    """The text between the first and the last token, with each bare `*` qualified by the table."""
    text, end = "", tokens[0].end + 1
    for before, token in pairwise(tokens):
        is_item = before.token_type in (TokenType.SELECT, TokenType.ALL, TokenType.COMMA)
        if token.token_type == TokenType.STAR and is_item:
            text += f"{select[end : token.start]}{qualifier}.*"
            end = token.end + 1
    return (text + select[end : tokens[-1].start]).strip()


def _index_of_from(tokens: Sequence[Token]) -> int | None:
    """The index of the FROM of the outermost SELECT, not of IS DISTINCT FROM."""
    depth = 0
    for index, token in enumerate(tokens):
        kind = token.token_type
        depth += (kind == TokenType.L_PAREN) - (kind == TokenType.R_PAREN)
        is_comparison = tokens[index - 1].token_type == TokenType.DISTINCT
        if kind == TokenType.FROM and not depth and not is_comparison:
            return index
    return None
