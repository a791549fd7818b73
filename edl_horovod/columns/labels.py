"""The column that a model learns: a number, or one of some classes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from edl_horovod.columns.infer import Column
from edl_horovod.columns.typed import Array, keys_of
from edl_horovod.errors import DataError

__all__ = ["Classes", "classes_of", "require_number"]

MAX_CLASSES = 1000
_SHOWN = 10


@dataclass(frozen=True)
class Classes:
    """The classes of a label, in the order of a classifier's probabilities."""

    name: str
    """The label."""
    values: tuple[str | int | bool, ...]
    """As the data have them: texts, whole numbers or booleans."""
    counts: tuple[int, ...]
    """Rows of the training, by class."""

    def encode(self, cells: Array) -> NDArray[np.int64]:
        """The numbers of the classes of some rows, shape (rows,).

        Raises:
            DataError: A row has a class that the training did not have.
        """
        numbers = {key: number for number, key in enumerate(map(str, self.values))}
        keys = keys_of(_as_classes(cells))
        found = np.fromiter((numbers.get(key, -1) for key in keys), np.int64, len(keys))
        if (found < 0).any():
            raise DataError(
                f"The label {self.name!r} has a class that the training did not have.",
                received=repr(keys[int(np.argmin(found))]),
                cure=f"Its classes are {_listed(self.values)}. Leave such rows out.",
            )
        return found

    def weights(self) -> NDArray[np.float32]:
        """Weights that make all classes count the same, shape (classes,); their mean is 1."""
        counts = np.asarray(self.counts, np.float64)
        weights: NDArray[np.float64] = counts.sum() / (len(counts) * counts)
        return weights.astype(np.float32)

    def to_json(self) -> dict[str, Any]:
        """The classes as plain values."""
        return {"name": self.name, "values": list(self.values), "counts": list(self.counts)}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Self:
        """The classes that `to_json` gave."""
        return cls(found["name"], tuple(found["values"]), tuple(found["counts"]))


def classes_of(column: Column, counts: Mapping[str, int]) -> Classes:
    """The classes of a label, sorted.

    Args:
        column: The label.
        counts: How many rows have each of its values, by their texts.

    Raises:
        DataError: The label has one value only, too many, or numbers that are not whole.
    """
    values: list[str | int | bool]
    if column.data_type == "boolean":
        values = [value for value in (False, True) if str(value) in counts]
    elif column.data_type == "integer":
        values = sorted(map(int, counts))
    elif column.data_type in ("text", "cells"):
        values = sorted(counts)
    else:
        raise DataError(
            f"The label {column.name!r} of a classifier must hold texts, whole numbers or"
            " booleans.",
            received=str(column),
            cure="Take a model that is a regressor, or cast the label in the SELECT.",
        )
    if not 1 < len(values) <= MAX_CLASSES:
        raise DataError(
            f"The label {column.name!r} of a classifier must have 2 to {MAX_CLASSES:,} values.",
            received=f"{len(values):,} values: {_listed(values)}",
            cure="Take a regressor for a number, or select a label of fewer values.",
        )
    return Classes(column.name, tuple(values), tuple(counts[str(value)] for value in values))


def require_number(column: Column) -> None:
    """Refuse a label that is no number, or is empty somewhere.

    Raises:
        DataError: It is one.
    """
    if column.kind != "number":
        raise DataError(
            f"The label {column.name!r} of a regressor must be a number.",
            received=str(column),
            cure="Take a classifier, or select another label.",
        )
    require_filled(column)


def require_filled(column: Column) -> None:
    """Refuse a label that is empty somewhere.

    Raises:
        DataError: It is one.
    """
    if column.num_empty:
        row = (column.first_empty or 0) + 1
        raise DataError(
            f"The label {column.name!r} is empty in row {row}.",
            received=f"{column.num_empty:,} of {column.num_rows:,} rows",
            cure="Leave such rows out: WHERE the label IS NOT NULL.",
        )


def _as_classes(cells: Array) -> Array:
    """A database gives the whole numbers of a column with empty cells as floats."""
    if cells.dtype.kind == "f" and (cells == np.floor(cells)).all():
        return cells.astype(np.int64)
    return cells


def _listed(values: Sequence[object]) -> str:
    shown = ", ".join(map(repr, values[:_SHOWN]))
    return f"{shown}, ..." if len(values) > _SHOWN else shown
