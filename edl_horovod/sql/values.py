"""Reads the values of WITH and COLUMN clauses: literals only, nothing is evaluated."""

import math
from collections.abc import Callable
from typing import Any, NoReturn

from edl_horovod.errors import did_you_mean
from edl_horovod.sql.tokens import Cursor, Token, TokenKind

__all__ = ["read_value"]

_WORDS = {"TRUE": True, "FALSE": False, "NONE": None, "NULL": None}
_ALLOWED = (
    "A value is a number, a 'text', True, False, None, a [list] or a {'key': value} of these."
)
_MAX_DEPTH = 50
"""Depth of nested brackets; no parameter of a model needs more."""


def read_value(cursor: Cursor, depth: int = 0, *, may_be_word: bool = False) -> Any:
    """Read the literal at the cursor.

    Args:
        cursor: Moved past the literal.
        depth: The number of open brackets.
        may_be_word: Whether text may be written without quotes.

    Raises:
        StatementError: There is no literal.
    """
    token = cursor.take("A value")
    if depth > _MAX_DEPTH:
        raise cursor.problem("The brackets are nested too deeply.", token, hint=_ALLOWED)
    if token.kind is TokenKind.TEXT or (
        token.kind is TokenKind.QUOTED and cursor.source(token)[0] == '"'
    ):
        return token.text
    if token.kind is TokenKind.NUMBER or token.is_symbol("-", "+", "."):
        return _number(cursor, token)
    if token.is_symbol("["):
        return _items(cursor, token, "]", lambda: read_value(cursor, depth + 1))
    if token.is_symbol("{"):
        return _dict(cursor, token, depth)
    if token.is_word(*_WORDS) and not _is_call(cursor):
        return _WORDS[token.text.upper()]
    if may_be_word and token.kind is TokenKind.WORD and not _is_call(cursor):
        return token.text
    _refuse(cursor, token)


def _refuse(cursor: Cursor, token: Token) -> NoReturn:
    if token.kind is TokenKind.WORD and _is_call(cursor):
        problem = f"A value cannot be a call such as {token.text}(...)."
        raise cursor.problem(problem, token, hint=_ALLOWED)
    if token.kind is TokenKind.WORD:
        near = did_you_mean(token.text, ("True", "False", "None"))
        hint = f"Write '{token.text}' if it is text.{near} {_ALLOWED}"
        raise cursor.problem(f"The word {token.text} is not a value.", token, hint=hint)
    if token.is_symbol("("):
        raise cursor.problem("A list is written in [ ].", token, hint=_ALLOWED)
    raise cursor.problem(f"{cursor.source(token)} is not a value.", token, hint=_ALLOWED)


def _is_call(cursor: Cursor) -> bool:
    following = cursor.peek()
    return following is not None and following.is_symbol("(", ".")


def _number(cursor: Cursor, first: Token) -> int | float:
    token, sign = first, 1
    if token.is_symbol("-", "+"):
        sign = -1 if token.text == "-" else 1
        token = cursor.take("A number")
    start = token.start
    if token.is_symbol("."):
        token = cursor.take("A number")
    following = cursor.peek()
    while following is not None and following.start == token.end and _continues(following):
        token = cursor.take("A number")
        following = cursor.peek()
    written = cursor.text[start : token.end]
    try:
        number = float(written) if any(char in written for char in ".eE") else int(written)
    except ValueError as e:
        problem = f"{written[:40]} is not a number."
        raise cursor.problem(problem, first, hint=_ALLOWED) from e
    if isinstance(number, float) and not math.isfinite(number):
        raise cursor.problem(f"{written[:40]} is too large for a number.", first)
    return sign * number


def _continues(token: Token) -> bool:
    return token.kind in (TokenKind.NUMBER, TokenKind.WORD) or token.is_symbol(".")


def _items(cursor: Cursor, opening: Token, closing: str, read: Callable[[], Any]) -> list[Any]:
    """Read items with commas between them, and the closing bracket; a last comma may follow."""
    items: list[Any] = []
    while not cursor.skip_symbol(closing):
        items.append(read())
        if cursor.skip_symbol(closing):
            break
        if not cursor.skip_symbol(","):
            following = cursor.peek()
            problem = f"A comma or {closing} is missing after a value in {opening.text}."
            raise cursor.problem(problem, following or opening, hint=_ALLOWED)
    return items


def _dict(cursor: Cursor, opening: Token, depth: int) -> dict[str | int, Any]:
    items: dict[str | int, Any] = {}

    def read_item() -> None:
        start = cursor.peek() or opening
        key = read_value(cursor, depth + 1)
        if isinstance(key, bool) or not isinstance(key, str | int):
            raise cursor.problem("A key is text or a whole number.", start, hint=_ALLOWED)
        if key in items:
            raise cursor.problem(f"The key {key!r} is repeated.", start)
        if not cursor.skip_symbol(":"):
            raise cursor.problem(
                "A colon is missing after a key.", cursor.peek() or start, hint=_ALLOWED
            )
        items[key] = read_value(cursor, depth + 1)

    _items(cursor, opening, "}", read_item)
    return items
