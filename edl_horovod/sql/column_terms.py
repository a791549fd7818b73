"""The COLUMN clauses of a statement as the plain dicts that models take as `columns`."""

from collections.abc import Sequence
from typing import Any

from edl_horovod.errors import did_you_mean
from edl_horovod.sql.problems import StatementError
from edl_horovod.sql.statements import ColumnCall, ColumnClause, ColumnTerm, Literal, Name

__all__ = ["column_dicts", "column_names"]

_FUNCTIONS: dict[str, tuple[str, ...]] = {
    "NUMERIC": ("name", "shape"),
    "DENSE": ("name", "shape", "separator"),
    "CATEGORY_ID": ("name", "num_buckets"),
    "CATEGORY_HASH": ("name", "num_buckets"),
    "SEQ_CATEGORY_ID": ("name", "num_buckets", "separator"),
    "BUCKET": ("name", "borders"),
    "CROSS": ("of", "num_buckets"),
    "EMBEDDING": ("of", "dimension", "combiner"),
    "INDICATOR": ("of",),
}
"""The arguments of each function, in their order; models refuse what is missing or wrong."""
_REFUSED = {
    "SPARSE": "Select its parts as columns of their own.",
    "WEIGHTED_CATEGORY": "Leave the weights out: CATEGORY_HASH(column, number).",
}


def column_dicts(clauses: Sequence[ColumnClause]) -> list[dict[str, Any]]:
    """What models take as the parameter `columns`; docs/reference/sql.md describes it.

    Raises:
        StatementError: There is no such function, or it takes no such argument.
    """
    return [
        _dict(term) | ({"for": clause.part} if clause.part else {})
        for clause in clauses
        for term in clause.terms
    ]


def column_names(clauses: Sequence[ColumnClause]) -> dict[str, Name]:
    """The columns that the clauses read, by name, each with where it first stands."""
    found: dict[str, Name] = {}

    def look(term: ColumnCall | Name | Literal) -> None:
        if isinstance(term, Name):
            found.setdefault(_name(term), term)
        elif isinstance(term, ColumnCall):
            for argument in term.arguments:
                # A bare word such as the combiner of an embedding is no column.
                if not isinstance(argument, Name) or argument is term.arguments[0]:
                    look(argument)
            if not term.function:
                for argument in term.arguments[1:]:
                    look(argument)

    for clause in clauses:
        for term in clause.terms:
            look(term)
    return found


def _dict(term: ColumnTerm) -> dict[str, Any]:
    if isinstance(term, Name):
        return {"kind": "inferred", "name": _name(term)}
    function = term.function.upper()
    if function in _REFUSED:
        what = f"No model of the zoo takes {function} columns."
        raise StatementError(what, term.place, hint=_REFUSED[function])
    if function not in _FUNCTIONS:
        near = did_you_mean(function, _FUNCTIONS)
        hint = f"{near} Functions: {', '.join(_FUNCTIONS)}."
        raise StatementError(f"There is no column function {term.function}.", term.place, hint=hint)
    keys = _FUNCTIONS[function]
    if not 1 <= len(term.arguments) <= len(keys):
        hint = f"Write {function}({', '.join(keys)}); the last ones may be left out."
        what = f"{function} takes 1 to {len(keys)} arguments."
        raise StatementError(what, term.place, hint=hint)
    values = [_value(key, argument) for key, argument in zip(keys, term.arguments, strict=False)]
    found = dict(zip(keys, values, strict=False))
    # A text of so many numbers is what models call dense.
    is_dense = function == "NUMERIC" and found.pop("shape", 1) != 1
    if is_dense:
        return {"kind": "dense", "name": found["name"], "shape": values[1]}
    return {"kind": function.lower(), **found}


def _value(key: str, argument: ColumnCall | Name | Literal) -> Any:
    if isinstance(argument, Literal):
        if key in ("name", "of"):
            what = f"{argument.value!r} is no column."
            raise StatementError(what, argument.place, hint="Write its name without single quotes.")
        return argument.value
    if isinstance(argument, Name):
        return _name(argument)
    if key == "of":
        return (
            [_inner(each) for each in argument.arguments]
            if not argument.function
            else (_dict(argument))
        )
    if key == "name" and argument.function.upper() == "NUMERIC":
        return _value("name", argument.arguments[0])
    what = f"A function cannot stand here, as {argument.function or 'a list'} does."
    raise StatementError(what, argument.place, hint="Write the name of a column, or a number.")


def _inner(term: ColumnCall | Name | Literal) -> Any:
    assert not isinstance(term, Literal)
    return _name(term) if isinstance(term, Name) else _dict(term)


def _name(name: Name) -> str:
    if len(name.parts) > 1:
        what = f"COLUMN names columns as the SELECT gives them, and {name} has a dot."
        raise StatementError(what, name.place, hint=f"Write {name.parts[-1]}.")
    return name.parts[0]
