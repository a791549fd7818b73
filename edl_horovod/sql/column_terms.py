"""Converts COLUMN clauses to the dicts that models take as their parameter `columns`."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from edl_horovod.columns.clauses import read_clauses
from edl_horovod.errors import ConfigError, did_you_mean
from edl_horovod.sql.statements import (
    ColumnCall,
    ColumnClause,
    ColumnTerm,
    Literal,
    Name,
    StatementError,
)

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
"""The arguments of each function in order; `read_clauses` checks their values."""
_WEIGHTS_HINT = "Leave the weights out: CATEGORY_HASH(column, number)."
_SEPARATORS = {"COMMA": ","}
"""SQLFlow's names of separators."""
_TYPES = ("INT", "FLOAT")
"""Types that SQLFlow writes after a separator; here the rows determine them."""


def column_dicts(clauses: Sequence[ColumnClause]) -> list[dict[str, Any]]:
    """The value of the parameter `columns` of a model; docs/reference/sql.md describes it.

    Raises:
        StatementError: A function is unknown, or does not take such an argument.
    """
    return [
        _checked_dict(term) | ({"for": clause.part} if clause.part else {})
        for clause in clauses
        for term in clause.terms
    ]


def _checked_dict(term: ColumnTerm) -> dict[str, Any]:
    column = _term_as_dict(term)
    try:
        read_clauses([column], parts=())
    except ConfigError as e:
        raise StatementError(e.problem, term.position, hint=e.hint) from e
    return column


def column_names(clauses: Sequence[ColumnClause]) -> dict[str, Name]:
    """The columns that the clauses read: their names, and where each is first used."""
    first_uses: dict[str, Name] = {}

    def collect(term: ColumnCall | Name | Literal) -> None:
        if isinstance(term, Name):
            first_uses.setdefault(_name(term), term)
        elif isinstance(term, ColumnCall):
            for argument in term.arguments:
                # A bare word after the first argument is an option: mean in EMBEDDING(a, 8, mean).
                if not isinstance(argument, Name) or argument is term.arguments[0]:
                    collect(argument)
            is_list = not term.function  # In a list, each bare word is a column: CROSS([a, b], 10).
            if is_list:
                for argument in term.arguments[1:]:
                    collect(argument)

    for clause in clauses:
        for term in clause.terms:
            collect(term)
    return first_uses


def _term_as_dict(term: ColumnTerm) -> dict[str, Any]:
    if isinstance(term, Name):
        return {"kind": "inferred", "name": _name(term)}
    term = _without_sqlflow_forms(term)
    function = term.function.upper()
    if function == "WEIGHTED_CATEGORY":
        problem = "No model of the zoo takes weights of categories."
        raise StatementError(problem, term.position, hint=_WEIGHTS_HINT)
    if function not in _FUNCTIONS:
        near = did_you_mean(function, _FUNCTIONS)
        hint = f"{near} Functions: {', '.join(_FUNCTIONS)}."
        raise StatementError(
            f"There is no column function {term.function}.", term.position, hint=hint
        )
    keys = _FUNCTIONS[function]
    if not 1 <= len(term.arguments) <= len(keys):
        hint = f"Write {function}({', '.join(keys)}); the last ones may be left out."
        problem = f"{function} takes 1 to {len(keys)} arguments."
        raise StatementError(problem, term.position, hint=hint)
    values = [_value(key, argument) for key, argument in zip(keys, term.arguments, strict=False)]
    arguments = dict(zip(keys, values, strict=False))
    # NUMERIC(column, n) is a text of n numbers, which models call dense.
    is_dense = function == "NUMERIC" and arguments.pop("shape", 1) != 1
    if is_dense:
        return {"kind": "dense", "name": arguments["name"], "shape": values[1]}
    return {"kind": function.lower(), **arguments}


def _without_sqlflow_forms(call: ColumnCall) -> ColumnCall:
    """Replace SQLFlow's nested forms, such as NUMERIC(DENSE(...)), by plain functions."""
    function, arguments = call.function.upper(), call.arguments
    inner = (
        _without_sqlflow_forms(arguments[0])
        if arguments and isinstance(arguments[0], ColumnCall)
        else None
    )
    inner_function = inner.function.upper() if inner is not None else ""
    if function in ("DENSE", "SPARSE") and len(arguments) > 3 and _is_type(arguments[3]):
        return _without_sqlflow_forms(replace(call, arguments=(*arguments[:3], *arguments[4:])))
    if function == "DENSE" and len(arguments) == 1:
        return replace(call, function="NUMERIC")
    if function == "SPARSE":
        return replace(call, function="INDICATOR", arguments=(_sequence_of_categories(call),))
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


def _sequence_of_categories(sparse: ColumnCall) -> ColumnCall:
    """Replace SPARSE by a sequence of categories.

    Raises:
        StatementError: The number of categories is missing, or categories have weights.
    """
    if len(sparse.arguments) < 2:
        problem = "SPARSE needs the number of different numbers in its texts."
        raise StatementError(problem, sparse.position, hint="Write SPARSE(column, number).")
    if len(sparse.arguments) > 3:
        problem = "No model of the zoo takes weights of categories."
        raise StatementError(problem, sparse.position, hint=_WEIGHTS_HINT)
    return replace(sparse, function="SEQ_CATEGORY_ID")


def _is_type(argument: ColumnCall | Name | Literal) -> bool:
    text = argument.value if isinstance(argument, Literal) else str(argument)
    return isinstance(text, str) and text.upper() in _TYPES


def _value(key: str, argument: ColumnCall | Name | Literal) -> Any:
    if isinstance(argument, Literal):
        if key in ("name", "of"):
            problem = f"{argument.value!r} is not a column."
            raise StatementError(
                problem, argument.position, hint="Write its name without single quotes."
            )
        return argument.value
    if isinstance(argument, Name):
        name = _name(argument)
        return _SEPARATORS.get(name.upper(), name) if key == "separator" else name
    if key == "of":
        if argument.function:
            return _term_as_dict(argument)
        return [_crossed_column(term) for term in argument.arguments]
    problem = f"{argument.function or 'A list'} is not allowed here."
    raise StatementError(
        problem, argument.position, hint="Write the name of a column, or a number."
    )


def _crossed_column(term: ColumnCall | Name | Literal) -> Any:
    assert not isinstance(term, Literal)
    return _name(term) if isinstance(term, Name) else _term_as_dict(term)


def _name(name: Name) -> str:
    if len(name.parts) > 1:
        problem = f"COLUMN takes names of columns of the SELECT, without dots: {name} has one."
        raise StatementError(problem, name.position, hint=f"Write {name.parts[-1]}.")
    return name.parts[0]
