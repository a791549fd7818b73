"""What the COLUMN clauses of a statement say of the columns, as plain dicts and checked.

docs/reference/sql.md describes the dicts; a statement is turned into them, and `params.columns` of
any job takes them.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from edl_horovod.errors import ConfigError, did_you_mean

__all__ = [
    "COMBINERS",
    "MAX_CODES",
    "Category",
    "Clause",
    "read_clauses",
    "require_columns",
    "vocabulary_columns",
]

COMBINERS = ("sum", "mean", "sqrtn")
MAX_CODES = 10_000_000
"""Most categories of a clause: each has a row in a table of the model."""
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
"""What a clause of each kind must say, and what it may say beside `for`."""
_CATEGORIES = ("vocabulary", "category_id", "category_hash", "seq_category_id", "bucket", "cross")
_REFUSED = {
    "sparse": "a sparse column; select its parts as columns of their own",
    "weighted_category": "weights of categories; leave the weights out",
}


@dataclass(frozen=True, kw_only=True)
class Category:
    """A column, or several, as categories."""

    kind: str
    """`vocabulary`, `category_id`, `category_hash`, `seq_category_id`, `bucket` or `cross`."""
    name: str = ""
    """Of the column; empty for a cross."""
    num_buckets: int = 0
    """How many categories there are; 0 where the kind says it otherwise."""
    borders: tuple[float, ...] = ()
    """Of buckets: rising, each the first number of the bucket above it."""
    separator: str = ","
    """Between the numbers of a sequence."""
    of: tuple["Category", ...] = ()
    """What is crossed."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that it reads."""
        return (self.name,) if self.name else tuple(c for part in self.of for c in part.columns)


@dataclass(frozen=True, kw_only=True)
class Clause:
    """One entry of a COLUMN clause."""

    kind: str
    """`inferred`, `numeric`, `dense`, `embedding`, `indicator`, or that of its category."""
    part: str = ""
    """The part of the model that reads it; empty for all."""
    name: str = ""
    """Of the column; empty where there is a category."""
    size: int = 1
    """How many numbers a cell holds."""
    separator: str = ","
    category: Category | None = None
    dimension: int = 0
    """Of an embedding; 0 leaves it to the model."""
    combiner: str = "mean"
    """How the embeddings of a sequence become one."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that it reads."""
        return (self.name,) if self.category is None else self.category.columns


def read_clauses(given: object, *, parts: Sequence[str]) -> tuple[Clause, ...]:
    """Check the clauses of a model, without any data.

    Args:
        given: A list of dicts; a text stands for a column as it is found.
        parts: Of the model, that `for` may name; one for a model that has no parts.

    Raises:
        ConfigError: One is no clause; the message shows it.
    """
    if not isinstance(given, list | tuple):
        raise _refused(given, "The columns must be a list of dicts, one for each clause.")
    return tuple(_clause(each, parts) for each in given)


def vocabulary_columns(clauses: Sequence[Clause]) -> frozenset[str]:
    """The columns whose values are the categories of a clause."""
    categories = [clause.category for clause in clauses if clause.category is not None]
    return frozenset(each.name for each in categories if each.kind == "vocabulary")


def require_columns(clauses: Sequence[Clause], columns: Collection[str]) -> None:
    """Refuse clauses of columns that the data do not have.

    Raises:
        ConfigError: There is one.
    """
    for clause in clauses:
        for name in clause.columns:
            if name not in columns:
                raise ConfigError(
                    f"COLUMN names {name!r}, which is no column of the data.",
                    received={"columns": sorted(columns)},
                    cure=did_you_mean(name, columns) or "Select it, or leave it out.",
                )


def _clause(given: object, parts: Sequence[str]) -> Clause:
    found = _checked(given)
    part = found.get("for", "")
    if "for" in found and (part not in parts or len(parts) == 1):
        has = f"Its parts are {' and '.join(parts)}." if len(parts) > 1 else "It has no parts."
        raise _refused(given, f"The model has no part {part!r}.", cure=has)
    kind = found["kind"]
    if kind in ("inferred", "numeric", "dense"):
        return Clause(
            kind=kind,
            part=part,
            name=found["name"],
            size=_size(found.get("shape", 1), given),
            separator=_separator(found, given),
        )
    if kind in _CATEGORIES:
        return Clause(kind=kind, part=part, category=_category(given))
    combiner = found.get("combiner", "mean")
    if combiner not in COMBINERS:
        raise _refused(given, f"A combiner must be one of {', '.join(COMBINERS)}.")
    category = _category(found["of"])
    if kind == "indicator" and category.num_buckets > _MAX_INDICATOR:
        raise _refused(
            given,
            f"An indicator has one number for each category, at most {_MAX_INDICATOR:,}.",
            cure="Take an embedding.",
        )
    return Clause(
        kind=kind,
        part=part,
        category=category,
        dimension=_count(found, "dimension", given) if kind == "embedding" else 0,
        combiner=combiner,
    )


def _category(given: object) -> Category:
    """What is embedded, shown or crossed; the name of a column stands for its vocabulary."""
    if isinstance(given, str):
        return Category(kind="vocabulary", name=given)
    found = _checked(given)
    kind = found["kind"]
    if kind == "inferred":
        kind = "vocabulary"
    if kind not in _CATEGORIES:
        raise _refused(
            given, f"{kind} gives no categories.", cure=f"These do: {', '.join(_CATEGORIES)}."
        )
    if kind == "cross":
        inner = found["of"]
        if not isinstance(inner, list | tuple) or len(inner) < 2:
            raise _refused(given, "A cross is of two columns or more, in a list.")
        of = tuple(map(_category, inner))
        if bad := next((part for part in of if part.kind == "seq_category_id"), None):
            raise _refused(given, f"A sequence ({bad.name!r}) cannot be crossed.")
        return Category(kind=kind, of=of, num_buckets=_count(found, "num_buckets", given))
    return Category(
        kind=kind,
        name=found["name"],
        num_buckets=_count(found, "num_buckets", given) if "num_buckets" in found else 0,
        borders=_borders(found["borders"], given) if kind == "bucket" else (),
        separator=_separator(found, given),
    )


def _checked(given: object) -> Mapping[str, Any]:
    """A dict of a known kind with just the keys that belong to it."""
    if isinstance(given, str):
        return {"kind": "inferred", "name": given}
    if not isinstance(given, Mapping):
        raise _refused(given, "A column is a dict, or a name.")
    found = dict(given)
    kind = found.setdefault("kind", "inferred")
    if kind in _REFUSED:
        raise _refused(given, f"No model of the zoo takes {_REFUSED[kind]}.")
    if kind not in _KEYS:
        near = did_you_mean(str(kind), _KEYS)
        raise _refused(
            given,
            f"There is no kind {kind!r} of columns.",
            cure=f"Kinds: {', '.join(_KEYS)}.{near}",
        )
    needed, allowed = _KEYS[kind]
    if "of" in needed and "name" in found and "of" not in found:
        found["of"] = found.pop("name")
    for key in sorted(needed - found.keys()):
        raise _refused(given, f"{kind} lacks {key!r}.")
    for key in sorted(found.keys() - needed - allowed - {"kind", "for"}):
        raise _refused(
            given, f"{kind} takes no {key!r}.", cure=f"It takes {', '.join(needed | allowed)}."
        )
    if "name" in found and not (isinstance(found["name"], str) and found["name"]):
        raise _refused(given, "name must be the name of a column.")
    return found


def _count(found: Mapping[str, Any], key: str, given: object) -> int:
    value = found[key]
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_CODES:
        raise _refused(given, f"{key} must be a whole number from 1 to {MAX_CODES:,}.")
    return value


def _size(shape: object, given: object) -> int:
    sizes: list[Any] = list(shape) if isinstance(shape, list | tuple) else [shape]
    if any(isinstance(size, bool) or not isinstance(size, int) or size < 1 for size in sizes):
        raise _refused(given, "shape must be a whole number from 1 on, or a list of such.")
    return math.prod(sizes)


def _separator(found: Mapping[str, Any], given: object) -> str:
    value = found.get("separator", ",")
    if not isinstance(value, str) or not value:
        raise _refused(given, "separator must be a text that is not empty.")
    return value


def _borders(value: object, given: object) -> tuple[float, ...]:
    is_list = isinstance(value, list | tuple) and len(value) > 0
    if not is_list or any(isinstance(x, bool) or not isinstance(x, int | float) for x in value):  # type: ignore[attr-defined]
        raise _refused(given, "borders must be a list of numbers.")
    borders = tuple(map(float, value))  # type: ignore[call-overload]
    if any(not lower < upper for lower, upper in pairwise(borders)):
        raise _refused(given, "The borders of buckets must rise.")
    return borders


def _refused(given: object, what: str, *, cure: str = "") -> ConfigError:
    return ConfigError(what, received=f"COLUMN {given!r}", cure=cure)
