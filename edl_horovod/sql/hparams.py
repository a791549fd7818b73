"""HPARAM_RANGE and HPARAM_CANDIDATES, as in BigQuery ML: several values of an attribute."""

from edl_horovod.sql.statements import Hparam, HparamCandidates, HparamRange
from edl_horovod.sql.tokens import Cursor, Token
from edl_horovod.sql.values import read_value

__all__ = ["HPARAM_WORDS", "read_hparam"]

HPARAM_WORDS = ("HPARAM_RANGE", "HPARAM_CANDIDATES")
_ALLOWED = (
    "Write HPARAM_RANGE(low, high), HPARAM_RANGE(low, high, 'log') or"
    " HPARAM_CANDIDATES([value, value])."
)


def read_hparam(cursor: Cursor) -> Hparam | None:
    """Read HPARAM_RANGE or HPARAM_CANDIDATES; None if neither begins at the cursor.

    Raises:
        StatementError: Its arguments are malformed.
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
        problem = "A comma and the upper bound are missing after the lower bound."
        raise cursor.problem(problem, cursor.peek(), hint=_ALLOWED)
    high = _bound(cursor)
    is_log = False
    if cursor.skip_symbol(","):
        token = cursor.peek()
        if read_value(cursor) != "log":
            problem = "Only 'log' may follow the bounds of HPARAM_RANGE."
            raise cursor.problem(problem, token, hint=_ALLOWED)
        is_log = True
    written = _finish_call(cursor, first)
    if low >= high:
        problem = f"The lower bound of {written} is not below the upper one."
        raise cursor.problem(problem, first, hint=_ALLOWED)
    if is_log and low <= 0:
        problem = f"The lower bound of {written} must be above 0 on a logarithmic scale."
        raise cursor.problem(problem, first, hint="Raise it, or leave 'log' out.")
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
        problem = "HPARAM_CANDIDATES takes a list of one value or more."
        raise cursor.problem(problem, token, hint=_ALLOWED)
    return HparamCandidates(values=tuple(values), written=_finish_call(cursor, first))


def _finish_call(cursor: Cursor, first: Token) -> str:
    """Move past the closing bracket, and return the whole call as written."""
    token = cursor.peek()
    if token is None or not cursor.skip_symbol(")"):
        problem = f") is missing after the arguments of {first.text}."
        raise cursor.problem(problem, token, hint=_ALLOWED)
    return " ".join(cursor.text[first.start : token.end].split())
