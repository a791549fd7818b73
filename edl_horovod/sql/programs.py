"""Splits a program into statements, and finds where the added clauses of a SELECT begin."""

from collections.abc import Iterator, Sequence

from edl_horovod.sql.problems import SourcePosition, StatementError
from edl_horovod.sql.tokens import Token

__all__ = ["VERBS", "find_verb", "split"]

VERBS = ("TRAIN", "PREDICT", "EVALUATE", "EXPLAIN", "RUN", "MAXIMIZE", "MINIMIZE")
"""Keywords that begin the added clauses after a SELECT, with or without TO before them."""
_FIRST_WORDS_OF_SELECT = ("SELECT", "WITH", "FROM", "VALUES", "TABLE")
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
"""Keywords that a column or a table follows, so that TRAIN after them is a name."""
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
"""Keywords that may follow a column or a table called TRAIN, and so do not name a model."""
_OBJECTS_WITH_BODY = ("TRIGGER", "PROCEDURE", "FUNCTION", "EVENT")


def split(text: str, tokens: Sequence[Token]) -> Iterator[Sequence[Token]]:
    """The tokens of each statement, without the semicolons between them.

    Raises:
        StatementError: A bracket has no counterpart.
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
        # The body of a trigger or a function contains statements and semicolons.
        if statement[0].is_word("CREATE") and any(
            start.is_word(*_OBJECTS_WITH_BODY) for start in statement[:6]
        ):
            blocks += token.is_word("BEGIN", "CASE") - token.is_word("END")
            blocks = max(0, blocks)
    if opened:
        hint = f"Write {_CLOSES[_OPENS.index(opened[-1].text)]} where it ends."
        raise StatementError(
            f"The {opened[-1].text} is not closed.",
            SourcePosition(text, opened[-1].start),
            hint=hint,
        )
    if statement:
        yield statement


def _check_brackets(text: str, token: Token, opened: list[Token]) -> None:
    if token.is_symbol(*_OPENS):
        opened.append(token)
    elif token.is_symbol(*_CLOSES):
        opening = _OPENS[_CLOSES.index(token.text)]
        if not opened or opened.pop().text != opening:
            problem = f"The {token.text} has no matching {opening} before it."
            raise StatementError(problem, SourcePosition(text, token.start))


def find_verb(tokens: Sequence[Token]) -> int | None:
    """The index of the token that begins the added clauses, TO or a verb; None in standard SQL.

    A column, a table or an alias may be called TRAIN, too: it is a verb only if the name of a model
    follows, or a clause that follows a verb, but no keyword of SQL.
    """
    if not tokens[0].is_word(*_FIRST_WORDS_OF_SELECT) and not tokens[0].is_symbol("("):
        return None
    level = 0
    for index, token in enumerate(tokens):
        level += token.is_symbol(*_OPENS) - token.is_symbol(*_CLOSES)
        if index == 0 or level:
            continue
        following = tokens[index + 1 : index + 2]
        if token.is_word("TO") and following and following[0].is_word(*VERBS):
            return index
        if token.is_word(*VERBS) and _is_verb(tokens, index):
            return index
    return None


def _is_verb(tokens: Sequence[Token], index: int) -> bool:
    before = tokens[index - 1]
    if before.is_word(*_NEVER_BEFORE) or before.is_symbol(",", ".", "=", "<", ">", "+", "-", "/"):
        return False
    following = tokens[index + 1 : index + 4]
    if not following:
        return False
    if following[0].is_word("WITH"):
        return len(following) == 3 and following[2].is_symbol("=", ".")
    if following[0].is_word("USING"):
        return len(following) > 1 and following[1].is_name
    if following[0].is_word("COLUMN", "LABEL"):
        return True
    return following[0].is_name and not following[0].is_word(*_NEVER_A_MODEL)
