"""The elements of a user's own stream as flat arrays, and the layout that all of them fit.

A tensor is known by what it offers, so that no framework is imported here: `flat_values` and
`nested_row_splits` of a ragged one, `indices` and `dense_shape` of a sparse one, `numpy` of others.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from edl_horovod.records.array_bytes import TYPES, text_array
from edl_horovod.records.layout import BYTES, Column, Layout, Part, Structure, Tensor

__all__ = ["Elements", "MisfitError"]

Array = NDArray[Any]


class MisfitError(Exception):
    """An element is not like those before it, or no tensor can hold it; says why, as a clause."""


@dataclass(frozen=True)
class _Leaf:
    """A tensor of the first element."""

    kind: Literal["dense", "ragged", "sparse"]
    path: str
    first: int
    """Number of its first array."""
    num_arrays: int


_Shape = _Leaf | tuple["_Shape", ...] | dict[str, "_Shape"]


@dataclass
class _Seen:
    """What all arrays in one place have in common so far."""

    dtype: np.dtype[Any] | None
    """None as long as all are empty: then a Python list does not say what it could hold."""
    empty_dtype: np.dtype[Any]
    shape: tuple[int | None, ...]


class Elements:
    """Takes elements apart, and remembers what they have in common."""

    def __init__(self) -> None:
        self._shape: _Shape | None = None
        self._seen: list[_Seen] = []

    def arrays(self, element: Any) -> list[Array]:
        """The arrays of an element, numbers or objects of bytes.

        Raises:
            MisfitError: It cannot become tensors, or the elements before it were other ones.
        """
        if self._shape is None:
            found: list[Array] = []
            self._shape = _shape_of(element, "", found)
            if not found:
                raise MisfitError("it is empty")
            self._seen = [_Seen(*_dtypes(array), array.shape) for array in found]
            return found
        found = list(_taken(self._shape, element))
        for leaf in _leaves(self._shape):
            for number in range(leaf.first, leaf.first + leaf.num_arrays):
                _unite(self._seen[number], found[number], leaf.path)
        return found

    def layout(self) -> Layout:
        """The layout of all elements so far, of which there must be one."""
        assert self._shape is not None
        columns: list[Column] = []
        structure = self._structure(self._shape, columns)
        return Layout(tuple(columns), structure=structure)

    def __str__(self) -> str:
        """What an element is, for people: types and shapes."""
        assert self._shape is not None
        return self._shown(self._shape)

    def _shown(self, shape: _Shape) -> str:
        if isinstance(shape, dict):
            inner = (f"{name}: {self._shown(each)}" for name, each in shape.items())
            return "{" + ", ".join(inner) + "}"
        if isinstance(shape, tuple):
            return f"({', '.join(map(self._shown, shape))})"
        # The first array of a sparse tensor holds indices.
        seen = self._seen[shape.first + (shape.kind == "sparse")]
        dtype = seen.dtype or seen.empty_dtype
        name = "text" if dtype.kind == "O" else dtype.name
        if shape.kind != "dense":
            return f"{shape.kind} {name}"
        return name + (f"{list(seen.shape)}".replace("None", "?") if seen.shape else "")

    def _structure(self, shape: _Shape, columns: list[Column]) -> Structure:
        if isinstance(shape, dict):
            return {name: self._structure(inner, columns) for name, inner in shape.items()}
        if isinstance(shape, tuple):
            return tuple(self._structure(inner, columns) for inner in shape)
        numbers = range(shape.first, shape.first + shape.num_arrays)
        parts = (self._part(number, shape.path, columns) for number in numbers)
        return Tensor(shape.kind, tuple(parts))

    def _part(self, number: int, path: str, columns: list[Column]) -> Part:
        seen = self._seen[number]
        dtype = seen.dtype or seen.empty_dtype
        name = BYTES if dtype.kind == "O" else dtype.name
        at = len(columns)
        if None not in seen.shape or len(seen.shape) == 1:
            columns.append(Column(path, name, seen.shape))
            return Part(at, seen.shape)
        columns.append(Column(path, name, (None,)))
        columns.append(Column(f"{path} (shape)", "int64", (len(seen.shape),)))
        return Part(at, seen.shape, at + 1)


def _shape_of(element: Any, path: str, found: list[Array]) -> _Shape:
    """The shape of the first element, whose arrays are added to those found."""
    if isinstance(element, dict):
        return {
            str(key): _shape_of(inner, _below(path, key), found) for key, inner in element.items()
        }
    if isinstance(element, tuple):
        return tuple(_shape_of(each, _below(path, n), found) for n, each in enumerate(element))
    kind = _kind_of(element)
    arrays = _leaf_arrays(kind, element, path)
    found += arrays
    return _Leaf(kind, path, len(found) - len(arrays), len(arrays))


def _taken(shape: _Shape, element: Any, path: str = "") -> Iterator[Array]:
    """The arrays of a further element, which must have the shape of the first."""
    if isinstance(shape, dict):
        if not isinstance(element, dict) or {str(key) for key in element} != shape.keys():
            raise _other(path, f"a dict of {', '.join(shape)}", element)
        named = {str(key): inner for key, inner in element.items()}
        for name, inner in shape.items():
            yield from _taken(inner, named[name], _below(path, name))
    elif isinstance(shape, tuple):
        if not isinstance(element, tuple) or len(element) != len(shape):
            raise _other(path, f"a tuple of {len(shape)}", element)
        for number, (inner, each) in enumerate(zip(shape, element, strict=True)):
            yield from _taken(inner, each, _below(path, number))
    else:
        if isinstance(element, dict | tuple) or _kind_of(element) != shape.kind:
            raise _other(path, f"a {shape.kind} tensor", element)
        arrays = _leaf_arrays(shape.kind, element, path)
        if len(arrays) != shape.num_arrays:
            raise _other(path, f"{shape.num_arrays - 1} ragged axes", element)
        yield from arrays


def _leaves(shape: _Shape) -> Iterator[_Leaf]:
    if isinstance(shape, _Leaf):
        yield shape
        return
    for inner in shape.values() if isinstance(shape, dict) else shape:
        yield from _leaves(inner)


def _kind_of(value: Any) -> Literal["dense", "ragged", "sparse"]:
    if hasattr(value, "nested_row_splits"):
        return "ragged"
    return "sparse" if hasattr(value, "dense_shape") else "dense"


def _leaf_arrays(kind: str, value: Any, path: str) -> list[Array]:
    if kind == "ragged":
        values: Sequence[Any] = (value.flat_values, *value.nested_row_splits)
    elif kind == "sparse":
        values = (value.indices, value.values, value.dense_shape)
    else:
        values = (value,)
    return [_array(each, path) for each in values]


def _array(value: Any, path: str) -> Array:
    value = value.numpy() if hasattr(value, "numpy") else value
    if (text := text_array(value)) is not None:
        return text
    array = np.asarray(value)
    is_plain = array.dtype.kind != "O" or all(isinstance(each, bytes) for each in array.flat)
    if not is_plain or array.dtype.name not in TYPES:
        raise MisfitError(f"{_named(path)} is a {type(value).__name__}, no array, number or text")
    return array


def _dtypes(array: Array) -> tuple[np.dtype[Any] | None, np.dtype[Any]]:
    return (array.dtype if array.size else None), array.dtype


def _unite(seen: _Seen, array: Array, path: str) -> None:
    """Widen what was seen, so that this array fits, too."""
    if array.size:
        dtype = seen.dtype or array.dtype
        if (dtype.kind == "O") != (array.dtype.kind == "O"):
            raise MisfitError(f"{_named(path)} is text in some and a number in others")
        if array.dtype != dtype:
            dtype = np.result_type(dtype, array.dtype)
        seen.dtype = dtype
    if array.shape != seen.shape:
        if array.ndim != len(seen.shape):
            raise MisfitError(
                f"{_named(path)} has {array.ndim} axes, and {len(seen.shape)} in those before it"
            )
        both = zip(seen.shape, array.shape, strict=True)
        seen.shape = tuple(size if size == other else None for size, other in both)


def _other(path: str, expected: str, element: Any) -> MisfitError:
    if isinstance(element, dict):
        found = f"a dict of {', '.join(map(str, element)) or 'nothing'}"
    elif isinstance(element, tuple):
        found = f"a tuple of {len(element)}"
    else:
        found = f"a {type(element).__name__}"
    return MisfitError(f"{_named(path)} is {found}, and {expected} in those before it")


def _below(path: str, key: object) -> str:
    return f"{path}/{key}" if path else str(key)


def _named(path: str) -> str:
    return f"its part {path!r}" if path else "it"
