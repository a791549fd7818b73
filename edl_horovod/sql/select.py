"""Which tables a SELECT reads, and whether its rows are rows of one table.

The text itself stays as it is: what is added to it goes in front of its FROM.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.tokenizer_core import Token, TokenType

from edl_horovod.errors import DataError

__all__ = ["OneTable", "SelectParts", "TableName", "inspect_select"]


@dataclass(frozen=True, kw_only=True)
class TableName:
    """A table as a statement names it, without quotes."""

    schema: str
    """Empty if the statement names none."""
    name: str

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}" if self.schema else self.name


@dataclass(frozen=True, kw_only=True)
class OneTable:
    """The parts of a SELECT whose rows are rows of one table, as texts."""

    table: TableName
    expressions: str
    """What stands between SELECT and FROM."""
    own_expressions: str
    """The same beside a second table: `*` gives the columns of this one alone."""
    reference: str
    """What stands behind FROM: the table, with its alias."""
    qualifier: str
    """What a column of the table has in front of its dot."""
    rest: str
    """From FROM to the end."""

    def with_columns(self, columns: Sequence[str]) -> str:
        """The SELECT with more columns behind its own."""
        # On lines of their own: a comment may end the expressions.
        return "\n, ".join((f"SELECT {self.expressions}", *columns)) + f"\n{self.rest}"


@dataclass(frozen=True, kw_only=True)
class SelectParts:
    """What a SELECT reads."""

    sources: tuple[TableName, ...]
    column_names: frozenset[str]
    """Names of columns in the expressions that it gives, in lower case; `*` for all."""
    one_table: OneTable | None
    """None if its rows are not rows of one table."""
    why_not: str
    """Why not, as a phrase; empty if they are."""


def inspect_select(select: str, dialect: str) -> SelectParts:
    """Look at a SELECT.

    Raises:
        DataError: It is no SELECT that can be understood.
    """
    try:
        tree = sqlglot.parse_one(select, read=dialect)
        tokens = sqlglot.tokenize(select, read=dialect)
    except SqlglotError as e:
        raise DataError(
            "The SELECT cannot be understood, so nobody can say which tables it reads:"
            f" {str(e).splitlines()[0]}",
            received={"select": select},
            hint="Write predictions to a new table by a plainer SELECT.",
        ) from e
    own = {each.alias_or_name.lower() for each in tree.find_all(exp.CTE)}
    sources = {
        _name_of(table, dialect): None
        for table in tree.find_all(exp.Table)
        if table.name and (table.db or table.name.lower() not in own)
    }
    why_not = _why_not_one_table(tree)
    one_table = None if why_not else _one_table(select, tree, tokens, dialect)
    if one_table is not None and not _adds_a_column(one_table, tree, dialect):
        one_table = None
    if one_table is None and not why_not:
        why_not = "its FROM names no plain table"
    names = {
        "*" if isinstance(found, exp.Star) else found.name.lower()
        for each in (tree.expressions if isinstance(tree, exp.Select) else [])
        for found in each.find_all(exp.Column, exp.Star)
    }
    return SelectParts(
        sources=tuple(sources),
        column_names=frozenset(names),
        one_table=one_table,
        why_not=why_not,
    )


def _name_of(table: exp.Table, dialect: str) -> TableName:
    """A table as the database finds it: PostgreSQL reads names without quotes in lower case."""
    schema, name = (
        part.name.lower()
        if dialect == "postgres" and isinstance(part, exp.Identifier) and not part.quoted
        else getattr(part, "name", "")
        for part in (table.args.get("db"), table.this)
    )
    return TableName(schema=schema, name=name)


def _why_not_one_table(tree: exp.Expr) -> str:
    """Why the rows of a SELECT are not rows of one table; empty if they are."""
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
    for clause, why in clauses.items():
        if tree.args.get(clause):
            return why
    if any(each.find(exp.Window) for each in tree.expressions):
        return "it has a window function"
    sums = (found for each in tree.expressions for found in each.find_all(exp.AggFunc))
    # The largest of several values of one row is written as max, too.
    if any(found.find_ancestor(exp.Select) is tree and not found.expressions for found in sums):
        return "it sums up many rows in one"
    return ""


def _adds_a_column(one_table: OneTable, tree: exp.Expr, dialect: str) -> bool:
    """Whether the text with one more column is the same SELECT with one more column."""
    try:
        found = sqlglot.parse_one(one_table.with_columns(["edl_column"]), read=dialect)
    except SqlglotError:
        return False
    if not found.expressions or found.expressions[-1].name != "edl_column":
        return False
    found.expressions[-1].pop()
    return bool(found == tree)


def _one_table(
    select: str, tree: exp.Expr, tokens: Sequence[Token], dialect: str
) -> OneTable | None:
    found = tree.args["from_"].this if tree.args.get("from_") else None
    if not isinstance(found, exp.Table) or not isinstance(found.this, exp.Identifier):
        return None
    plain = {"this", "db", "catalog", "alias", "indexed"}
    alias = found.args.get("alias")
    if any(found.args[key] for key in found.args.keys() - plain) or (alias and alias.columns):
        return None
    place = _place_of_from(tokens)
    if tokens[0].token_type != TokenType.SELECT or place is None:
        return None
    last = place + 2 * len(found.parts) - 1  # Names with dots between.
    qualifier = select[tokens[place + 1].start : tokens[last].end + 1]
    if found.alias:
        last += 2 if tokens[last + 1].token_type == TokenType.ALIAS else 1
        qualifier = select[tokens[last].start : tokens[last].end + 1]
    return OneTable(
        table=_name_of(found, dialect),
        expressions=select[tokens[0].end + 1 : tokens[place].start].strip(),
        own_expressions=_qualify_stars(select, tokens[: place + 1], qualifier),
        reference=select[tokens[place + 1].start : tokens[last].end + 1],
        qualifier=qualifier,
        rest=select[tokens[place].start :],
    )


def _qualify_stars(select: str, tokens: Sequence[Token], qualifier: str) -> str:
    """What stands between the first and the last token, with the table in front of a bare `*`."""
    text, end = "", tokens[0].end + 1
    for before, token in pairwise(tokens):
        is_item = before.token_type in (TokenType.SELECT, TokenType.ALL, TokenType.COMMA)
        if token.token_type == TokenType.STAR and is_item:
            text += f"{select[end : token.start]}{qualifier}.*"
            end = token.end + 1
    return (text + select[end : tokens[-1].start]).strip()


def _place_of_from(tokens: Sequence[Token]) -> int | None:
    """The token FROM of the outermost SELECT; that of IS DISTINCT FROM is another one."""
    depth = 0
    for place, token in enumerate(tokens):
        if token.token_type == TokenType.L_PAREN:
            depth += 1
        elif token.token_type == TokenType.R_PAREN:
            depth -= 1
        elif (
            token.token_type == TokenType.FROM
            and not depth
            and tokens[place - 1].token_type != TokenType.DISTINCT
        ):
            return place
    return None
