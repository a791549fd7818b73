"""A program's statements, and where in a SELECT our clauses begin."""

from collections.abc import Iterator, Sequence

from edl_horovod.sql.problems import SourcePosition, StatementError
from edl_horovod.sql.tokens import Token

__all__ = ["VERBS", "find_verb", "split"]

VERBS = ("TRAIN", "PREDICT", "EVALUATE", "EXPLAIN", "RUN", "MAXIMIZE", "MINIMIZE")
"""What follows a SELECT, with or without TO before it."""
_BEGINS_SELECT = ("SELECT", "WITH", "FROM", "VALUES", "TABLE")
_OPENS, _CLOSES = ("(", "[", "{"), (")", "]", "}")
_NEVER_BEFORE = (
    "SELECT",
    "DISTINCT",
    "ALL",
    "FROM",
    "JOIN",
    "AS",
    "WHERE",
    "AND",
    "OR",
    "NOT",
    "ON",
    "BY",
    "HAVING",
    "IN",
    "LIKE",
    "BETWEEN",
    "IS",
    "LIMIT",
    "OFFSET",
    "CASE",
    "WHEN",
    "THEN",
    "ELSE",
    "UNION",
    "EXCEPT",
    "INTERSECT",
)
"""Keywords behind which a column or a table stands, so that TRAIN is one."""
_NEVER_A_MODEL = (
    *_NEVER_BEFORE,
    "LEFT",
    "RIGHT",
    "INNER",
    "CROSS",
    "FULL",
    "NATURAL",
    "OUTER",
    "GROUP",
    "ORDER",
    "WINDOW",
    "FETCH",
    "FOR",
    "SET",
    "ASC",
    "DESC",
    "END",
    "TO",
    "WITH",
    "COLUMN",
    "LABEL",
    "USING",
    "INTO",
)
"""Keywords that may follow a column or a table called TRAIN."""
_ROUTINES = ("TRIGGER", "PROCEDURE", "FUNCTION", "EVENT")


def split(text: str, tokens: Sequence[Token]) -> Iterator[Sequence[Token]]:
    """The tokens of each statement, without the semicolons between them.

    Raises:
        StatementError: A bracket is not closed, or was not opened.
    """
    statement: list[Token] = []
    opened: list[Token] = []
    blocks = 0
    for token in tokens:
        _check_brackets(text, token, opened)
        if token.is_symbol(";") and not opened and not blocks:
            if statement:
                yield statement
            statement = []
            continue
        statement.append(token)
        # The body of a routine has statements of its own.
        if statement[0].is_word("CREATE") and any(it.is_word(*_ROUTINES) for it in statement[:6]):
            blocks += token.is_word("BEGIN", "CASE") - token.is_word("END")
            blocks = max(0, blocks)
    if opened:
        hint = f"Put {_CLOSES[_OPENS.index(opened[-1].text)]} where it ends."
        raise StatementError(
            f"The {opened[-1].text} is not closed.", SourcePosition(text, opened[-1].start), hint=hint
        )
    if statement:
        yield statement


def _check_brackets(text: str, token: Token, opened: list[Token]) -> None:
    if token.is_symbol(*_OPENS):
        opened.append(token)
    elif token.is_symbol(*_CLOSES):
        wanted = _OPENS[_CLOSES.index(token.text)]
        if not opened or opened.pop().text != wanted:
            what = f"There is no {wanted} that this {token.text} closes."
            raise StatementError(what, SourcePosition(text, token.start))


def find_verb(tokens: Sequence[Token]) -> int | None:
    """Which token begins our clauses, as TRAIN or TO; None in a statement of standard SQL.

    A column, a table or an alias may be called TRAIN, too: it counts as ours where the name of a
    model follows and none of SQL's own words.
    """
    if not tokens[0].is_word(*_BEGINS_SELECT) and not tokens[0].is_symbol("("):
        return None
    level = 0
    for at, token in enumerate(tokens):
        level += token.is_symbol(*_OPENS) - token.is_symbol(*_CLOSES)
        if at == 0 or level:
            continue
        following = tokens[at + 1 : at + 2]
        if token.is_word("TO") and following and following[0].is_word(*VERBS):
            return at
        if token.is_word(*VERBS) and _is_verb(tokens, at):
            return at
    return None


def _is_verb(tokens: Sequence[Token], at: int) -> bool:
    before = tokens[at - 1]
    if before.is_word(*_NEVER_BEFORE) or before.is_symbol(",", ".", "=", "<", ">", "+", "-", "/"):
        return False
    following = tokens[at + 1 : at + 4]
    if not following:
        return False
    if following[0].is_word("WITH"):
        return len(following) == 3 and following[2].is_symbol("=", ".")
    if following[0].is_word("USING"):
        return len(following) > 1 and following[1].is_name
    if following[0].is_word("COLUMN", "LABEL"):
        return True
    return following[0].is_name and not following[0].is_word(*_NEVER_A_MODEL)
