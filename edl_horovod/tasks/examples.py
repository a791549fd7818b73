"""A model's outputs as tf.Example records, and the schema that tells others how to read them.

The records are made as bytes, a batch at a time: a `tf.train.Example` object for each of them would
cost more than a small model.
"""

import functools
import logging
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from edl_horovod.errors import UserCodeError
from edl_horovod.frameworks.values import Output

log = logging.getLogger(__name__)

ID_FEATURE = "id"
_LISTS = {"bytes_list": b"\x0a", "float_list": b"\x12", "int64_list": b"\x1a"}
"""The fields of tf.train.Feature by name, with their tags."""
_LIST_OF_DTYPE = {
    **dict.fromkeys(("float16", "bfloat16", "float32", "float64"), "float_list"),
    **dict.fromkeys(("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32"), "int64_list"),
    "bool": "int64_list",
    "string": "bytes_list",
}
# The first field of a message, of bytes: all that is nested in a tf.Example.
_FIELD_1, _FIELD_2 = b"\x0a", b"\x12"
_MOST_VARINT_BYTES = 10


def require_encodable(outputs: Iterable[Output], *, model: str) -> None:
    """Check that records can hold a model's outputs.

    Raises:
        UserCodeError: Records cannot hold one of them.
    """
    for output in outputs:
        if why := output.problem or _why_not(output):
            shape = "" if output.problem else f" of shape {output.batch_shape}"
            raise UserCodeError(
                f"The output {output.name!r} of {model} cannot be written to records: {why}.",
                received=f"{output.dtype}{shape}",
                hint="Have the model return another tensor in mode prediction, or take the outputs"
                " with a PredictionOutputsProcessor and leave output empty.",
            )
        if output.dtype == "float64":
            log.warning(
                "The output %r of %s is float64; records hold it as float32.", output.name, model
            )


def _why_not(output: Output) -> str:
    if output.name == ID_FEATURE:
        return f"{ID_FEATURE!r} is the record's number"
    if output.dtype not in _LIST_OF_DTYPE:
        return "tf.Example has no such values"
    if not output.batch_shape:
        return "its first axis must be the batch"
    if output.shape.count(None) > 1:
        return "only one axis beside the batch may differ in size"
    return ""


class ExampleEncoder:
    """Turns batches of outputs into serialized tf.Examples, as protobuf itself writes them."""

    def __init__(self, outputs: tuple[Output, ...]) -> None:
        self._outputs = outputs

    def schema(self, num_records: int) -> dict[str, Any]:
        """What readers in any language need to know, for JSON."""
        number = Output(name=ID_FEATURE, dtype="int64", batch_shape=(None,))
        features = {
            output.name: {
                "dtype": output.dtype,
                "shape": list(output.shape),
                "list": _LIST_OF_DTYPE[output.dtype],
            }
            for output in (number, *self._outputs)
        }
        return {
            "container": "recordio",
            "record": "tf.train.Example",
            "num_records": num_records,
            "features": features,
        }

    def encode(
        self, ids: npt.NDArray[np.int64], arrays: Mapping[str, npt.NDArray[Any]]
    ) -> list[bytes]:
        """One serialized record for each id.

        Args:
            ids: The records' numbers, shape (records,).
            arrays: The outputs for them, by name.

        Raises:
            UserCodeError: An output does not hold one value a record.
        """
        columns = {ID_FEATURE: _int64_entries(ID_FEATURE, ids[:, np.newaxis])}
        for output in self._outputs:
            array = arrays[output.name]
            if array.shape[:1] != ids.shape:
                raise UserCodeError(
                    f"The output {output.name!r} of the model must hold one value a record.",
                    received=f"shape {array.shape} for {len(ids)} records",
                    hint="Reduce it over the other axes only.",
                )
            columns[output.name] = _entries(output, array)
        # Maps have no order of their own; sorted ones make equal files of equal outputs.
        bodies = map(b"".join, zip(*(columns[name] for name in sorted(columns)), strict=True))
        return [_field_1_head(len(body)) + body for body in bodies]


def _entries(output: Output, array: npt.NDArray[Any]) -> list[bytes]:
    """One entry of tf.train.Features for each row."""
    values = array.reshape(len(array), int(np.prod(array.shape[1:])))
    if _LIST_OF_DTYPE[output.dtype] == "float_list":
        return _float_entries(output.name, values)
    if _LIST_OF_DTYPE[output.dtype] == "int64_list":
        return _int64_entries(output.name, values)
    return [
        _head(output.name, "bytes_list", len(items)) + items
        for row in values.tolist()
        for items in [b"".join(_field_1_head(len(item)) + item for item in row)]
    ]


def _float_entries(name: str, values: npt.NDArray[Any]) -> list[bytes]:
    packed = np.ascontiguousarray(values, "<f4").view(np.uint8)
    num_bytes = np.full(len(packed), packed.shape[1])
    return _packed_entries(name, "float_list", packed.ravel(), num_bytes)


def _int64_entries(name: str, values: npt.NDArray[Any]) -> list[bytes]:
    """Varints: seven bits a byte, lowest first, the top bit set in all but the last byte."""
    # Negative numbers are those above 2**63, as protobuf has it.
    flat = values.astype(np.int64).astype(np.uint64).ravel()
    shifts = np.arange(0, 7 * _MOST_VARINT_BYTES, 7, dtype=np.uint64)
    shifted = flat[:, np.newaxis] >> shifts
    lengths = np.maximum(1, (shifted > 0).sum(axis=1))
    places = np.arange(_MOST_VARINT_BYTES)
    continued = (places < lengths[:, np.newaxis] - 1).astype(np.uint8) << 7
    digits = (shifted & np.uint64(0x7F)).astype(np.uint8) | continued
    varints = digits[places < lengths[:, np.newaxis]]
    num_bytes = lengths.reshape(values.shape).sum(axis=1)
    return _packed_entries(name, "int64_list", varints, num_bytes)


def _packed_entries(
    name: str, list_name: str, values: npt.NDArray[np.uint8], num_bytes: npt.NDArray[np.int64]
) -> list[bytes]:
    """One entry for each row; rows of equal size, mostly all, are made together.

    Args:
        name: The name of the feature.
        list_name: The list of tf.train.Feature that holds the values.
        values: Bytes of all rows' values, back to back.
        num_bytes: The size of each row's values, shape (rows,).
    """
    entries = np.empty(len(num_bytes), object)
    starts = np.cumsum(num_bytes) - num_bytes
    for width in np.unique(num_bytes).tolist():
        chosen = np.flatnonzero(num_bytes == width)
        head = np.frombuffer(_packed_head(name, list_name, width), np.uint8)
        rows = np.empty((len(chosen), len(head) + width), np.uint8)
        rows[:, : len(head)] = head
        if len(chosen) == len(num_bytes):
            rows[:, len(head) :] = values.reshape(len(rows), width)
        else:
            rows[:, len(head) :] = values[starts[chosen, np.newaxis] + np.arange(width)]
        entries[chosen] = rows.view(f"V{rows.shape[1]}")[:, 0]
    encoded: list[bytes] = entries.tolist()
    return encoded


# What stands before a record's values differs with their length alone, so it is made once.
@functools.lru_cache(maxsize=4096)
def _field_1_head(num_bytes: int) -> bytes:
    return _FIELD_1 + _varint(num_bytes)


@functools.lru_cache(maxsize=4096)
def _packed_head(name: str, list_name: str, num_bytes: int) -> bytes:
    """What stands before packed values of a list; protobuf leaves an empty list out."""
    if not num_bytes:
        return _head(name, list_name, 0)
    length = _field_1_head(num_bytes)
    return _head(name, list_name, len(length) + num_bytes) + length


def _head(name: str, list_name: str, num_bytes: int) -> bytes:
    """What stands before a list of so many bytes: map entry, key, feature, list."""
    before_list, encoded = _LISTS[list_name] + _varint(num_bytes), name.encode()
    feature_bytes = len(before_list) + num_bytes
    key = _field_1_head(len(encoded)) + encoded + _FIELD_2 + _varint(feature_bytes)
    return _FIELD_1 + _varint(len(key) + feature_bytes) + key + before_list


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])
