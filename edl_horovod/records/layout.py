"""What a record is where it is more than bytes: its columns, and how they hang together.

This module needs no NumPy and no framework: a source says it, a framework makes tensors of it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

__all__ = ["BYTES", "Column", "Layout", "Part", "Structure", "Tensor"]

BYTES = "bytes"
"""The type of text and of bytes; a framework's string tensors."""


@dataclass(frozen=True)
class Column:
    """One part of every record."""

    name: str
    dtype: str
    """NumPy's name of the type of its elements, or `BYTES`."""
    shape: tuple[int | None, ...] = ()
    """Of one record's value; `(None,)` where records differ in length."""
    time_type: str = ""
    """NumPy's type of what its integers count, as in `datetime64[us]` (since 1970) and
    `timedelta64[ms]` (durations, times of a day); "" for all else."""

    @property
    def is_ragged(self) -> bool:
        """Whether records differ in length."""
        return self.shape == (None,)


@dataclass(frozen=True)
class Part:
    """An array of each record, as the columns hold it."""

    column: int
    """Number of the column of its values."""
    shape: tuple[int | None, ...]
    shape_column: int | None = None
    """Number of the column of its shape, where the values are one after the other: records differ
    in it, and it is no list of numbers, which needs none."""


@dataclass(frozen=True)
class Tensor:
    """One tensor of each record."""

    kind: Literal["dense", "ragged", "sparse"]
    parts: tuple[Part, ...]
    """Of a ragged tensor the values and the row splits, the outer ones first; of a sparse one the
    indices, the values and the dense shape."""

    @property
    def is_column(self) -> bool:
        """Whether its column is the tensor."""
        return self.kind == "dense" and self.parts[0].shape_column is None


Structure = Tensor | tuple["Structure", ...] | dict[str, "Structure"]
"""The tensors of a record, in tuples and dicts that may hold others."""


@dataclass(frozen=True)
class Layout:
    """The columns of a source, and what a record is made of them."""

    columns: tuple[Column, ...]
    kind: Literal["dict", "tuple", "value"] = "dict"
    """A dict by names, a tuple in this order, or the only column's value itself."""
    structure: Structure | None = None
    """What a record is instead, where it is more than that."""

    @property
    def needs_assembly(self) -> bool:
        """Whether records hold tensors that are more than a column."""
        return self.structure is not None and not _is_of_columns(self.structure)

    def pack(self, values: Sequence[Any]) -> Any:
        """One value for each column, as a record holds them.

        A tensor that is more than a column is a tuple of the values of its columns.
        """
        if self.structure is not None:
            return _packed(self.structure, values)
        if self.kind == "value":
            return values[0]
        if self.kind == "tuple":
            return tuple(values)
        return {column.name: value for column, value in zip(self.columns, values, strict=True)}


def _is_of_columns(structure: Structure) -> bool:
    if isinstance(structure, Tensor):
        return structure.is_column
    inner = structure.values() if isinstance(structure, dict) else structure
    return all(map(_is_of_columns, inner))


def _packed(structure: Structure, values: Sequence[Any]) -> Any:
    if isinstance(structure, dict):
        return {name: _packed(inner, values) for name, inner in structure.items()}
    if isinstance(structure, tuple):
        return tuple(_packed(inner, values) for inner in structure)
    if structure.is_column:
        return values[structure.parts[0].column]
    return tuple(
        values[number]
        for part in structure.parts
        for number in (part.column, part.shape_column)
        if number is not None
    )
