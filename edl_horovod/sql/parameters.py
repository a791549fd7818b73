"""Binds parameters of statements: `:name` becomes a literal of the database's SQL."""

import datetime
import math
from collections.abc import Mapping
from decimal import Decimal
from itertools import pairwise
from numbers import Integral, Real
from typing import Any

from edl_horovod.errors import ConfigError, did_you_mean
from edl_horovod.sql.tokens import TokenKind, tokens_of

__all__ = ["bind"]


def bind(text: str, parameters: Mapping[str, Any], dialect: str) -> str:
    """Replace each `:name` in a program by the value of the parameter.

    Args:
        text: Statements with `:name` for parameters, outside quotes.
        parameters: The values by name.
        dialect: sqlglot's name of the database's SQL.

    Raises:
        ConfigError: A value has no literal in SQL, or a parameter is not used.
    """
    parts, end, unused = [], 0, dict.fromkeys(parameters)
    tokens = tokens_of(text, dialect)
    for colon, name in pairwise(tokens):
        is_name = colon.is_symbol(":") and name.kind is TokenKind.WORD and colon.end == name.start
        if not is_name or name.text not in parameters:
            continue
        literal = _literal(parameters[name.text], dialect, name.text)
        # Spaces, because -:x must not become the comment --1 for x=-1.
        parts += [text[end : colon.start], f" {literal} "]
        end = name.end
        unused.pop(name.text, None)
    if unused:
        first = next(iter(unused))
        raise ConfigError(
            f"No statement uses the parameter {first}.",
            received=f"parameters={', '.join(parameters)}",
            hint=f"Write :{first}, without quotes around it.{_suggestion(first, text)}",
        )
    return "".join([*parts, text[end:]])


def _suggestion(name: str, text: str) -> str:
    return did_you_mean(f":{name}", [word for word in text.split() if word.startswith(":")])


def _literal(value: Any, dialect: str, name: str) -> str:
    """A value as a literal that the database, or a WITH clause, understands."""

    def nested(item: Any) -> str:
        return _literal(item, dialect, name)

    match value:
        case None:
            return "NULL"
        case bool():
            return str(value).upper()
        case str():
            return _text(value, dialect, name)
        case Decimal() if value.is_finite():
            return f"{value:f}"
        case Integral():
            return str(int(value))
        case Real() if math.isfinite(value):
            return repr(float(value))
        case datetime.datetime() | datetime.date():
            return _text(str(value), dialect, name)
        case list() | tuple():
            return f"[{', '.join(map(nested, value))}]"
        case dict():
            items = (f"{nested(key)}: {nested(item)}" for key, item in value.items())
            return f"{{{', '.join(items)}}}"
    raise ConfigError(
        f"The parameter {name} cannot be written as a literal of SQL.",
        received=f"{type(value).__name__} {value!r:.60}",
        hint="Give a text, a finite number, a boolean, a date, None, or for WITH a list or a dict.",
    )


def _text(value: str, dialect: str, name: str) -> str:
    if "\0" in value:
        raise ConfigError(
            f"The parameter {name} contains a NUL character, which databases refuse in texts.",
            received=repr(value[:60]),
        )
    quoted = "'" + value.replace("'", "''") + "'"
    if "\\" not in value:
        return quoted
    if dialect == "postgres":
        # In E'...' a backslash does not depend on standard_conforming_strings.
        return "E" + quoted.replace("\\", "\\\\")
    return quoted.replace("\\", "\\\\") if dialect == "mysql" else quoted
