"""What a record is where it is more than bytes: its columns, and how they hang together.

This module needs no NumPy and no framework: a source says it, a framework makes tensors of it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

__all__ = ["BYTES", "Column", "Layout"]

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

    @property
    def is_ragged(self) -> bool:
        """Whether records differ in length."""
        return self.shape == (None,)


@dataclass(frozen=True)
class Layout:
    """The columns of a source, and what a record is made of them."""

    columns: tuple[Column, ...]
    kind: Literal["dict", "tuple", "value"] = "dict"
    """A dict by names, a tuple in this order, or the only column's value itself."""

    def pack(self, values: Sequence[Any]) -> Any:
        """One value for each column, as a record holds them."""
        if self.kind == "value":
            return values[0]
        if self.kind == "tuple":
            return tuple(values)
        return {column.name: value for column, value in zip(self.columns, values, strict=True)}
