"""Conversion of columns to the features of a model: numbers, and codes for tables of embeddings.

The same code creates the features for training and for prediction, and for every framework.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from edl_horovod.columns import encoders
from edl_horovod.columns.clauses import Category, Clause
from edl_horovod.columns.encoders import Codes, Numbers
from edl_horovod.columns.infer import Column
from edl_horovod.columns.typed import DATE_PARTS, Array, keys_of
from edl_horovod.errors import ConfigError

__all__ = ["Features", "Table", "plan_features"]

HASH_BINS = 1000
"""Number of categories of a column that has too many values for a vocabulary."""
_MAX_CHECKED_ROWS = 1000
_CROSSED_BINS = (1 << 31) - 1


@dataclass(frozen=True)
class Table:
    """A table of embeddings, one row for each code."""

    input: str
    """The name of the feature with its codes."""
    num_codes: int
    dimension: int
    """Dimension of an embedding; 0 for the model's default."""
    is_sequence: bool
    """Whether a row has several codes, which end before the first 0, instead of one."""
    combiner: str
    """How the embeddings of a sequence are combined."""


@dataclass(frozen=True)
class PartPlan:
    """The input of one part of a model."""

    numbers: tuple[Numbers, ...]
    tables: tuple[Table, ...]

    @property
    def width(self) -> int:
        """Number of numbers in a row, without the tables."""
        return sum(encoder.width for encoder in self.numbers)


@dataclass(frozen=True)
class Features:
    """The conversion of columns to the features of a model."""

    parts: Mapping[str, PartPlan]
    codes: Mapping[str, Codes]
    """The codes by the name of their feature."""
    columns: tuple[Column, ...]
    """The columns that are read, sorted by name."""

    def encode(self, cells: Mapping[str, Array]) -> dict[str, Array]:
        """Return the features of some rows.

        Args:
            cells: The columns, arrays of shape (rows,) with the types of the training.

        Returns:
            `<part>_numbers` for each part that has numbers, float32 of shape (rows, width), and
            the codes of each table, int64 of shape (rows, 1), or as long as the longest sequence.

        Raises:
            DataError: A cell does not fit its column.
        """
        encoded = {name: codes.encode(cells) for name, codes in self.codes.items()}
        for name, part in self.parts.items():
            if part.numbers:
                rows = [encoder.encode(cells) for encoder in part.numbers]
                encoded[f"{name}_numbers"] = np.concatenate(rows, axis=1)
        return encoded

    def first_unknown(
        self, encoded: Mapping[str, Array], cells: Mapping[str, Array]
    ) -> dict[str, str]:
        """Return the first value that did not occur in the training, by column; ignore empty cells.

        Args:
            encoded: The result of `encode` for the cells.
            cells: The columns, as for `encode`.
        """
        unknown = {}
        data_types = {column.name: column.data_type for column in self.columns}
        for name, codes in self.codes.items():
            if codes.unknown is None:
                continue
            rows = np.flatnonzero((encoded[name] == codes.unknown).any(axis=1))
            keys = keys_of(cells[codes.name][rows[:_MAX_CHECKED_ROWS]], data_types[codes.name])
            if value := next(filter(None, keys), ""):
                unknown[codes.name] = value
        return unknown

    def newly_empty(self, cells: Mapping[str, Array]) -> list[str]:
        """Return the numeric columns that have an empty cell, but had none in the training."""
        numbers = (column for column in self.columns if column.kind == "number")
        filled = [column.name for column in numbers if not column.num_empty]
        return [name for name in filled if np.isnan(cells[name].astype(np.float64)).any()]


def plan_features(
    columns: Mapping[str, Column], clauses: Sequence[Clause], *, parts: Sequence[str]
) -> Features:
    """Plan the features of a model.

    Args:
        columns: The columns of the data by name, without the label.
        clauses: The requested features; a part without clauses reads all columns with their
            inferred types.
        parts: The parts of the model.

    Raises:
        ConfigError: A clause does not fit its column, or there are no features to train with.
    """
    planner = _Planner(columns)
    plans = {}
    for part in parts:
        part_clauses = [clause for clause in clauses if clause.part in ("", part)]
        inferred = [Clause(kind="inferred", name=name) for name in sorted(columns)]
        plans[part] = planner.part(part_clauses or inferred)
        if not plans[part].numbers and not plans[part].tables:
            raise ConfigError(
                "There is no column to train with.",
                received=", ".join(map(str, columns.values())) or "only the label",
                hint="Select columns whose values differ.",
            )
    return Features(plans, planner.codes, tuple(columns[name] for name in sorted(planner.names)))


class _Planner:
    """Creates the encoders of all parts, and shares codes between parts."""

    def __init__(self, columns: Mapping[str, Column]) -> None:
        self._columns = columns
        self._inputs: dict[Codes, str] = {}
        self.codes: dict[str, Codes] = {}
        self.names: set[str] = set()
        """The names of the columns that are read."""

    def part(self, clauses: Sequence[Clause]) -> PartPlan:
        numbers: list[Numbers] = []
        tables: list[Table] = []
        for clause in clauses:
            self.names.update(clause.columns)
            for encoder in self._encoders_of(clause):
                if isinstance(encoder, Numbers):
                    numbers.append(encoder)
                else:
                    tables.append(self._table(encoder, clause))
        return PartPlan(tuple(numbers), tuple(tables))

    def _encoders_of(self, clause: Clause) -> Sequence[Numbers | Codes]:
        if clause.category is not None:
            codes = self._codes(clause.category)
            is_indicator = clause.kind == "indicator"
            return [encoders.Indicator(codes.num_codes, codes)] if is_indicator else [codes]
        column = self._columns[clause.name]
        if clause.kind == "dense" or (clause.kind == "numeric" and clause.size > 1):
            _require(column, ("text",), "is a text with several numbers")
            return [encoders.Vector(clause.size, column.name, clause.separator)]
        if clause.kind == "numeric":
            _require(column, ("number", "boolean"), "is a number")
        return _inferred(column)

    def _table(self, codes: Codes, clause: Clause) -> Table:
        name = self._inputs.setdefault(codes, f"codes_{len(self._inputs)}")
        self.codes[name] = codes
        return Table(name, codes.num_codes, clause.dimension, codes.is_sequence, clause.combiner)

    def _codes(self, category: Category, *, is_crossed: bool = False) -> Codes:
        if category.kind == "cross":
            of = tuple(self._codes(part, is_crossed=True) for part in category.of)
            names = " * ".join(codes.name for codes in of)
            return encoders.Crossed(names, category.num_buckets, of)
        column, num_buckets = self._columns[category.name], category.num_buckets
        if category.kind == "category_hash":
            return encoders.Hashed(column.name, num_buckets, column.data_type)
        if category.kind == "category_id":
            _require(column, ("number",), "contains whole numbers")
            _require_ids(column, num_buckets)
            return encoders.Ids(column.name, num_buckets + 1)
        if category.kind == "seq_category_id":
            _require(column, ("text",), "is a text with whole numbers")
            num_codes = num_buckets + encoders.FIRST_OF_SEQUENCE
            return encoders.Sequences(column.name, num_codes, category.separator)
        if category.kind == "bucket":
            _require(column, ("number",), "is a number")
            borders = category.borders
            return encoders.Buckets(column.name, len(borders) + 1, borders, column.mean)
        if is_crossed:
            return encoders.Hashed(column.name, _CROSSED_BINS, column.data_type)
        return _vocabulary(column)


def _inferred(column: Column) -> Sequence[Numbers | Codes]:
    if column.kind == "number":
        return [encoders.Scaled(1, column.name, column.mean, column.deviation)]
    if column.kind == "boolean":
        return [encoders.Scaled(1, column.name, 0.0, 1.0)]
    if column.kind == "text":
        return [_vocabulary(column)]
    return [
        encoders.Scaled(1, column.name, column.mean, column.deviation, is_year=True)
        if part == "year"
        else encoders.DatePart(column.name, DATE_PARTS[part], part)
        for part in column.parts
    ]


def _vocabulary(column: Column) -> Codes:
    if column.vocabulary:
        return encoders.Vocabulary.of(column)
    return encoders.Hashed(column.name, HASH_BINS, column.data_type)


def _require(column: Column, kinds: Sequence[str], expected: str) -> None:
    if column.kind not in kinds:
        problem = f"According to COLUMN, {column.name!r} {expected}, but the data has another type."
        hint = "Remove the clause, or select another column."
        raise ConfigError(problem, received=str(column), hint=hint)


def _require_ids(column: Column, num_buckets: int) -> None:
    is_within = column.lowest >= 0 and column.highest < num_buckets
    if column.data_type == "number" or not is_within:
        raise ConfigError(
            f"According to COLUMN, {column.name!r} contains whole numbers from 0 to"
            f" {num_buckets - 1}, but the data has others.",
            received=f"{column.data_type}s from {column.lowest:g} to {column.highest:g}",
            hint="Increase num_buckets to the number of values, or use category_hash.",
        )
