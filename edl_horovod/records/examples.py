"""Records that are serialized `tf.train.Example`s, written and read without TensorFlow.

They are protocol buffers of three levels: features by name, a typed list for each feature, and the
values of the list. A list of numbers is usually one packed run of bytes, which is cheap to read.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from edl_horovod.errors import DataError

__all__ = ["example", "read_examples", "texts_of"]

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_BYTES_LIST, _FLOAT_LIST, _INT64_LIST = 1, 2, 3
_KEY, _VALUE = 1, 2


def example(features: Mapping[str, ArrayLike | Sequence[bytes]]) -> bytes:
    """Serialize an example.

    Args:
        features: Values by name: floating-point numbers are stored as float32, integers as int64,
            and one `bytes` or a list of `bytes` unchanged. Shapes are not stored.
    """
    entries = b"".join(
        _field(1, _field(_KEY, name.encode()) + _field(_VALUE, _feature(features[name])))
        for name in sorted(features)
    )
    return _field(1, entries)


def read_examples(
    records: Sequence[bytes], shapes: Mapping[str, Sequence[int]]
) -> dict[str, NDArray[Any]]:
    """Read features of serialized examples.

    Args:
        records: Serialized examples, at least one.
        shapes: The shape of one record's values, by the name of the feature.

    Returns:
        Arrays of shape (records, ...) by feature: float32, int64, or objects for bytes.

    Raises:
        DataError: A record is not an example, lacks a feature, or has a wrong number of values.
    """
    columns: dict[str, list[Any]] = {name: [] for name in shapes}
    for record in records:
        try:
            features = {name: _values(feature) for name, feature in _features(record, shapes)}
        except (IndexError, ValueError) as error:
            raise DataError(
                "A record is not a serialized tf.train.Example.", received=f"{len(record)} bytes"
            ) from error
        for name, shape in shapes.items():
            if name not in features:
                raise DataError(
                    f"A record has no feature {name!r}.",
                    received=f"{', '.join(sorted(_names(record))) or 'none'}",
                    hint="Prepare the records with this model's own prepare function.",
                )
            values = features[name]
            if values.size != int(np.prod(shape)):
                raise DataError(
                    f"The feature {name!r} of a record does not have the shape {tuple(shape)}.",
                    received=f"{values.size} values",
                )
            columns[name].append(values.reshape(shape))
    return {name: np.stack(values) for name, values in columns.items()}


def texts_of(record: bytes) -> dict[str, bytes]:
    """Return the first value of each feature of a serialized example whose features are text.

    Raises:
        DataError: The record is not an example, or a feature holds numbers.
    """
    texts = {}
    for name, entry in _entries(record):
        kind, values = next(_fields(dict(_fields(entry)).get(_VALUE, b"")), (_BYTES_LIST, b""))
        if kind != _BYTES_LIST:
            raise DataError(
                f"The feature {name!r} of a record is not text.",
                hint="Prepare the records again with edl prepare.",
            )
        texts[name] = next((value for number, value in _fields(values) if number == 1), b"")
    return texts


def _feature(values: Any) -> bytes:
    if isinstance(values, bytes):
        values = [values]
    array = np.asarray(values) if not _are_bytes(values) else None
    if array is None:
        return _field(_BYTES_LIST, b"".join(_field(1, value) for value in values))
    flat = array.ravel()
    if flat.dtype.kind in "iub":
        return _field(_INT64_LIST, _field(1, b"".join(_varint(int(v) % (1 << 64)) for v in flat)))
    return _field(_FLOAT_LIST, _field(1, flat.astype("<f4").tobytes()))


def _are_bytes(values: Any) -> bool:
    return isinstance(values, list | tuple) and all(isinstance(value, bytes) for value in values)


def _field(number: int, payload: bytes) -> bytes:
    return _varint(number << 3 | _LENGTH) + _varint(len(payload)) + payload


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _features(record: bytes, wanted: Mapping[str, Any]) -> Iterator[tuple[str, bytes]]:
    """Yield the name and the serialized value of each wanted feature of an example."""
    for name, entry in _entries(record):
        if name in wanted:
            yield name, dict(_fields(entry)).get(_VALUE, b"")


def _names(record: bytes) -> list[str]:
    return [name for name, _ in _entries(record)]


def _entries(record: bytes) -> Iterator[tuple[str, bytes]]:
    for number, features in _fields(record):
        for inner, entry in _fields(features) if number == 1 else ():
            if inner == 1:
                yield bytes(dict(_fields(entry)).get(_KEY, b"")).decode(), entry


def _values(feature: bytes) -> NDArray[Any]:
    """Return the values of a feature as a one-dimensional array."""
    kind, values = next(_fields(feature), (_FLOAT_LIST, b""))
    if kind == _BYTES_LIST:
        texts = [value for number, value in _fields(values) if number == 1]
        array = np.empty(len(texts), object)
        array[:] = texts
        return array
    runs = [run for number, run in _fields(values) if number == 1]
    if kind == _FLOAT_LIST:
        return np.frombuffer(b"".join(runs), "<f4")
    return np.array([number for run in runs for number in _varints(run)], np.int64)


def _fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the number and the payload of each field; the payload of a varint is its bytes."""
    offset = 0
    while offset < len(message):
        tag, offset = _read_varint(message, offset)
        number, kind = tag >> 3, tag & 7
        if kind == _LENGTH:
            length, offset = _read_varint(message, offset)
            end = offset + length
        elif kind == _VARINT:
            _, end = _read_varint(message, offset)
        elif kind in (_FIXED32, _FIXED64):
            end = offset + (4 if kind == _FIXED32 else 8)
        else:
            raise ValueError(f"a field of kind {kind}")
        if end > len(message):
            raise ValueError("a field that goes beyond the end")
        yield number, message[offset:end]
        offset = end


def _varints(run: bytes) -> Iterator[int]:
    offset = 0
    while offset < len(run):
        value, offset = _read_varint(run, offset)
        yield value - (1 << 64) if value >> 63 else value


def _read_varint(message: bytes, offset: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[offset]
        value |= (byte & 0x7F) << shift
        offset, shift = offset + 1, shift + 7
        if byte < 0x80:
            return value, offset
