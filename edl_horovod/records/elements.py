"""The elements of a user's own stream as flat arrays, their common layout, and their bytes.

Tensors are recognized by their attributes, so that no framework is imported here: ragged tensors
by `flat_values` and `nested_row_splits`, sparse ones by `indices` and `dense_shape`, others by
`numpy`.

The arrays of an element become the bytes of one record, which include types and shapes. Each array
is a byte with the number of its type, a byte with its number of axes, a little-endian uint32 with
the size of each axis, and the values row by row. The values of a text array are a uint32 with the
length of each text, followed by the texts.
"""

import math
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from edl_horovod.records.columns import common_type, holds_exactly, object_array
from edl_horovod.records.layout import BYTES, Column, Layout, Part, Tensor, leaves, with_leaves

Array = NDArray[Any]

# Files store the indexes of these types, so the order must never change.
TYPES = (
    "object",
    "bool",
    *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
)
"""NumPy names of the types that an array may have."""
_NUMBER_OF = {np.dtype(name): number for number, name in enumerate(TYPES)}
_DTYPES = tuple(np.dtype(name) for name in TYPES)
_FLOAT64 = np.dtype("float64")


class MisfitError(Exception):
    """An element differs from earlier ones or cannot become tensors; the message is a clause."""


@dataclass(frozen=True)
class _Leaf:
    """A tensor of the first element."""

    kind: Literal["dense", "ragged", "sparse"]
    path: str
    first: int
    """Index of its first array."""
    num_arrays: int


_Shape = _Leaf | tuple["_Shape", ...] | dict[str, "_Shape"]


@dataclass
class _ArrayType:
    """The common type and shape of all arrays at one position of the elements so far."""

    dtype: np.dtype[Any] | None
    """None while all arrays are empty: the type of an empty Python list is unknown."""
    empty_dtype: np.dtype[Any]
    shape: tuple[int | None, ...]
    has_large_integers: bool
    """Whether float64 would round an integer so far."""


class Elements:
    """Splits elements into arrays, and records their common structure."""

    def __init__(self) -> None:
        self._shape: _Shape | None = None
        self._types: list[_ArrayType] = []

    def arrays(self, element: Any) -> list[Array]:
        """Return the arrays of an element: numbers, or `bytes` objects.

        Raises:
            MisfitError: The element cannot become tensors, or differs from earlier elements.
        """
        if self._shape is None:
            arrays: list[Array] = []
            self._shape = _shape_of(element, "", arrays)
            if not arrays:
                raise MisfitError("it is empty")
            self._types = [
                _ArrayType(
                    array.dtype if array.size else None,
                    array.dtype,
                    array.shape,
                    has_large_integers=not holds_exactly(_FLOAT64, array),
                )
                for array in arrays
            ]
            return arrays
        arrays = list(_arrays_like(self._shape, element))
        for leaf in leaves(self._shape):
            for number in range(leaf.first, leaf.first + leaf.num_arrays):
                _widen(self._types[number], arrays[number], leaf.path)
        return arrays

    def layout(self) -> Layout:
        """Return the layout of all elements so far; there must be at least one."""
        assert self._shape is not None
        columns: list[Column] = []

        def tensor(leaf: _Leaf) -> Tensor:
            numbers = range(leaf.first, leaf.first + leaf.num_arrays)
            parts = (self._part(number, leaf.path, columns) for number in numbers)
            return Tensor(leaf.kind, tuple(parts))

        structure = with_leaves(self._shape, tensor)
        return Layout(tuple(columns), structure=structure)

    def __str__(self) -> str:
        """Describe the types and shapes of an element, for messages."""
        assert self._shape is not None
        return self._type_text(self._shape)

    def _type_text(self, shape: _Shape) -> str:
        if isinstance(shape, dict):
            texts = (f"{name}: {self._type_text(inner)}" for name, inner in shape.items())
            return "{" + ", ".join(texts) + "}"
        if isinstance(shape, tuple):
            return f"({', '.join(map(self._type_text, shape))})"
        # The first array of a sparse tensor holds indices.
        array_type = self._types[shape.first + (shape.kind == "sparse")]
        dtype = array_type.dtype or array_type.empty_dtype
        name = "text" if dtype.kind == "O" else dtype.name
        if shape.kind != "dense":
            return f"{shape.kind} {name}"
        return name + (f"{list(array_type.shape)}".replace("None", "?") if array_type.shape else "")

    def _part(self, number: int, path: str, columns: list[Column]) -> Part:
        array_type = self._types[number]
        dtype = array_type.dtype or array_type.empty_dtype
        name = BYTES if dtype.kind == "O" else dtype.name
        column = len(columns)
        if None not in array_type.shape or len(array_type.shape) == 1:
            columns.append(Column(path, name, array_type.shape))
            return Part(column, array_type.shape)
        columns.append(Column(path, name, (None,)))
        columns.append(Column(f"{path} (shape)", "int64", (len(array_type.shape),)))
        return Part(column, array_type.shape, column + 1)


def text_array(value: Any) -> Array | None:
    """Convert text to an array of `bytes` objects; None if the value is not only text."""
    if isinstance(value, str | bytes):
        text = np.empty((), dtype=object)
        text[()] = _encoded(value)
        return text
    is_list = isinstance(value, list | tuple)
    if not (is_list and isinstance(_first_item(value), str | bytes)):
        array = np.asarray(value)
        if array.dtype.kind not in "SU":
            return None
        if not is_list:
            encoded = array if array.dtype.kind == "S" else np.strings.encode(array, "utf-8")
            return encoded.astype(object)
    # NumPy's own text types make text of numbers beside it, and drop zero bytes at its end.
    items = np.array(value, dtype=object)
    if not all(isinstance(item, str | bytes) for item in items.flat):
        return None
    return object_array([_encoded(item) for item in items.flat]).reshape(items.shape)


def _encoded(text: str | bytes) -> bytes:
    return text.encode() if isinstance(text, str) else text


def _first_item(value: Any) -> Any:
    """Return the first item of nested lists and tuples; an empty list or tuple if there is none."""
    while isinstance(value, list | tuple) and value:
        value = value[0]
    return value


def encode_arrays(arrays: Iterable[Array]) -> bytes:
    """Encode arrays, whose types are in `TYPES`, as one record; objects must be `bytes`."""
    parts: list[bytes] = []
    for array in arrays:
        number = _NUMBER_OF[array.dtype.newbyteorder("=")]
        parts.append(struct.pack(f"<BB{array.ndim}I", number, array.ndim, *array.shape))
        if array.dtype.kind == "O":
            texts = array.ravel().tolist()
            parts.append(struct.pack(f"<{len(texts)}I", *map(len, texts)))
            parts += texts
        else:
            parts.append(array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes())
    return b"".join(parts)


def decode_arrays(record: bytes) -> list[Array]:
    """Decode the arrays of a record; numeric arrays are read-only views of it."""
    arrays: list[Array] = []
    offset, end = 0, len(record)
    while offset < end:
        number, ndim = record[offset], record[offset + 1]
        shape = struct.unpack_from(f"<{ndim}I", record, offset + 2)
        offset += 2 + 4 * ndim
        size = math.prod(shape)
        dtype = _DTYPES[number]
        if dtype.kind == "O":
            lengths = struct.unpack_from(f"<{size}I", record, offset)
            offset += 4 * size
            texts = np.empty(size, dtype=object)
            for index, length in enumerate(lengths):
                texts[index] = record[offset : offset + length]
                offset += length
            arrays.append(texts.reshape(shape))
        else:
            values = np.frombuffer(record, dtype.newbyteorder("<"), size, offset)
            arrays.append(values.reshape(shape))
            offset += values.nbytes
    return arrays


def _shape_of(element: Any, path: str, collected: list[Array]) -> _Shape:
    """Return the shape of the first element, and append its arrays to `collected`."""
    if isinstance(element, dict):
        paths = ((key, inner, _child_path(path, key)) for key, inner in element.items())
        return {str(key): _shape_of(inner, child, collected) for key, inner, child in paths}
    if isinstance(element, tuple):
        children = ((inner, _child_path(path, index)) for index, inner in enumerate(element))
        return tuple(_shape_of(inner, child, collected) for inner, child in children)
    kind = _kind_of(element)
    leaf_arrays = _leaf_arrays(kind, element, path)
    collected += leaf_arrays
    return _Leaf(kind, path, len(collected) - len(leaf_arrays), len(leaf_arrays))


def _arrays_like(shape: _Shape, element: Any, path: str = "") -> Iterator[Array]:
    """Yield the arrays of a further element, which must have the shape of the first."""
    if isinstance(shape, dict):
        if not isinstance(element, dict) or {str(key) for key in element} != shape.keys():
            raise _misfit(path, f"a dict of {', '.join(shape)}", element)
        named = {str(key): inner for key, inner in element.items()}
        for name, inner_shape in shape.items():
            yield from _arrays_like(inner_shape, named[name], _child_path(path, name))
    elif isinstance(shape, tuple):
        if not isinstance(element, tuple) or len(element) != len(shape):
            raise _misfit(path, f"a tuple of {len(shape)}", element)
        for number, (inner_shape, inner) in enumerate(zip(shape, element, strict=True)):
            yield from _arrays_like(inner_shape, inner, _child_path(path, number))
    else:
        if isinstance(element, dict | tuple) or _kind_of(element) != shape.kind:
            raise _misfit(path, f"a {shape.kind} tensor", element)
        arrays = _leaf_arrays(shape.kind, element, path)
        if len(arrays) != shape.num_arrays:
            raise _misfit(path, f"{shape.num_arrays - 1} ragged axes", element)
        yield from arrays


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
    return [_array(leaf_value, path) for leaf_value in values]


def _array(value: Any, path: str) -> Array:
    value = value.numpy() if hasattr(value, "numpy") else value
    if (text := text_array(value)) is not None:
        return text
    array = np.asarray(value)
    is_plain = array.dtype.kind != "O" or all(isinstance(item, bytes) for item in array.flat)
    if not is_plain or array.dtype.name not in TYPES:
        kind = type(value).__name__
        raise MisfitError(f"{_part_name(path)} is a {kind}, not an array, number or text")
    return array


def _widen(common: _ArrayType, array: Array, path: str) -> None:
    """Widen the common type and shape so that they include this array."""
    if array.size:
        if not common.has_large_integers:
            common.has_large_integers = not holds_exactly(_FLOAT64, array)
        dtype = common.dtype or array.dtype
        if (dtype.kind == "O") != (array.dtype.kind == "O"):
            raise MisfitError(f"{_part_name(path)} is text in some elements and a number in others")
        if array.dtype != dtype:
            wider = common_type((dtype, array.dtype))
            if wider is None or (wider.kind in "fc" and common.has_large_integers):
                kinds = f"{array.dtype.name}, but {dtype.name} in earlier elements"
                fact = "which no common type holds exactly"
                raise MisfitError(f"{_part_name(path)} is {kinds}, {fact}")
            dtype = wider
        common.dtype = dtype
    if array.shape != common.shape:
        if array.ndim != len(common.shape):
            axes = f"{array.ndim} axes, but {len(common.shape)} in earlier elements"
            raise MisfitError(f"{_part_name(path)} has {axes}")
        sizes = zip(common.shape, array.shape, strict=True)
        common.shape = tuple(size if size == other else None for size, other in sizes)


def _misfit(path: str, expected: str, element: Any) -> MisfitError:
    actual = f"a {type(element).__name__}"
    if isinstance(element, dict):
        actual = f"a dict of {', '.join(map(str, element)) or 'nothing'}"
    elif isinstance(element, tuple):
        actual = f"a tuple of {len(element)}"
    return MisfitError(f"{_part_name(path)} is {actual}, but {expected} in earlier elements")


def _child_path(path: str, key: object) -> str:
    return f"{path}/{key}" if path else str(key)


def _part_name(path: str) -> str:
    return f"its part {path!r}" if path else "it"
