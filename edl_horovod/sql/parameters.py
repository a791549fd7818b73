"""Values of a Python program in statements: `:name` becomes a literal of the database's SQL."""

import datetime
import math
from collections.abc import Mapping
from decimal import Decimal
from itertools import pairwise
from numbers import Integral, Real
from typing import Any

from edl_horovod.errors import ConfigError, did_you_mean
from edl_horovod.sql.tokens import Kind, tokens_of

__all__ = ["bind"]


def bind(text: str, parameters: Mapping[str, Any], dialect: str) -> str:
    """Put the values of parameters where a program names them.

    Args:
        text: Statements with `:name` for each parameter, outside of quotes.
        parameters: The values by name.
        dialect: sqlglot's name of the database's SQL.

    Raises:
        ConfigError: No literal holds a value, or the text does not name a parameter.
    """
    parts, end, unused = [], 0, dict.fromkeys(parameters)
    tokens = tokens_of(text, dialect)
    for colon, name in pairwise(tokens):
        is_name = colon.is_symbol(":") and name.kind is Kind.WORD and colon.end == name.start
        if not is_name or name.text not in parameters:
            continue
        literal = _literal(parameters[name.text], dialect, name.text)
        # Spaces, because -:x must not become the comment --1.
        parts += [text[end : colon.start], f" {literal} "]
        end = name.end
        unused.pop(name.text, None)
    if unused:
        first = next(iter(unused))
        raise ConfigError(
            f"No statement names the parameter {first}.",
            received=f"parameters={', '.join(parameters)}",
            hint=f"Write :{first}, without quotes around it.{_near(first, text)}",
        )
    return "".join([*parts, text[end:]])


def _near(name: str, text: str) -> str:
    return did_you_mean(f":{name}", [word for word in text.split() if word.startswith(":")])


def _literal(value: Any, dialect: str, name: str) -> str:
    """A value as the database, or a WITH clause, reads it."""

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
        f"No literal of SQL holds the parameter {name}.",
        received=f"{type(value).__name__} {value!r:.60}",
        hint="Give a text, a finite number, a boolean, a date, None, or for WITH a list or a dict.",
    )


def _text(value: str, dialect: str, name: str) -> str:
    if "\0" in value:
        raise ConfigError(
            f"The parameter {name} holds a character 0, which databases refuse in texts.",
            received=repr(value[:60]),
        )
    quoted = "'" + value.replace("'", "''") + "'"
    if "\\" not in value:
        return quoted
    if dialect == "postgres":
        # In this form a backslash means the same whatever standard_conforming_strings is.
        return "E" + quoted.replace("\\", "\\\\")
    return quoted.replace("\\", "\\\\") if dialect == "mysql" else quoted
