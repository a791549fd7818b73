"""The COLUMN clauses of a statement as the plain dicts that models take as `columns`."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from edl_horovod.columns.clauses import read_clauses
from edl_horovod.errors import ConfigError, did_you_mean
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
_WEIGHTED = "Leave the weights out: CATEGORY_HASH(column, number)."
_SEPARATORS = {"COMMA": ","}
"""What SQLFlow calls separators."""
_TYPES = ("INT", "FLOAT")
"""What SQLFlow says behind a separator, and the values of all rows say here."""


def column_dicts(clauses: Sequence[ColumnClause]) -> list[dict[str, Any]]:
    """What models take as the parameter `columns`; docs/reference/sql.md describes it.

    Raises:
        StatementError: There is no such function, or it takes no such argument.
    """
    return [
        _checked(term) | ({"for": clause.part} if clause.part else {})
        for clause in clauses
        for term in clause.terms
    ]


def _checked(term: ColumnTerm) -> dict[str, Any]:
    column = _dict(term)
    try:
        read_clauses([column], parts=())
    except ConfigError as e:
        raise StatementError(e.what, term.position, hint=e.hint) from e
    return column


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
    term = _plain(term)
    function = term.function.upper()
    if function == "WEIGHTED_CATEGORY":
        what = "No model of the zoo takes weights of categories."
        raise StatementError(what, term.position, hint=_WEIGHTED)
    if function not in _FUNCTIONS:
        near = did_you_mean(function, _FUNCTIONS)
        hint = f"{near} Functions: {', '.join(_FUNCTIONS)}."
        raise StatementError(f"There is no column function {term.function}.", term.position, hint=hint)
    keys = _FUNCTIONS[function]
    if not 1 <= len(term.arguments) <= len(keys):
        hint = f"Write {function}({', '.join(keys)}); the last ones may be left out."
        what = f"{function} takes 1 to {len(keys)} arguments."
        raise StatementError(what, term.position, hint=hint)
    values = [_value(key, argument) for key, argument in zip(keys, term.arguments, strict=False)]
    found = dict(zip(keys, values, strict=False))
    # A text of so many numbers is what models call dense.
    is_dense = function == "NUMERIC" and found.pop("shape", 1) != 1
    if is_dense:
        return {"kind": "dense", "name": found["name"], "shape": values[1]}
    return {"kind": function.lower(), **found}


def _plain(call: ColumnCall) -> ColumnCall:
    """What SQLFlow writes as a function of DENSE or SPARSE, as the one that means the same."""
    function, arguments = call.function.upper(), call.arguments
    inner = _plain(arguments[0]) if arguments and isinstance(arguments[0], ColumnCall) else None
    inner_function = inner.function.upper() if inner is not None else ""
    if function in ("DENSE", "SPARSE") and len(arguments) > 3 and _is_type(arguments[3]):
        return _plain(replace(call, arguments=(*arguments[:3], *arguments[4:])))
    if function == "DENSE" and len(arguments) == 1:
        return replace(call, function="NUMERIC")
    if function == "SPARSE":
        return replace(call, function="INDICATOR", arguments=(_sequence(call),))
    if inner is None:
        is_sequence = function == "CATEGORY_ID" and len(arguments) == 3
        return replace(call, function="SEQ_CATEGORY_ID") if is_sequence else call
    if function == "NUMERIC" and inner_function in ("NUMERIC", "DENSE", "INDICATOR"):
        return inner
    if function == "BUCKET" and inner_function == "NUMERIC" and len(inner.arguments) == 1:
        return replace(call, arguments=(inner.arguments[0], *arguments[1:]))
    if function in ("EMBEDDING", "INDICATOR", "CATEGORY_ID") and inner_function == "INDICATOR":
        categories = inner.arguments[0]
        if function == "CATEGORY_ID" and isinstance(categories, ColumnCall):
            sizes = (*arguments[1:2], *categories.arguments[2:])
            return replace(categories, arguments=(categories.arguments[0], *sizes))
        return replace(call, arguments=(categories, *arguments[1:]))
    return call


def _sequence(sparse: ColumnCall) -> ColumnCall:
    """The numbers of a SPARSE column as categories.

    Raises:
        StatementError: It is without a number of categories, or its numbers have weights.
    """
    if len(sparse.arguments) < 2:
        problem = "SPARSE says how many different numbers its texts may hold."
        raise StatementError(problem, sparse.position, hint="Write SPARSE(column, number).")
    if len(sparse.arguments) > 3:
        problem = "No model of the zoo takes weights of categories."
        raise StatementError(problem, sparse.position, hint=_WEIGHTED)
    return replace(sparse, function="SEQ_CATEGORY_ID")


def _is_type(argument: ColumnCall | Name | Literal) -> bool:
    text = argument.value if isinstance(argument, Literal) else str(argument)
    return isinstance(text, str) and text.upper() in _TYPES


def _value(key: str, argument: ColumnCall | Name | Literal) -> Any:
    if isinstance(argument, Literal):
        if key in ("name", "of"):
            what = f"{argument.value!r} is no column."
            raise StatementError(what, argument.position, hint="Write its name without single quotes.")
        return argument.value
    if isinstance(argument, Name):
        name = _name(argument)
        return _SEPARATORS.get(name.upper(), name) if key == "separator" else name
    if key == "of":
        return (
            [_inner(each) for each in argument.arguments]
            if not argument.function
            else (_dict(argument))
        )
    what = f"A function cannot stand here, as {argument.function or 'a list'} does."
    raise StatementError(what, argument.position, hint="Write the name of a column, or a number.")


def _inner(term: ColumnCall | Name | Literal) -> Any:
    assert not isinstance(term, Literal)
    return _name(term) if isinstance(term, Name) else _dict(term)


def _name(name: Name) -> str:
    if len(name.parts) > 1:
        what = f"COLUMN names columns as the SELECT gives them, and {name} has a dot."
        raise StatementError(what, name.position, hint=f"Write {name.parts[-1]}.")
    return name.parts[0]
