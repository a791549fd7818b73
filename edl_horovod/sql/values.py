"""The values of WITH and COLUMN clauses: literals alone, read and never evaluated."""

import math
from collections.abc import Callable
from typing import Any, NoReturn

from edl_horovod.errors import did_you_mean
from edl_horovod.sql.cursor import Cursor
from edl_horovod.sql.tokens import Kind, Token

__all__ = ["read_value"]

_WORDS = {"TRUE": True, "FALSE": False, "NONE": None, "NULL": None}
_ALLOWED = (
    "A value is a number, a 'text', True, False, None, a [list] or a {'key': value} of these."
)
_MOST_LEVELS = 50
"""Brackets within brackets: more are no model's parameter."""


def read_value(cursor: Cursor, level: int = 0, *, may_be_word: bool = False) -> Any:
    """The literal that begins at the cursor, which is moved behind it.

    Args:
        cursor: Moved behind the value.
        level: How many brackets are open.
        may_be_word: Whether a text may stand without quotes.

    Raises:
        StatementError: No literal stands there.
    """
    token = cursor.take("A value")
    if level > _MOST_LEVELS:
        raise cursor.problem("The brackets are nested too deeply.", token, hint=_ALLOWED)
    if token.kind is Kind.TEXT or (token.kind is Kind.QUOTED and cursor.source(token)[0] == '"'):
        return token.text
    if token.kind is Kind.NUMBER or token.is_symbol("-", "+", "."):
        return _number(cursor, token)
    if token.is_symbol("["):
        return _items(cursor, token, "]", lambda: read_value(cursor, level + 1))
    if token.is_symbol("{"):
        return _dict(cursor, token, level)
    if token.is_word(*_WORDS) and not _is_call(cursor):
        return _WORDS[token.text.upper()]
    if may_be_word and token.kind is Kind.WORD and not _is_call(cursor):
        return token.text
    _refuse(cursor, token)


def _refuse(cursor: Cursor, token: Token) -> NoReturn:
    if token.kind is Kind.WORD and _is_call(cursor):
        what = f"A value cannot be a call, as {token.text}(...) is."
        raise cursor.problem(what, token, hint=_ALLOWED)
    if token.kind is Kind.WORD:
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
        what = f"{written[:40]} is not a number."
        raise cursor.problem(what, first, hint=_ALLOWED) from e
    if isinstance(number, float) and not math.isfinite(number):
        raise cursor.problem(f"{written[:40]} is too large for a number.", first)
    return sign * number


def _continues(token: Token) -> bool:
    return token.kind in (Kind.NUMBER, Kind.WORD) or token.is_symbol(".")


def _items(cursor: Cursor, opening: Token, closing: str, read: Callable[[], Any]) -> list[Any]:
    """What stands between two brackets, with commas between; a last comma may follow."""
    items: list[Any] = []
    while not cursor.skip_symbol(closing):
        items.append(read())
        if cursor.skip_symbol(closing):
            break
        if not cursor.skip_symbol(","):
            following = cursor.peek()
            what = f"After {opening.text} and a value comes a comma or {closing}."
            raise cursor.problem(what, following or opening, hint=_ALLOWED)
    return items


def _dict(cursor: Cursor, opening: Token, level: int) -> dict[str | int, Any]:
    found: dict[str | int, Any] = {}

    def read_item() -> None:
        at = cursor.peek() or opening
        key = read_value(cursor, level + 1)
        if isinstance(key, bool) or not isinstance(key, str | int):
            raise cursor.problem("A key is text or a whole number.", at, hint=_ALLOWED)
        if key in found:
            raise cursor.problem(f"The key {key!r} comes a second time.", at)
        if not cursor.skip_symbol(":"):
            raise cursor.problem("After a key comes a colon.", cursor.peek() or at, hint=_ALLOWED)
        found[key] = read_value(cursor, level + 1)

    _items(cursor, opening, "}", read_item)
    return found
