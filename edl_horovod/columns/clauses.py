"""The COLUMN clauses of a statement, parsed from plain dicts and checked.

docs/reference/sql.md describes the dicts. Statements are translated to them, and `params.columns`
of any job accepts them.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from edl_horovod.errors import ConfigError, did_you_mean

__all__ = ["Category", "Clause", "read_clauses", "require_columns", "vocabulary_columns"]

COMBINERS = ("sum", "mean", "sqrtn")
MAX_CODES = 10_000_000
"""Maximum number of categories of a clause: each has a row in a table of the model."""
_MAX_INDICATOR = 10_000
_KEYS = {
    "inferred": ({"name"}, set()),
    "numeric": ({"name"}, {"shape"}),
    "dense": ({"name", "shape"}, {"separator"}),
    "vocabulary": ({"name"}, set()),
    "category_id": ({"name", "num_buckets"}, set()),
    "category_hash": ({"name", "num_buckets"}, set()),
    "seq_category_id": ({"name", "num_buckets"}, {"separator"}),
    "bucket": ({"name", "borders"}, set()),
    "cross": ({"of", "num_buckets"}, set()),
    "embedding": ({"of", "dimension"}, {"combiner"}),
    "indicator": ({"of"}, set()),
}
"""The required and the optional keys of each kind of clause, without `for`."""
_CATEGORIES = ("vocabulary", "category_id", "category_hash", "seq_category_id", "bucket", "cross")
_REFUSED = {
    "sparse": "a sparse column; select its parts as separate columns",
    "weighted_category": "weights of categories; remove the weights",
}


@dataclass(frozen=True, kw_only=True)
class Category:
    """The categories of one column or of a cross of several columns."""

    kind: str
    """`vocabulary`, `category_id`, `category_hash`, `seq_category_id`, `bucket` or `cross`."""
    name: str = ""
    """Name of the column; empty for a cross."""
    num_buckets: int = 0
    """Number of categories; 0 if the kind determines it in another way."""
    borders: tuple[float, ...] = ()
    """Borders of buckets in ascending order; each is the lower bound of the next bucket."""
    separator: str = ","
    """The separator between the numbers of a sequence."""
    of: tuple["Category", ...] = ()
    """The crossed categories."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that are read."""
        return (self.name,) if self.name else tuple(name for of in self.of for name in of.columns)


@dataclass(frozen=True, kw_only=True)
class Clause:
    """One entry of a COLUMN clause."""

    kind: str
    """`inferred`, `numeric`, `dense`, `embedding`, `indicator`, or the kind of its category."""
    part: str = ""
    """The part of the model that reads it; empty for all parts."""
    name: str = ""
    """Name of the column; empty if there is a category."""
    size: int = 1
    """Number of numbers in a cell."""
    separator: str = ","
    category: Category | None = None
    dimension: int = 0
    """Dimension of an embedding; 0 for the model's default."""
    combiner: str = "mean"
    """How the embeddings of a sequence are combined: one of `COMBINERS`."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that are read."""
        return (self.name,) if self.category is None else self.category.columns


def read_clauses(clauses: object, *, parts: Sequence[str]) -> tuple[Clause, ...]:
    """Parse and check the clauses of a model, without any data.

    Args:
        clauses: A list of dicts; a name stands for a column with its inferred type.
        parts: The parts of the model that `for` may name; a single one for a model without parts.

    Raises:
        ConfigError: A clause is invalid; the message shows it.
    """
    if not isinstance(clauses, list | tuple):
        raise _refused(clauses, "The columns must be a list of dicts, one for each clause.")
    return tuple(_clause(clause, parts) for clause in clauses)


def vocabulary_columns(clauses: Sequence[Clause]) -> frozenset[str]:
    """Return the columns whose values are the categories of a clause."""
    categories = [clause.category for clause in clauses if clause.category is not None]
    return frozenset(category.name for category in categories if category.kind == "vocabulary")


def require_columns(clauses: Sequence[Clause], columns: Collection[str]) -> None:
    """Refuse clauses whose columns do not exist in the data.

    Raises:
        ConfigError: A column does not exist.
    """
    for clause in clauses:
        for name in clause.columns:
            if name not in columns:
                problem = f"COLUMN names {name!r}, which is not a column of the data."
                hint = did_you_mean(name, columns) or "Select the column, or remove the clause."
                raise ConfigError(problem, received={"columns": sorted(columns)}, hint=hint)


def _clause(value: object, parts: Sequence[str]) -> Clause:
    fields = _as_mapping(value)
    part = fields.get("for", "")
    if "for" in fields and (part not in parts or len(parts) == 1):
        hint = f"Its parts are {' and '.join(parts)}." if len(parts) > 1 else "It has no parts."
        raise _refused(value, f"The model has no part {part!r}.", hint=hint)
    kind = fields["kind"]
    if kind in ("inferred", "numeric", "dense"):
        size, separator = _size(fields.get("shape", 1), value), _separator(fields, value)
        return Clause(kind=kind, part=part, name=fields["name"], size=size, separator=separator)
    if kind in _CATEGORIES:
        return Clause(kind=kind, part=part, category=_category(value))
    combiner = fields.get("combiner", "mean")
    if combiner not in COMBINERS:
        raise _refused(value, f"A combiner must be one of {', '.join(COMBINERS)}.")
    category = _category(fields["of"])
    if kind == "indicator" and category.num_buckets > _MAX_INDICATOR:
        limit = f"at most {_MAX_INDICATOR:,} numbers"
        problem = f"An indicator has one number for each category, {limit}."
        raise _refused(value, problem, hint="Use an embedding.")
    clause = Clause(kind=kind, part=part, category=category, combiner=combiner)
    if kind == "indicator":
        return clause
    return replace(clause, dimension=_count(fields, "dimension", value))


def _category(value: object) -> Category:
    """Parse the category of a clause; the name of a column stands for its vocabulary."""
    if isinstance(value, str):
        return Category(kind="vocabulary", name=value)
    fields = _as_mapping(value)
    kind = fields["kind"]
    if kind == "inferred":
        kind = "vocabulary"
    if kind not in _CATEGORIES:
        raise _refused(
            value, f"{kind} has no categories.", hint=f"Use one of {', '.join(_CATEGORIES)}."
        )
    if kind == "cross":
        inner = fields["of"]
        if not isinstance(inner, list | tuple) or len(inner) < 2:
            raise _refused(value, "A cross needs a list of two or more columns.")
        of = tuple(map(_category, inner))
        if bad := next((part for part in of if part.kind == "seq_category_id"), None):
            raise _refused(value, f"A sequence ({bad.name!r}) cannot be crossed.")
        return Category(kind=kind, of=of, num_buckets=_count(fields, "num_buckets", value))
    return Category(
        kind=kind,
        name=fields["name"],
        num_buckets=_count(fields, "num_buckets", value) if "num_buckets" in fields else 0,
        borders=_borders(fields["borders"], value) if kind == "bucket" else (),
        separator=_separator(fields, value),
    )


def _as_mapping(value: object) -> Mapping[str, Any]:
    """Return a clause as a dict, after checking its kind and its keys."""
    if isinstance(value, str):
        return {"kind": "inferred", "name": value}
    if not isinstance(value, Mapping):
        raise _refused(value, "A clause must be a dict, or the name of a column.")
    fields = dict(value)
    kind = fields.setdefault("kind", "inferred")
    if kind in _REFUSED:
        raise _refused(value, f"No model of the zoo supports {_REFUSED[kind]}.")
    if kind not in _KEYS:
        hint = f"Kinds: {', '.join(_KEYS)}.{did_you_mean(str(kind), _KEYS)}"
        raise _refused(value, f"There is no kind {kind!r} of clauses.", hint=hint)
    needed, allowed = _KEYS[kind]
    if "of" in needed and "name" in fields and "of" not in fields:
        fields["of"] = fields.pop("name")
    for key in sorted(needed - fields.keys()):
        raise _refused(value, f"{kind} requires {key!r}.")
    for key in sorted(fields.keys() - needed - allowed - {"kind", "for"}):
        raise _refused(
            value, f"{kind} has no {key!r}.", hint=f"Its keys are {', '.join(needed | allowed)}."
        )
    if "name" in fields and not (isinstance(fields["name"], str) and fields["name"]):
        raise _refused(value, "name must be the name of a column.")
    return fields


def _count(fields: Mapping[str, Any], key: str, clause: object) -> int:
    value = fields[key]
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_CODES:
        raise _refused(clause, f"{key} must be a whole number from 1 to {MAX_CODES:,}.")
    return value


def _size(shape: object, clause: object) -> int:
    sizes: list[Any] = list(shape) if isinstance(shape, list | tuple) else [shape]
    if any(isinstance(size, bool) or not isinstance(size, int) or size < 1 for size in sizes):
        raise _refused(clause, "shape must be a whole number of at least 1, or a list of them.")
    return math.prod(sizes)


def _separator(fields: Mapping[str, Any], clause: object) -> str:
    value = fields.get("separator", ",")
    if not isinstance(value, str) or not value:
        raise _refused(clause, "separator must be a non-empty text.")
    return value


def _borders(value: object, clause: object) -> tuple[float, ...]:
    is_list = isinstance(value, list | tuple) and len(value) > 0
    if not is_list or any(
        isinstance(border, bool) or not isinstance(border, int | float)
        for border in value  # type: ignore[attr-defined]
    ):
        raise _refused(clause, "borders must be a list of numbers.")
    borders = tuple(map(float, value))  # type: ignore[call-overload]
    if any(not lower < upper for lower, upper in pairwise(borders)):
        raise _refused(clause, "The borders of buckets must be in ascending order.")
    return borders


def _refused(clause: object, problem: str, *, hint: str = "") -> ConfigError:
    return ConfigError(problem, received=f"COLUMN {clause!r}", hint=hint)
