"""Conversion of arrays to the bytes of one record and back; the bytes include types and shapes.

Each array is a byte with the number of its type, a byte with its number of axes, a little-endian
uint32 with the size of each axis, and the values row by row. The values of a text array are a
uint32 with the length of each text, followed by the texts.
"""

import math
import struct
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["TYPES", "decode", "encode", "text_array"]

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


def text_array(value: Any) -> Array | None:
    """Convert text to an array of `bytes` objects; None if the value is not text."""
    if isinstance(value, str | bytes):
        text = np.empty((), dtype=object)
        text[()] = value.encode() if isinstance(value, str) else value
        return text
    array = np.asarray(value)
    if array.dtype.kind not in "SU":
        return None
    encoded = array if array.dtype.kind == "S" else np.strings.encode(array, "utf-8")
    return encoded.astype(object)


def encode(arrays: Iterable[Array]) -> bytes:
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


def decode(record: bytes) -> list[Array]:
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
