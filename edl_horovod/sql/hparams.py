"""HPARAM_RANGE and HPARAM_CANDIDATES, which BigQuery ML has too: several values of an attribute."""

from edl_horovod.sql.cursor import Cursor
from edl_horovod.sql.statements import Hparam, HparamCandidates, HparamRange
from edl_horovod.sql.tokens import Token
from edl_horovod.sql.values import read_value

__all__ = ["HPARAM_WORDS", "read_hparam"]

HPARAM_WORDS = ("HPARAM_RANGE", "HPARAM_CANDIDATES")
_ALLOWED = (
    "Write HPARAM_RANGE(low, high), HPARAM_RANGE(low, high, 'log') or"
    " HPARAM_CANDIDATES([value, value])."
)


def read_hparam(cursor: Cursor) -> Hparam | None:
    """The several values that stand at the cursor, which is moved behind them; None for others.

    Raises:
        StatementError: They are malformed.
    """
    first, following = cursor.peek(), cursor.peek(1)
    if first is None or following is None:
        return None
    if not first.is_word(*HPARAM_WORDS) or not following.is_symbol("("):
        return None
    cursor.skip_words(first.text.upper())
    cursor.skip_symbol("(")
    return _range(cursor, first) if first.is_word("HPARAM_RANGE") else _candidates(cursor, first)


def _range(cursor: Cursor, first: Token) -> HparamRange:
    low = _bound(cursor)
    if not cursor.skip_symbol(","):
        what = "After the lower bound come a comma and the upper bound."
        raise cursor.problem(what, cursor.peek(), hint=_ALLOWED)
    high = _bound(cursor)
    is_log = False
    if cursor.skip_symbol(","):
        token = cursor.peek()
        if read_value(cursor) != "log":
            what = "Behind the bounds of HPARAM_RANGE stands 'log', or nothing."
            raise cursor.problem(what, token, hint=_ALLOWED)
        is_log = True
    written = _closed(cursor, first)
    if low >= high:
        what = f"The lower bound of {written} is not below the upper one."
        raise cursor.problem(what, first, hint=_ALLOWED)
    if is_log and low <= 0:
        what = f"The lower bound of {written} must be above 0 on a logarithmic scale."
        raise cursor.problem(what, first, hint="Raise it, or leave 'log' out.")
    return HparamRange(low=low, high=high, is_log=is_log, written=written)


def _bound(cursor: Cursor) -> int | float:
    token = cursor.peek()
    value = read_value(cursor)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise cursor.problem("A bound of HPARAM_RANGE is a number.", token, hint=_ALLOWED)
    return value


def _candidates(cursor: Cursor, first: Token) -> HparamCandidates:
    token = cursor.peek()
    values = read_value(cursor)
    if not isinstance(values, list) or not values:
        what = "HPARAM_CANDIDATES takes a list of one value or more."
        raise cursor.problem(what, token, hint=_ALLOWED)
    return HparamCandidates(values=tuple(values), written=_closed(cursor, first))


def _closed(cursor: Cursor, first: Token) -> str:
    """The whole call as it was written; the cursor is moved behind it."""
    token = cursor.peek()
    if token is None or not cursor.skip_symbol(")"):
        what = f"Behind the arguments of {first.text} comes )."
        raise cursor.problem(what, token, hint=_ALLOWED)
    return " ".join(cursor.text[first.start : token.end].split())
