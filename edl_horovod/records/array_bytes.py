"""Arrays as the bytes of one record, and back: each says its type and shape itself.

For each array: a byte with the number of its type, a byte with the number of its axes, a
little-endian uint32 for each of these, then the values row by row; of text a uint32 with the length
of each, and then the texts.
"""

import math
import struct
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["TYPES", "decode", "encode", "text_array"]

Array = NDArray[Any]

# The order is that of the files: it never changes.
TYPES = (
    "object",
    "bool",
    *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
)
"""NumPy's names of the types that an array may have."""
_NUMBER_OF = {np.dtype(name): number for number, name in enumerate(TYPES)}
_DTYPES = tuple(np.dtype(name) for name in TYPES)


def text_array(value: Any) -> Array | None:
    """Text as an array of bytes, one of `TYPES`; None for what is none."""
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
    """The arrays, each of one of `TYPES`, as one record; objects are bytes."""
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
    """The arrays of a record; those of numbers are read-only."""
    found: list[Array] = []
    at, end = 0, len(record)
    while at < end:
        number, ndim = record[at], record[at + 1]
        shape = struct.unpack_from(f"<{ndim}I", record, at + 2)
        at += 2 + 4 * ndim
        size = math.prod(shape)
        dtype = _DTYPES[number]
        if dtype.kind == "O":
            lengths = struct.unpack_from(f"<{size}I", record, at)
            at += 4 * size
            texts = np.empty(size, dtype=object)
            for place, length in enumerate(lengths):
                texts[place] = record[at : at + length]
                at += length
            found.append(texts.reshape(shape))
        else:
            values = np.frombuffer(record, dtype.newbyteorder("<"), size, at)
            found.append(values.reshape(shape))
            at += values.nbytes
    return found
