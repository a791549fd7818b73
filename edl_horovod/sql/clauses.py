"""The clauses behind TRAIN and its kin: names, WITH, COLUMN."""

import re
from collections.abc import Sequence
from typing import Any

from edl_horovod.sql.cursor import Cursor
from edl_horovod.sql.hparams import read_hparam
from edl_horovod.sql.problems import StatementError
from edl_horovod.sql.spellings import WORD_VALUES
from edl_horovod.sql.statements import (
    Attribute,
    ColumnCall,
    ColumnClause,
    ColumnTerm,
    Literal,
    ModelName,
    Name,
)
from edl_horovod.sql.tokens import Kind, Token
from edl_horovod.sql.values import read_value

__all__ = ["read_attributes", "read_columns", "read_model", "read_name", "refuse_image"]

_RESERVED = ("WITH", "USING", "INTO")
"""A column may well be called label, or column."""
_MODEL_NAME = re.compile(r"\w[\w-]*(\.\w[\w-]*)*")
_MOST_CHARACTERS = 100
_MOST_LEVELS = 20
"""Functions of a COLUMN clause within functions."""


def read_name(cursor: Cursor, what: str, *, reserved: Sequence[str] = _RESERVED) -> Name:
    """A name with dots between its parts; text in quotes is one part.

    Args:
        cursor: Moved behind the name.
        what: Begins the error where there is none.
        reserved: Keywords that are no name without quotes, because a clause may begin here.
    """
    first = cursor.peek()
    parts = [_part(cursor, what, reserved)]
    while cursor.skip_symbol("."):
        parts.append(_part(cursor, "The part of a name behind the dot", ()))
    return Name(
        parts=tuple(part.text for part in parts),
        folded=tuple(part.text.lower() if part.kind is Kind.WORD else part.text for part in parts),
        position=cursor.position(first),
    )


def _part(cursor: Cursor, what: str, reserved: Sequence[str]) -> Token:
    token = cursor.peek()
    is_text = token is not None and token.kind is Kind.TEXT
    found = cursor.take(what) if is_text else cursor.take_name(what, reserved=reserved)
    if not found.text:
        raise cursor.problem("A name cannot be empty.", found)
    return found


def refuse_image(cursor: Cursor, what: str, hint: str) -> None:
    """Refuse what may follow a name elsewhere: the address of a server, or of an image."""
    token = cursor.peek()
    if token is not None and token.is_symbol("/", ":"):
        raise cursor.problem(f"{what} is named without a server or an image.", token, hint=hint)


def read_model(cursor: Cursor) -> ModelName:
    """The name of a trained model, with or without a version: `m`, `m@3`."""
    first = cursor.peek()
    name = str(read_name(cursor, "The name of a trained model"))
    if not _MODEL_NAME.fullmatch(name) or len(name) > _MOST_CHARACTERS:
        raise cursor.problem(
            f"{name[:40]!r} cannot name a trained model.",
            first,
            hint=f"Use letters, digits, _ and -, with dots between; at most {_MOST_CHARACTERS}.",
        )
    refuse_image(cursor, "A trained model", "Models are in the folder that models=DIR names.")
    version = None
    if cursor.skip_symbol("@"):
        token = cursor.take("The version behind @")
        digits = token.text if token.kind is Kind.NUMBER else ""
        if not digits.isdecimal() or len(digits) > 9 or int(digits) == 0:
            what = f"{cursor.source(token)} is not a version."
            raise cursor.problem(what, token, hint=f"Versions are 1, 2, ...: {name}@1.")
        version = int(digits)
    return ModelName(name=name, version=version, position=cursor.position(first))


def read_attributes(cursor: Cursor, *, may_vary: bool = False) -> tuple[Attribute, ...]:
    """The attributes of a WITH clause; none where there is no clause.

    Args:
        cursor: Moved behind the clause.
        may_vary: Whether an attribute may have several values, for the trials of a training.

    Raises:
        StatementError: One is malformed, or comes twice.
    """
    found: dict[str, Attribute] = {}
    if not cursor.skip_words("WITH"):
        return ()
    while True:
        name = read_name(cursor, "The name of an attribute", reserved=())
        if not cursor.skip_symbol("="):
            hint = f"Write {name}=value."
            raise cursor.problem(f"After {name} comes =.", cursor.peek(), hint=hint)
        if str(name) in found:
            hint = f"It stands on line {found[str(name)].position.line}, too. Leave one out."
            raise StatementError(f"{name} comes a second time.", name.position, hint=hint)
        several = read_hparam(cursor) if may_vary else None
        value = several or read_value(cursor, may_be_word=str(name) in WORD_VALUES)
        found[str(name)] = Attribute(name=str(name), value=value, position=name.position)
        if not cursor.skip_symbol(","):
            return tuple(found.values())


def read_columns(cursor: Cursor) -> tuple[ColumnClause, ...]:
    """The COLUMN clauses that stand here."""
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


def _term(cursor: Cursor, level: int) -> ColumnTerm:
    first = cursor.peek()
    name = read_name(cursor, "A column, or a function of one,")
    if not cursor.skip_symbol("("):
        return name
    if level > _MOST_LEVELS:
        raise cursor.problem("The functions are nested too deeply.", first)
    arguments: list[ColumnCall | Name | Literal] = []
    while not cursor.skip_symbol(")"):
        arguments.append(_argument(cursor, level))
        if not cursor.skip_symbol(",") and not _closes(cursor.peek()):
            what = "After an argument comes a comma or )."
            raise cursor.problem(what, cursor.peek())
    position = cursor.position(first)
    return ColumnCall(function=str(name), arguments=tuple(arguments), position=position)


def _closes(token: Token | None) -> bool:
    return token is not None and token.is_symbol(")")


def _argument(cursor: Cursor, level: int) -> ColumnCall | Name | Literal:
    token = cursor.peek()
    if token is not None and token.is_name:
        return _term(cursor, level + 1)
    if token is not None and token.is_symbol("["):
        return _list(cursor, level, token)
    return Literal(value=read_value(cursor), position=cursor.position(token))


def _list(cursor: Cursor, level: int, opening: Token) -> ColumnCall | Literal:
    """A list of literals, or of columns: `CROSS([a, b], 100)`."""
    following = cursor.peek(1)
    if following is None or not following.is_name:
        return Literal(value=read_value(cursor), position=cursor.position(opening))
    cursor.skip_symbol("[")
    terms: list[Any] = [_term(cursor, level + 1)]
    while cursor.skip_symbol(","):
        terms.append(_term(cursor, level + 1))
    if not cursor.skip_symbol("]"):
        raise cursor.problem("After a column comes a comma or ].", cursor.peek())
    return ColumnCall(function="", arguments=tuple(terms), position=cursor.position(opening))
