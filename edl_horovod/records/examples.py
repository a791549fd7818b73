"""Records that are serialized `tf.train.Example`s, written and read without TensorFlow.

They are protocol buffers of three levels: features by name, a list of one kind for each, and its
values. Lists of numbers are one run of bytes mostly, so reading costs little more than finding it.
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
    """A serialized example.

    Args:
        features: Values by name: floating-point numbers are kept as float32, whole numbers as
            int64, and bytes, one or a list of them, as they are. Shapes are not kept.
    """
    entries = b"".join(
        _field(1, _field(_KEY, name.encode()) + _field(_VALUE, _feature(features[name])))
        for name in sorted(features)
    )
    return _field(1, entries)


def read_examples(
    records: Sequence[bytes], shapes: Mapping[str, Sequence[int]]
) -> dict[str, NDArray[Any]]:
    """Some features of serialized examples.

    Args:
        records: At least one.
        shapes: The shape of one record's values, by the name of the feature.

    Returns:
        By name, arrays of shape (records, ...): float32, int64, or objects for bytes.

    Raises:
        DataError: A record is no example, lacks a feature, or has another number of values.
    """
    columns: dict[str, list[Any]] = {name: [] for name in shapes}
    for record in records:
        try:
            found = {name: _values(feature) for name, feature in _features(record, shapes)}
        except (IndexError, ValueError) as error:
            raise DataError(
                "A record is no serialized tf.train.Example.", received=f"{len(record)} bytes"
            ) from error
        for name, shape in shapes.items():
            if name not in found:
                raise DataError(
                    f"A record has no feature {name!r}.",
                    received=f"{', '.join(sorted(_names(record))) or 'none'}",
                    cure="Prepare the records with the function of this model.",
                )
            values = found[name]
            if values.size != int(np.prod(shape)):
                raise DataError(
                    f"The feature {name!r} of a record does not have the shape {tuple(shape)}.",
                    received=f"{values.size} values",
                )
            columns[name].append(values.reshape(shape))
    return {name: np.stack(values) for name, values in columns.items()}


def texts_of(record: bytes) -> dict[str, bytes]:
    """The first value of each feature of a serialized example, which all hold texts.

    Raises:
        DataError: It is no example, or a feature holds numbers.
    """
    found = {}
    for name, entry in _entries(record):
        kind, values = next(_fields(dict(_fields(entry)).get(_VALUE, b"")), (_BYTES_LIST, b""))
        if kind != _BYTES_LIST:
            raise DataError(
                f"The feature {name!r} of a record is no text.",
                cure="Prepare the records again with edl prepare.",
            )
        found[name] = next((value for number, value in _fields(values) if number == 1), b"")
    return found


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
    return isinstance(values, list | tuple) and all(isinstance(each, bytes) for each in values)


def _field(number: int, payload: bytes) -> bytes:
    return _varint(number << 3 | _LENGTH) + _varint(len(payload)) + payload


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _features(record: bytes, wanted: Mapping[str, Any]) -> Iterator[tuple[str, bytes]]:
    """The wanted features of an example, by name, as they are serialized."""
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
    """The values of a feature, one row of them."""
    kind, values = next(_fields(feature), (_FLOAT_LIST, b""))
    if kind == _BYTES_LIST:
        found = [value for number, value in _fields(values) if number == 1]
        array = np.empty(len(found), object)
        array[:] = found
        return array
    runs = [run for number, run in _fields(values) if number == 1]
    if kind == _FLOAT_LIST:
        return np.frombuffer(b"".join(runs), "<f4")
    return np.array([number for run in runs for number in _varints(run)], np.int64)


def _fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """The fields of a message: their numbers and what they hold; a single varint as its bytes."""
    place = 0
    while place < len(message):
        tag, place = _read_varint(message, place)
        number, kind = tag >> 3, tag & 7
        if kind == _LENGTH:
            length, place = _read_varint(message, place)
            end = place + length
        elif kind == _VARINT:
            _, end = _read_varint(message, place)
        elif kind in (_FIXED32, _FIXED64):
            end = place + (4 if kind == _FIXED32 else 8)
        else:
            raise ValueError(f"a field of kind {kind}")
        if end > len(message):
            raise ValueError("a field that goes beyond the end")
        yield number, message[place:end]
        place = end


def _varints(run: bytes) -> Iterator[int]:
    place = 0
    while place < len(run):
        value, place = _read_varint(run, place)
        yield value - (1 << 64) if value >> 63 else value


def _read_varint(message: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[place]
        value |= (byte & 0x7F) << shift
        place, shift = place + 1, shift + 7
        if byte < 0x80:
            return value, place
