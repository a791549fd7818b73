"""Reads the parts that the added clauses share: names, WITH and COLUMN."""

import re
from collections.abc import Sequence
from typing import Any

from edl_horovod.sql.hparams import read_hparam
from edl_horovod.sql.problems import StatementError
from edl_horovod.sql.spellings import UNQUOTED_ATTRIBUTES
from edl_horovod.sql.statements import (
    Attribute,
    ColumnCall,
    ColumnClause,
    ColumnTerm,
    Literal,
    ModelName,
    Name,
)
from edl_horovod.sql.tokens import Cursor, Token, TokenKind
from edl_horovod.sql.values import read_value

__all__ = ["read_attributes", "read_columns", "read_model", "read_name", "refuse_image"]

_RESERVED = ("WITH", "USING", "INTO")
"""Keywords that are no names without quotes. LABEL and COLUMN are: columns may be called so."""
_MODEL_NAME = re.compile(r"\w[\w-]*(\.\w[\w-]*)*")
_MAX_CHARACTERS = 100
_MAX_DEPTH = 20
"""Depth of nested functions in a COLUMN clause."""


def read_name(cursor: Cursor, expected: str, *, reserved: Sequence[str] = _RESERVED) -> Name:
    """Read a name with dots between its parts; quoted text is one part.

    Args:
        cursor: Moved past the name.
        expected: What is expected, for the error if there is no name.
        reserved: Keywords that are names only in quotes, because a clause may begin here.
    """
    first = cursor.peek()
    parts = [_part(cursor, expected, reserved)]
    while cursor.skip_symbol("."):
        parts.append(_part(cursor, "The part of a name after the dot", ()))
    return Name(
        parts=tuple(part.text for part in parts),
        folded=tuple(
            part.text.lower() if part.kind is TokenKind.WORD else part.text for part in parts
        ),
        position=cursor.position(first),
    )


def _part(cursor: Cursor, expected: str, reserved: Sequence[str]) -> Token:
    token = cursor.peek()
    is_text = token is not None and token.kind is TokenKind.TEXT
    part = cursor.take(expected) if is_text else cursor.take_name(expected, reserved=reserved)
    if not part.text:
        raise cursor.problem("A name cannot be empty.", part)
    return part


def refuse_image(cursor: Cursor, subject: str, hint: str) -> None:
    """Refuse the address of a server or of an image, which SQLFlow allows after a name."""
    token = cursor.peek()
    if token is not None and token.is_symbol("/", ":"):
        raise cursor.problem(f"{subject} is named without a server or an image.", token, hint=hint)


def read_model(cursor: Cursor) -> ModelName:
    """Read the name of a trained model, with or without a version: `m`, `m@3`."""
    first = cursor.peek()
    name = str(read_name(cursor, "The name of a trained model"))
    if not _MODEL_NAME.fullmatch(name) or len(name) > _MAX_CHARACTERS:
        raise cursor.problem(
            f"{name[:40]!r} cannot name a trained model.",
            first,
            hint=f"Use letters, digits, _ and -, and dots between them; at most {_MAX_CHARACTERS}.",
        )
    refuse_image(cursor, "A trained model", "Models are in the folder that models=DIR names.")
    version = None
    if cursor.skip_symbol("@"):
        token = cursor.take("The version after @")
        digits = token.text if token.kind is TokenKind.NUMBER else ""
        if not digits.isdecimal() or len(digits) > 9 or int(digits) == 0:
            problem = f"{cursor.source(token)} is not a version."
            raise cursor.problem(problem, token, hint=f"Versions are 1, 2, ...: {name}@1.")
        version = int(digits)
    return ModelName(name=name, version=version, position=cursor.position(first))


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
        if not cursor.skip_symbol("="):
            hint = f"Write {name}=value."
            raise cursor.problem(f"= is missing after {name}.", cursor.peek(), hint=hint)
        if str(name) in attributes:
            hint = f"It is also set on line {attributes[str(name)].position.line}. Leave one out."
            raise StatementError(f"{name} is set twice.", name.position, hint=hint)
        hyperparameter = read_hparam(cursor) if may_vary else None
        value = hyperparameter or read_value(cursor, may_be_word=str(name) in UNQUOTED_ATTRIBUTES)
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
        terms = [_term(cursor, 0)]
        while cursor.skip_symbol(","):
            terms.append(_term(cursor, 0))
        part = str(read_name(cursor, "A part of the model")) if cursor.skip_words("FOR") else ""
        clauses.append(ColumnClause(terms=tuple(terms), part=part, position=cursor.position(first)))


def _term(cursor: Cursor, depth: int) -> ColumnTerm:
    first = cursor.peek()
    name = read_name(cursor, "A column, or a function of one,")
    if not cursor.skip_symbol("("):
        return name
    if depth > _MAX_DEPTH:
        raise cursor.problem("The functions are nested too deeply.", first)
    arguments: list[ColumnCall | Name | Literal] = []
    while not cursor.skip_symbol(")"):
        arguments.append(_argument(cursor, depth))
        if not cursor.skip_symbol(",") and not _is_closing(cursor.peek()):
            problem = "A comma or ) is missing after an argument."
            raise cursor.problem(problem, cursor.peek())
    position = cursor.position(first)
    return ColumnCall(function=str(name), arguments=tuple(arguments), position=position)


def _is_closing(token: Token | None) -> bool:
    return token is not None and token.is_symbol(")")


def _argument(cursor: Cursor, depth: int) -> ColumnCall | Name | Literal:
    token = cursor.peek()
    if token is not None and token.is_name:
        return _term(cursor, depth + 1)
    if token is not None and token.is_symbol("["):
        return _list(cursor, depth, token)
    return Literal(value=read_value(cursor), position=cursor.position(token))


def _list(cursor: Cursor, depth: int, opening: Token) -> ColumnCall | Literal:
    """Read a list of literals, or of columns: `CROSS([a, b], 100)`."""
    following = cursor.peek(1)
    if following is None or not following.is_name:
        return Literal(value=read_value(cursor), position=cursor.position(opening))
    cursor.skip_symbol("[")
    terms: list[Any] = [_term(cursor, depth + 1)]
    while cursor.skip_symbol(","):
        terms.append(_term(cursor, depth + 1))
    if not cursor.skip_symbol("]"):
        raise cursor.problem("A comma or ] is missing after a column.", cursor.peek())
    return ColumnCall(function="", arguments=tuple(terms), position=cursor.position(opening))
