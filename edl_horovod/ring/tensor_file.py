"""Named tensors in one file, whole and unchanged or refused: the safetensors format, and a digest.

The format is eight bytes of length, a JSON header, and the tensors' bytes; it holds no program. Any
reader of safetensors can open the file. The digest stands in the header's metadata and covers
everything else: the rest of the header and all data. Tensors of types that not every reader knows,
as complex ones and those of 8 bits, are rows of bytes, and the metadata names their types.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edl_horovod.files import whole_file
from edl_horovod.files.safetensors_header import LENGTH_BYTES, METADATA

__all__ = ["DamagedFile", "read_tensors", "write_tensors"]

_DTYPES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint64": "U64",
    "uint32": "U32",
    "uint16": "U16",
    "uint8": "U8",
    "bool": "BOOL",
}
_NAMES = {code: name for name, code in _DTYPES.items()}
_DIGEST = "sha256"
_TYPES_OF_BYTES = "types_of_bytes"
"""In the metadata: the types of the tensors that are there as bytes, by name."""
_ALIGNMENT = 8


class DamagedFile(Exception):
    """The file is cut off, or its bytes are not those that were written."""


def write_tensors(
    path: Path, tensors: Mapping[str, NDArray[Any]], metadata: Mapping[str, str]
) -> int:
    """Write a file that appears whole, and is on the disk, or not at all.

    The large parts (hashing, writing) leave Python's lock to other threads.

    Args:
        path: Replaced if it is there.
        tensors: By name; on a little-endian machine, as all are that TensorFlow runs on.
        metadata: Stands in the header.

    Returns:
        The file's size in bytes.

    Raises:
        OSError: It cannot be written; what was there before is still there.
    """
    # The widest first, so that each begins where its type may begin.
    widest = sorted(tensors.items(), key=lambda item: -item[1].dtype.itemsize)
    arrays = {name: np.asarray(array, order="C") for name, array in widest}
    of_bytes = {name: a.dtype.name for name, a in arrays.items() if a.dtype.name not in _DTYPES}
    for name in of_bytes:
        arrays[name] = arrays[name][..., np.newaxis].view(np.uint8)
    types = {_TYPES_OF_BYTES: json.dumps(of_bytes)} if of_bytes else {}
    header = _header(arrays, {**metadata, **types})
    data = [array.reshape(-1).view(np.uint8).data for array in arrays.values()]
    header[METADATA][_DIGEST] = _digest(header, data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    parts: list[bytes | memoryview] = [len(text).to_bytes(LENGTH_BYTES, "little"), text, *data]
    whole_file.write_bytes(path, parts)
    return sum(len(part) for part in parts)


def read_tensors(path: Path) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    """Read and check a file.

    Returns:
        The tensors by name, read-only, and the metadata.

    Raises:
        OSError: It cannot be read.
        DamagedFile: It is not what was written.
    """
    content = memoryview(path.read_bytes())
    start = LENGTH_BYTES + int.from_bytes(content[:LENGTH_BYTES], "little")
    if len(content) < start:
        raise DamagedFile("it is cut off")
    try:
        header = json.loads(bytes(content[LENGTH_BYTES:start]))
        digest = header[METADATA].pop(_DIGEST)
        if digest != _digest(header, [content[start:]]):
            raise DamagedFile("its digest does not fit its content, or it is cut off")
        metadata = header.pop(METADATA)
        tensors = {name: _array(content[start:], entry) for name, entry in header.items()}
        for name, dtype in json.loads(metadata.pop(_TYPES_OF_BYTES, "{}")).items():
            tensors[name] = tensors[name].view(np.dtype(dtype))[..., 0]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedFile(f"its header cannot be read: {error!r}") from error
    return tensors, metadata


def _header(arrays: Mapping[str, NDArray[Any]], metadata: Mapping[str, str]) -> dict[str, Any]:
    header: dict[str, Any] = {METADATA: dict(metadata)}
    end = 0
    for name, array in arrays.items():
        start, end = end, end + array.nbytes
        header[name] = {
            "dtype": _DTYPES[array.dtype.name],
            "shape": list(array.shape),
            "data_offsets": [start, end],
        }
    return header


def _digest(header: Mapping[str, Any], data: Iterable[memoryview]) -> str:
    hashed = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    for part in data:
        hashed.update(part)
    return hashed.hexdigest()


def _array(data: memoryview, entry: Mapping[str, Any]) -> NDArray[Any]:
    import ml_dtypes  # noqa: F401  Makes bfloat16 known to NumPy.

    start, end = entry["data_offsets"]
    flat = np.frombuffer(data[start:end], dtype=np.dtype(_NAMES[entry["dtype"]]))
    return flat.reshape(entry["shape"])
