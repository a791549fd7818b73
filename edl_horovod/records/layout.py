"""The structure of records with columns.

A source describes its records by a layout, and a framework builds tensors from it. This module
imports neither NumPy nor a framework.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self

from edl_horovod.errors import ConfigError, DataError, did_you_mean

BYTES = "bytes"
"""The type of text and bytes, which become string tensors."""


@dataclass(frozen=True)
class Column:
    """A column: one value of every record."""

    name: str
    dtype: str
    """The NumPy name of the type of its elements, or `BYTES`."""
    shape: tuple[int | None, ...] = ()
    """The shape of one record's value; `(None,)` if records differ in length."""
    time_type: str = ""
    """The NumPy type of dates and times that are stored as integers: `datetime64[us]` (since 1970)
    or `timedelta64[ms]` (durations, times of day), for example; "" for other columns."""
    classes: tuple[str, ...] = ()
    """The names of the classes that are stored as the numbers 0, 1, ...; () for other columns."""

    @classmethod
    def from_dict(cls, saved: dict[str, Any]) -> Self:
        """Return the column with these fields, as `dataclasses.asdict` returned them."""
        names = tuple(saved.get("classes", ()))
        return cls(**saved | {"shape": tuple(saved["shape"]), "classes": names})

    @property
    def is_ragged(self) -> bool:
        """Whether records differ in length."""
        return self.shape == (None,)


def selected_columns(
    selected: Sequence[str], names: Iterable[str], *, holder: str, noun: str = "column"
) -> list[str]:
    """Return the names that `data_plan.columns` selects; all of them if it selects none.

    Args:
        selected: The setting.
        names: The names that there are.
        holder: What has them, for the message.
        noun: What a name stands for.

    Raises:
        ConfigError: A selected name does not exist.
    """
    known = list(names)
    for name in selected:
        if name not in known:
            raise ConfigError(
                f"{holder} has no {noun} {name!r}.",
                received={"data_plan.columns": ",".join(selected)},
                hint=f"Its {noun}s are {', '.join(known)}.{did_you_mean(name, known)}",
            )
    return list(selected) or known


def column_error(name: str, path: str, fact: str, alternatives: str) -> DataError:
    """Return the error for a column that cannot become tensors.

    Args:
        name: Name of the column.
        path: The file of the column.
        fact: A clause that says why it cannot.
        alternatives: What else it can be written as.
    """
    hint = "Select other columns with data_plan.columns=[...], or write it as"
    return DataError(
        f"The column {name!r} of {path} cannot become tensors: {fact}.",
        received={"path": path},
        hint=f"{hint} {alternatives}.",
    )


def empty_values(count: int, kind: str, location: str, path: str) -> DataError:
    """Return the error for empty values in a column that cannot represent them.

    Args:
        count: Number of the values.
        kind: What their format calls them: null or NaT.
        location: The column and its file, for the message.
        path: The file.
    """
    subject = "is 1 empty value" if count == 1 else f"are {count:,} empty values"
    return DataError(
        f"There {subject} ({kind}) in {location}, which a tensor cannot represent.",
        received={"path": path},
        hint="Fill them when the file is written, or select other columns with"
        " data_plan.columns=[...].",
    )


@dataclass(frozen=True)
class Part:
    """An array of each record, and the columns that store it."""

    column: int
    """Index of the column with its values."""
    shape: tuple[int | None, ...]
    shape_column: int | None = None
    """Index of the column with its shape. Set if the shape differs between records and the array
    has more than one axis; its values are then stored flat."""


@dataclass(frozen=True)
class Tensor:
    """A tensor of each record."""

    kind: Literal["dense", "ragged", "sparse"]
    parts: tuple[Part, ...]
    """For a ragged tensor: the values and the row splits, outermost first. For a sparse tensor: the
    indices, the values and the dense shape."""

    @property
    def is_column(self) -> bool:
        """Whether the tensor is simply the value of one column."""
        return self.kind == "dense" and self.parts[0].shape_column is None


Structure = Tensor | tuple["Structure", ...] | dict[str, "Structure"]
"""The tensors of a record, in nested tuples and dicts."""


@dataclass(frozen=True)
class Layout:
    """The columns of a source, and how a record is assembled from them."""

    columns: tuple[Column, ...]
    kind: Literal["dict", "tuple", "value"] = "dict"
    """A record is a dict by column name, a tuple in column order, or the value of one column."""
    structure: Structure | None = None
    """The structure of a record; overrides `kind` if it is set."""

    @property
    def needs_assembly(self) -> bool:
        """Whether records have tensors that are assembled from several columns."""
        tensors = leaves(self.structure) if self.structure is not None else ()
        return not all(tensor.is_column for tensor in tensors)

    def pack(self, values: Sequence[Any]) -> Any:
        """Arrange one value for each column in the structure of a record.

        A tensor with several columns is represented by a tuple of their values.
        """
        if self.structure is not None:
            return with_leaves(self.structure, lambda tensor: _packed(tensor, values))
        if self.kind == "value":
            return values[0]
        if self.kind == "tuple":
            return tuple(values)
        return {column.name: value for column, value in zip(self.columns, values, strict=True)}


def leaves(tree: Any) -> Iterator[Any]:
    """Yield what nested tuples and dicts contain, in order."""
    if not isinstance(tree, dict | tuple):
        yield tree
        return
    for inner in tree.values() if isinstance(tree, dict) else tree:
        yield from leaves(inner)


def with_leaves(tree: Any, change: Callable[[Any], Any]) -> Any:
    """Return nested tuples and dicts with the results of `change` in place of their leaves."""
    if isinstance(tree, dict):
        return {name: with_leaves(inner, change) for name, inner in tree.items()}
    if isinstance(tree, tuple):
        return tuple(with_leaves(inner, change) for inner in tree)
    return change(tree)


def _packed(tensor: Tensor, values: Sequence[Any]) -> Any:
    if tensor.is_column:
        return values[tensor.parts[0].column]
    return tuple(
        values[number]
        for part in tensor.parts
        for number in (part.column, part.shape_column)
        if number is not None
    )
