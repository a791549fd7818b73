"""Reads the parts that the added clauses share: names, WITH with its values, and COLUMN."""

import math
import re
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from edl_horovod.errors import did_you_mean
from edl_horovod.sql import statements
from edl_horovod.sql.sqlflow import UNQUOTED_ATTRIBUTES
from edl_horovod.sql.statements import Attribute, ColumnCall, ColumnClause, Literal, Name
from edl_horovod.sql.tokens import Cursor, Token, TokenKind

_RESERVED = ("WITH", "USING", "INTO")
"""Keywords that are no names without quotes. LABEL and COLUMN are: columns may be called so."""
_MODEL_NAME = re.compile(r"\w[\w-]*(\.\w[\w-]*)*")
_MAX_CHARACTERS = 100
_MAX_FUNCTION_DEPTH = 20
"""Depth of nested functions in a COLUMN clause."""
_WORDS = {"TRUE": True, "FALSE": False, "NONE": None, "NULL": None}
_VALUE_HINT = (
    "A value is a number, a 'text', True, False, None, a [list] or a {'key': value} of these."
)
_MAX_BRACKET_DEPTH = 50
"""Depth of nested brackets; no parameter of a model needs more."""
_HPARAM_WORDS = ("HPARAM_RANGE", "HPARAM_CANDIDATES")
_HPARAM_HINT = (
    "Write HPARAM_RANGE(low, high), HPARAM_RANGE(low, high, 'log') or"
    " HPARAM_CANDIDATES([value, value])."
)


def read_name(cursor: Cursor, expected: str, *, reserved: Sequence[str] = _RESERVED) -> Name:
    """Read a name with dots between its parts; quoted text is one part.

    Args:
        cursor: Moved past the name.
        expected: What is expected, for the error if there is no name.
        reserved: Keywords that are names only in quotes, because a clause may begin here.
    """
    first = cursor.peek()
    parts = [_read_part(cursor, expected, reserved)]
    while cursor.skip_symbol("."):
        parts.append(_read_part(cursor, "The part of a name after the dot", ()))
    return Name(
        parts=tuple(part.text for part in parts),
        folded=tuple(
            part.text.lower() if part.kind is TokenKind.WORD else part.text for part in parts
        ),
        position=cursor.position(first),
    )


def refuse_image(cursor: Cursor, subject: str, hint: str) -> None:
    """Refuse the address of a server or of an image, which SQLFlow allows after a name."""
    token = cursor.peek()
    if token.is_symbol("/", ":"):
        raise cursor.problem(f"{subject} is named without a server or an image.", token, hint=hint)


def read_model(cursor: Cursor) -> statements.ModelName:
    """Read the name of a trained model, with or without a version: `m`, `m@3`."""
    first = cursor.peek()
    name = str(read_name(cursor, "The name of a trained model"))
    if not _MODEL_NAME.fullmatch(name) or len(name) > _MAX_CHARACTERS:
        hint = f"Use letters, digits, _ and -, and dots between them; at most {_MAX_CHARACTERS}."
        raise cursor.problem(f"{name[:40]!r} cannot name a trained model.", first, hint=hint)
    refuse_image(cursor, "A trained model", "Models are in the folder that models=DIR names.")
    version = None
    if cursor.skip_symbol("@"):
        token = cursor.take("The version after @")
        digits = token.text if token.kind is TokenKind.NUMBER else ""
        if not digits.isdecimal() or len(digits) > 9 or int(digits) == 0:
            problem = f"{cursor.source(token)} is not a version."
            raise cursor.problem(problem, token, hint=f"Versions are 1, 2, ...: {name}@1.")
        version = int(digits)
    return statements.ModelName(name=name, version=version, position=cursor.position(first))


def read_attributes(cursor: Cursor, *, may_vary: bool = False) -> tuple[Attribute, ...]:
    """Read the attributes of a WITH clause; none if there is no such clause.

    Args:
        cursor: Moved past the clause.
        may_vary: Whether an attribute may have several values, for the trials of a training.

    Raises:
        StatementError: An attribute is malformed, or is repeated.
    """
    attributes: dict[str, Attribute] = {}
    if not cursor.skip_words("WITH"):
        return ()
    while True:
        name = read_name(cursor, "The name of an attribute", reserved=())
        cursor.require_symbol("=", f"= is missing after {name}.", hint=f"Write {name}=value.")
        if str(name) in attributes:
            hint = f"It is also set on line {attributes[str(name)].position.line}. Leave one out."
            raise name.error(f"{name} is set twice.", hint)
        hyperparameter = _read_hparam(cursor) if may_vary else None
        value = hyperparameter or _read_value(cursor, may_be_word=str(name) in UNQUOTED_ATTRIBUTES)
        attributes[str(name)] = Attribute(name=str(name), value=value, position=name.position)
        if not cursor.skip_symbol(","):
            return tuple(attributes.values())


def read_columns(cursor: Cursor) -> tuple[ColumnClause, ...]:
    """Read the COLUMN clauses at the cursor."""
    clauses: list[ColumnClause] = []
    while True:
        first = cursor.peek()
        if not cursor.skip_words("COLUMN"):
            return tuple(clauses)
        terms = [_read_term(cursor, 0)]
        while cursor.skip_symbol(","):
            terms.append(_read_term(cursor, 0))
        part = str(read_name(cursor, "A part of the model")) if cursor.skip_words("FOR") else ""
        clauses.append(ColumnClause(terms=tuple(terms), part=part, position=cursor.position(first)))


def _read_part(cursor: Cursor, expected: str, reserved: Sequence[str]) -> Token:
    is_text = cursor.peek().kind is TokenKind.TEXT
    part = cursor.take(expected) if is_text else cursor.take_name(expected, reserved=reserved)
    if not part.text:
        raise cursor.problem("A name cannot be empty.", part)
    return part


def _read_term(cursor: Cursor, depth: int) -> statements.ColumnTerm:
    first = cursor.peek()
    name = read_name(cursor, "A column, or a function of one,")
    if not cursor.skip_symbol("("):
        return name
    if depth > _MAX_FUNCTION_DEPTH:
        raise cursor.problem("The functions are nested too deeply.", first)
    arguments: list[ColumnCall | Name | Literal] = []
    while not cursor.skip_symbol(")"):
        arguments.append(_read_argument(cursor, depth))
        if not cursor.skip_symbol(",") and not cursor.peek().is_symbol(")"):
            raise cursor.problem("A comma or ) is missing after an argument.", cursor.peek())
    position = cursor.position(first)
    return ColumnCall(function=str(name), arguments=tuple(arguments), position=position)


def _read_argument(cursor: Cursor, depth: int) -> ColumnCall | Name | Literal:
    token = cursor.peek()
    if token.is_name:
        return _read_term(cursor, depth + 1)
    if token.is_symbol("["):
        return _read_list(cursor, depth, token)
    return Literal(value=_read_value(cursor), position=cursor.position(token))


def _read_list(cursor: Cursor, depth: int, opening: Token) -> ColumnCall | Literal:
    """Read a list of literals, or of columns: `CROSS([a, b], 100)`."""
    if not cursor.peek(1).is_name:
        return Literal(value=_read_value(cursor), position=cursor.position(opening))
    cursor.skip_symbol("[")
    terms: list[Any] = [_read_term(cursor, depth + 1)]
    while cursor.skip_symbol(","):
        terms.append(_read_term(cursor, depth + 1))
    cursor.require_symbol("]", "A comma or ] is missing after a column.")
    return ColumnCall(function="", arguments=tuple(terms), position=cursor.position(opening))


def _read_value(cursor: Cursor, depth: int = 0, *, may_be_word: bool = False) -> Any:
    """Read the literal at the cursor.

    Args:
        cursor: Moved past the literal.
        depth: The number of open brackets.
        may_be_word: Whether text may be written without quotes.

    Raises:
        StatementError: There is no literal.
    """
    token = cursor.take("A value")
    if depth > _MAX_BRACKET_DEPTH:
        raise cursor.problem("The brackets are nested too deeply.", token, hint=_VALUE_HINT)
    if token.kind is TokenKind.TEXT or (
        token.kind is TokenKind.QUOTED and cursor.source(token)[0] == '"'
    ):
        return token.text
    if token.kind is TokenKind.NUMBER or token.is_symbol("-", "+", "."):
        return _read_number(cursor, token)
    if token.is_symbol("["):
        return _read_items(cursor, token, "]", lambda: _read_value(cursor, depth + 1))
    if token.is_symbol("{"):
        return _read_dict(cursor, token, depth)
    if token.is_word(*_WORDS) and not _is_call(cursor):
        return _WORDS[token.text.upper()]
    if may_be_word and token.kind is TokenKind.WORD and not _is_call(cursor):
        return token.text
    _refuse_token(cursor, token)


def _refuse_token(cursor: Cursor, token: Token) -> NoReturn:
    if token.kind is TokenKind.WORD and _is_call(cursor):
        problem = f"A value cannot be a call such as {token.text}(...)."
        raise cursor.problem(problem, token, hint=_VALUE_HINT)
    if token.kind is TokenKind.WORD:
        near = did_you_mean(token.text, ("True", "False", "None"))
        hint = f"Write '{token.text}' if it is text.{near} {_VALUE_HINT}"
        raise cursor.problem(f"The word {token.text} is not a value.", token, hint=hint)
    if token.is_symbol("("):
        raise cursor.problem("A list is written in [ ].", token, hint=_VALUE_HINT)
    raise cursor.problem(f"{cursor.source(token)} is not a value.", token, hint=_VALUE_HINT)


def _is_call(cursor: Cursor) -> bool:
    return cursor.peek().is_symbol("(", ".")


def _read_number(cursor: Cursor, first: Token) -> int | float:
    token, sign = first, 1
    if token.is_symbol("-", "+"):
        sign = -1 if token.text == "-" else 1
        token = cursor.take("A number")
    start = token.start
    if token.is_symbol("."):
        token = cursor.take("A number")
    while cursor.peek().start == token.end and _continues_number(cursor.peek()):
        token = cursor.take("A number")
    written = cursor.text[start : token.end]
    try:
        number = float(written) if any(char in written for char in ".eE") else int(written)
    except ValueError as e:
        problem = f"{written[:40]} is not a number."
        raise cursor.problem(problem, first, hint=_VALUE_HINT) from e
    if isinstance(number, float) and not math.isfinite(number):
        raise cursor.problem(f"{written[:40]} is too large for a number.", first)
    return sign * number


def _continues_number(token: Token) -> bool:
    return token.kind in (TokenKind.NUMBER, TokenKind.WORD) or token.is_symbol(".")


def _read_items(cursor: Cursor, opening: Token, closing: str, read: Callable[[], Any]) -> list[Any]:
    """Read items with commas between them, and the closing bracket; a last comma may follow."""
    items: list[Any] = []
    while not cursor.skip_symbol(closing):
        items.append(read())
        if cursor.skip_symbol(closing):
            break
        problem = f"A comma or {closing} is missing after a value in {opening.text}."
        cursor.require_symbol(",", problem, hint=_VALUE_HINT)
    return items


def _read_dict(cursor: Cursor, opening: Token, depth: int) -> dict[str | int, Any]:
    items: dict[str | int, Any] = {}

    def read_item() -> None:
        start = cursor.peek()
        key = _read_value(cursor, depth + 1)
        if isinstance(key, bool) or not isinstance(key, str | int):
            raise cursor.problem("A key is text or a whole number.", start, hint=_VALUE_HINT)
        if key in items:
            raise cursor.problem(f"The key {key!r} is repeated.", start)
        cursor.require_symbol(":", "A colon is missing after a key.", hint=_VALUE_HINT)
        items[key] = _read_value(cursor, depth + 1)

    _read_items(cursor, opening, "}", read_item)
    return items


def _read_hparam(cursor: Cursor) -> statements.Hparam | None:
    """Read HPARAM_RANGE or HPARAM_CANDIDATES; None if neither begins at the cursor.

    Raises:
        StatementError: Its arguments are malformed.
    """
    first = cursor.peek()
    if not first.is_word(*_HPARAM_WORDS) or not cursor.peek(1).is_symbol("("):
        return None
    cursor.take("A call")
    cursor.skip_symbol("(")
    return (_read_range if first.is_word("HPARAM_RANGE") else _read_candidates)(cursor, first)


def _read_range(cursor: Cursor, first: Token) -> statements.HparamRange:
    low = _read_bound(cursor)
    problem = "A comma and the upper bound are missing after the lower bound."
    cursor.require_symbol(",", problem, hint=_HPARAM_HINT)
    high = _read_bound(cursor)
    is_log = False
    if cursor.skip_symbol(","):
        token = cursor.peek()
        if _read_value(cursor) != "log":
            problem = "Only 'log' may follow the bounds of HPARAM_RANGE."
            raise cursor.problem(problem, token, hint=_HPARAM_HINT)
        is_log = True
    written = _finish_call(cursor, first)
    if low >= high:
        problem = f"The lower bound of {written} is not below the upper one."
        raise cursor.problem(problem, first, hint=_HPARAM_HINT)
    if is_log and low <= 0:
        problem = f"The lower bound of {written} must be above 0 on a logarithmic scale."
        raise cursor.problem(problem, first, hint="Raise it, or leave 'log' out.")
    return statements.HparamRange(low=low, high=high, is_log=is_log, written=written)


def _read_bound(cursor: Cursor) -> int | float:
    token = cursor.peek()
    value = _read_value(cursor)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise cursor.problem("A bound of HPARAM_RANGE is a number.", token, hint=_HPARAM_HINT)
    return value


def _read_candidates(cursor: Cursor, first: Token) -> statements.HparamCandidates:
    token = cursor.peek()
    values = _read_value(cursor)
    if not isinstance(values, list) or not values:
        problem = "HPARAM_CANDIDATES takes a list of one value or more."
        raise cursor.problem(problem, token, hint=_HPARAM_HINT)
    return statements.HparamCandidates(values=tuple(values), written=_finish_call(cursor, first))


def _finish_call(cursor: Cursor, first: Token) -> str:
    """Move past the closing bracket, and return the whole call as written."""
    token = cursor.peek()
    problem = f") is missing after the arguments of {first.text}."
    cursor.require_symbol(")", problem, hint=_HPARAM_HINT)
    return " ".join(cursor.text[first.start : token.end].split())
