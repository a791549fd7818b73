"""Model parameters as one string: `hidden_units=[10, 100], learning_rate=0.01`, read and written.

The string is the inside of a Python call, as SQL and the reference documents write it. It is
parsed, never evaluated: only literals can be written.
"""

import ast
import keyword
import math
import unicodedata
from collections.abc import Iterator, Mapping
from typing import Any

from edl_horovod.errors import ConfigError

_ALLOWED = (
    "Allowed: name=value, separated by commas, where a value is a number, a 'text', True, False, "
    "None, a [list] or a {'key': value} of these."
)
_CALL = "params("


class _LiteralError(Exception):
    """Something other than a literal, with its position in the parsed text."""

    def __init__(self, description: str, node: ast.AST) -> None:
        super().__init__(description)
        self.line = getattr(node, "lineno", 1)
        self.column = getattr(node, "col_offset", 0)


def parse(text: str) -> dict[str, Any]:
    """The parameters that a string names.

    Raises:
        ConfigError: The text is not names with literal values, or has a name twice.
    """
    parsed: dict[str, Any] = {}
    try:
        for name, node in _keywords(text):
            if name in parsed:
                raise _LiteralError(f"{name} comes a second time", node)
            parsed[name] = _value(node)
    except _LiteralError as e:
        position = _position(text, e.line, e.column, offset=len(_CALL))
        raise ConfigError(
            f"params cannot be read at {position}: {e}.",
            received=f"params={_short(text)}",
            hint=_ALLOWED,
        ) from e
    return parsed


def literal(text: str) -> Any:
    """The value of one Python literal.

    Raises:
        ConfigError: It is not a literal.
    """
    try:
        return _value(_tree(text).body)
    except _LiteralError as e:
        position = _position(text, e.line, e.column, offset=0)
        raise ConfigError(
            f"The value cannot be read at {position}: {e}.", received=_short(text), hint=_ALLOWED
        ) from e


def format(params: dict[str, Any]) -> str:
    """The string that `parse` turns back into the same parameters.

    Raises:
        ConfigError: A name or a value cannot be written so.
    """
    check(params)
    return ", ".join(f"{name}={value!r}" for name, value in params.items())


def put(params: dict[str, Any], key: str, value: Any, *, received: str) -> None:
    """Put a parameter, or all of them for the key `params`, into the parameters."""
    _, *path = key.split(".")
    if not path:
        if not isinstance(value, Mapping):
            raise ConfigError(
                "params must be a dict of parameters.",
                received=received,
                hint="Write params={'name': value}.",
            )
        params.update(value)
        return
    target = params
    for name in path[:-1]:
        target = target.setdefault(name, {})
        if not isinstance(target, dict):
            raise ConfigError(f"params.{name} is not a dict, so it has no keys.", received=received)
    target[path[-1]] = value


def check(params: dict[str, Any]) -> None:
    """Refuse names that cannot be keyword arguments in Python, and values that are not literals.

    Raises:
        ConfigError: A name or a value is wrong; the message names it.
    """
    for name, value in params.items():
        is_name = isinstance(name, str) and name.isidentifier() and not keyword.iskeyword(name)
        if not is_name or unicodedata.normalize("NFKC", name) != name:
            raise ConfigError(
                f"params: {name!r} cannot name a parameter.",
                received={repr(name): value},
                hint="Use letters, digits and underscores, as for a Python argument.",
            )
        for value_part in _not_literals(value):
            raise ConfigError(
                f"params.{name} holds a {type(value_part).__name__} that is not a Python literal.",
                received={f"params.{name}": value},
                hint=(
                    "Use finite numbers, text, True, False, None, lists and dicts (keys: text or"
                    " int) of these."
                ),
            )


def _keywords(text: str) -> list[tuple[str, ast.expr]]:
    body = _tree(f"{_CALL}{text}\n)").body
    if not isinstance(body, ast.Call) or not isinstance(body.func, ast.Name):
        raise _LiteralError("this is not name=value", body)
    if body.args:
        raise _LiteralError("a value without a name", body.args[0])
    keywords = []
    for word in body.keywords:
        if word.arg is None:
            raise _LiteralError("** is not a literal", word)
        keywords.append((word.arg, word.value))
    return keywords


def _tree(source: str) -> ast.Expression:
    try:
        return ast.parse(source, mode="eval")
    except SyntaxError as e:
        before = (e.text or "")[: max((e.offset or 1) - 1, 0)]
        place = ast.Pass(lineno=e.lineno or 1, col_offset=len(before.encode()))
        raise _LiteralError(e.msg, place) from e
    except (RecursionError, MemoryError) as e:
        raise _LiteralError("too deeply nested", ast.Pass()) from e
    except ValueError as e:
        raise _LiteralError(str(e), ast.Pass()) from e


def _value(node: ast.expr) -> Any:
    try:
        return _value_of(node)
    except RecursionError as e:
        raise _LiteralError("brackets are nested too deeply", node) from e


def _value_of(node: ast.expr) -> Any:
    match node:
        case ast.Constant(value=bool() | int() | str() | None as value):
            return value
        case ast.Constant(value=float() as number):
            if math.isinf(number):
                raise _LiteralError("a number too large for a float", node)
            return number
        case ast.UnaryOp(op=ast.USub() | ast.UAdd() as sign, operand=operand):
            number = _value_of(operand)
            if isinstance(number, bool) or not isinstance(number, int | float):
                raise _LiteralError("a sign before something that is not a number", node)
            return -number if isinstance(sign, ast.USub) else number
        case ast.List(elts=items):
            return [_value_of(item) for item in items]
        case ast.Dict():
            return _dict(node)
        case ast.Tuple():
            raise _LiteralError("a tuple; write a list in [ ]", node)
        case ast.Name(id=name):
            raise _LiteralError(f"the name {name}; quote it if it is text", node)
    raise _LiteralError("an expression that is not a literal", node)


def _dict(node: ast.Dict) -> dict[str | int, Any]:
    items: dict[str | int, Any] = {}
    for key_node, value_node in zip(node.keys, node.values, strict=True):
        if key_node is None:
            raise _LiteralError("** is not a literal", value_node)
        key = _value_of(key_node)
        if isinstance(key, bool) or not isinstance(key, str | int):
            raise _LiteralError("a dict key that is neither text nor an int", key_node)
        if key in items:
            raise _LiteralError(f"the dict key {key!r} comes a second time", key_node)
        items[key] = _value_of(value_node)
    return items


def _not_literals(value: Any) -> Iterator[Any]:
    """The parts of a value that `parse` would not give back equal in value and type."""
    if value is None or type(value) in (bool, int, str):
        return
    if type(value) is float and math.isfinite(value):
        return
    if type(value) is list:
        for item in value:
            yield from _not_literals(item)
    elif type(value) is dict:
        for key, item in value.items():
            if type(key) not in (str, int):
                yield key
            yield from _not_literals(item)
    else:
        yield value


def _short(text: str) -> str:
    return repr(text if len(text) <= 200 else text[:200] + "...")


def _position(text: str, line: int, column: int, *, offset: int) -> str:
    """Describe a position in the user's text: the character and the text that begins there.

    Args:
        text: The user's text.
        line: The line in the parsed text, counted from 1.
        column: The column in bytes of UTF-8, as `ast` counts.
        offset: The number of bytes that precede the user's text in the parsed text.
    """
    lines = text.split("\n")
    if line > len(lines):
        return "its end"
    line_bytes = lines[line - 1].encode(errors="replace")
    column = max(column - (offset if line == 1 else 0), 0)
    rest = line_bytes[column:].decode(errors="replace")
    if not rest:
        return "its end"
    position = f"character {len(line_bytes[:column].decode(errors='replace')) + 1} ({rest[:20]!r})"
    return position if len(lines) == 1 else f"line {line}, {position}"
