"""From what columns hold to what a model takes: numbers, and codes for tables of embeddings.

The same code makes the features of a training and of what it predicts, for every framework.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from edl_horovod.columns.categories import (
    Buckets,
    Codes,
    Crossed,
    DatePart,
    Hashed,
    Ids,
    Sequences,
    Vocabulary,
)
from edl_horovod.columns.clauses import Category, Clause
from edl_horovod.columns.infer import Column
from edl_horovod.columns.numbers import Indicator, Numbers, Scaled, ScaledYear, Vector
from edl_horovod.columns.typed import Array, keys_of
from edl_horovod.errors import ConfigError

__all__ = ["HASH_BINS", "Features", "PartPlan", "Table", "plan_features"]

HASH_BINS = 1000
"""Categories of a column that has too many values for a vocabulary."""
_LOOKED_AT = 1000
_CROSSED_BINS = (1 << 31) - 1


@dataclass(frozen=True)
class Table:
    """A table of embeddings, one row for each code."""

    input: str
    """The feature that holds its codes."""
    num_codes: int
    dimension: int
    """Numbers of an embedding; 0 leaves it to the model."""
    is_sequence: bool
    """Whether a row has several codes, up to the first 0; else it has one."""
    combiner: str
    """How the embeddings of a sequence become one."""


@dataclass(frozen=True)
class PartPlan:
    """What one part of a model reads."""

    numbers: tuple[Numbers, ...]
    tables: tuple[Table, ...]

    @property
    def width(self) -> int:
        """How many numbers of a row it reads, beside the tables."""
        return sum(each.width for each in self.numbers)


@dataclass(frozen=True)
class Features:
    """How the features of a model are made of columns."""

    parts: Mapping[str, PartPlan]
    codes: Mapping[str, Codes]
    """By the features that hold them."""
    columns: tuple[Column, ...]
    """What is read, by name."""

    def encode(self, cells: Mapping[str, Array]) -> dict[str, Array]:
        """The features of some rows.

        Args:
            cells: The columns, arrays of shape (rows,), of the types that the training had.

        Returns:
            `<part>_numbers` for each part that has numbers, float32 of shape (rows, width), and
            the codes of each table, int64 of shape (rows, 1), or as long as the longest sequence.

        Raises:
            DataError: A cell is not what its column holds.
        """
        found = {name: codes.encode(cells) for name, codes in self.codes.items()}
        for name, part in self.parts.items():
            if part.numbers:
                rows = [each.encode(cells) for each in part.numbers]
                found[f"{name}_numbers"] = np.concatenate(rows, axis=1)
        return found

    def first_unknown(
        self, encoded: Mapping[str, Array], cells: Mapping[str, Array]
    ) -> dict[str, str]:
        """The first value that the training did not have, by the column; empty cells are none.

        Args:
            encoded: What `encode` made of the cells.
            cells: The columns.
        """
        found = {}
        data_types = {column.name: column.data_type for column in self.columns}
        for name, codes in self.codes.items():
            if codes.unknown is None:
                continue
            rows = np.flatnonzero((encoded[name] == codes.unknown).any(axis=1))
            keys = keys_of(cells[codes.name][rows[:_LOOKED_AT]], data_types[codes.name])
            if value := next(filter(None, keys), ""):
                found[codes.name] = value
        return found

    def newly_empty(self, cells: Mapping[str, Array]) -> list[str]:
        """The columns of numbers that have an empty cell, and had none in the training."""
        return [
            column.name
            for column in self.columns
            if column.kind == "number"
            and not column.num_empty
            and np.isnan(cells[column.name].astype(np.float64)).any()
        ]


def plan_features(
    columns: Mapping[str, Column], clauses: Sequence[Clause], *, parts: Sequence[str]
) -> Features:
    """Say how features are made.

    Args:
        columns: What the data hold, without the label.
        clauses: What is asked for; a part that none is for reads all columns as they were found.
        parts: Of the model.

    Raises:
        ConfigError: A clause does not fit its column, or nothing is left to learn from.
    """
    planner = _Planner(columns)
    plans = {}
    for part in parts:
        own = [clause for clause in clauses if clause.part in ("", part)]
        own = own or [Clause(kind="inferred", name=name) for name in sorted(columns)]
        plans[part] = planner.part(own)
        if not plans[part].numbers and not plans[part].tables:
            raise ConfigError(
                "There is no column to learn from.",
                received=", ".join(map(str, columns.values())) or "the label alone",
                cure="Select columns whose values differ.",
            )
    return Features(plans, planner.codes, tuple(columns[name] for name in planner.names))


class _Planner:
    """Makes each code once, whichever parts read it."""

    def __init__(self, columns: Mapping[str, Column]) -> None:
        self._columns = columns
        self._inputs: dict[Codes, str] = {}
        self.codes: dict[str, Codes] = {}
        self._names: set[str] = set()

    @property
    def names(self) -> list[str]:
        """The columns that are read."""
        return sorted(self._names)

    def part(self, clauses: Sequence[Clause]) -> PartPlan:
        numbers: list[Numbers] = []
        tables: list[Table] = []
        for clause in clauses:
            self._names.update(clause.columns)
            made = self._made(clause)
            numbers += [each for each in made if isinstance(each, Numbers)]
            tables += [self._table(each, clause) for each in made if isinstance(each, Codes)]
        return PartPlan(tuple(numbers), tuple(tables))

    def _made(self, clause: Clause) -> Sequence[Numbers | Codes]:
        if clause.category is not None:
            codes = self._codes(clause.category)
            return [Indicator(codes)] if clause.kind == "indicator" else [codes]
        column = self._columns[clause.name]
        if clause.kind == "dense" or (clause.kind == "numeric" and clause.size > 1):
            _require(column, ("text",), "holds several numbers in a text")
            return [Vector(column.name, clause.size, clause.separator)]
        if clause.kind == "numeric":
            _require(column, ("number", "boolean"), "is to be a number")
        return _as_found(column)

    def _table(self, codes: Codes, clause: Clause) -> Table:
        name = self._inputs.setdefault(codes, f"codes_{len(self._inputs)}")
        self.codes[name] = codes
        return Table(name, codes.num_codes, clause.dimension, codes.is_sequence, clause.combiner)

    def _codes(self, category: Category, *, is_crossed: bool = False) -> Codes:
        if category.kind == "cross":
            of = tuple(self._codes(each, is_crossed=True) for each in category.of)
            return Crossed(of, category.num_buckets)
        column = self._columns[category.name]
        if category.kind == "category_hash":
            return Hashed(column.name, category.num_buckets, column.data_type)
        if category.kind == "category_id":
            _require(column, ("number",), "is to hold whole numbers")
            _require_ids(column, category.num_buckets)
            return Ids(column.name, category.num_buckets)
        if category.kind == "seq_category_id":
            _require(column, ("text",), "holds whole numbers in a text")
            return Sequences(column.name, category.num_buckets, category.separator)
        if category.kind == "bucket":
            _require(column, ("number",), "is to be a number")
            return Buckets(column.name, category.borders, column.mean)
        if is_crossed:
            return Hashed(column.name, _CROSSED_BINS, column.data_type)
        return _vocabulary(column)


def _as_found(column: Column) -> Sequence[Numbers | Codes]:
    if column.kind == "number":
        return [Scaled(column.name, column.mean, column.deviation)]
    if column.kind == "boolean":
        return [Scaled(column.name, 0.0, 1.0)]
    if column.kind == "text":
        return [_vocabulary(column)]
    return [
        ScaledYear(column.name, column.mean, column.deviation)
        if part == "year"
        else DatePart(column.name, part)
        for part in column.parts
    ]


def _vocabulary(column: Column) -> Codes:
    return (
        Vocabulary(column.name, column.vocabulary, column.data_type)
        if column.vocabulary
        else Hashed(column.name, HASH_BINS, column.data_type)
    )


def _require(column: Column, kinds: Sequence[str], what: str) -> None:
    if column.kind not in kinds:
        raise ConfigError(
            f"COLUMN says that {column.name!r} {what}, and the data have something else in it.",
            received=str(column),
            cure="Leave the clause out, or select another column.",
        )


def _require_ids(column: Column, num_buckets: int) -> None:
    is_within = column.lowest >= 0 and column.highest < num_buckets
    if column.data_type == "number" or not is_within:
        raise ConfigError(
            f"COLUMN says that {column.name!r} holds whole numbers from 0 to {num_buckets - 1}.",
            received=f"{column.data_type}s from {column.lowest:g} to {column.highest:g}",
            cure="Give as many buckets as there are numbers, or take category_hash.",
        )
