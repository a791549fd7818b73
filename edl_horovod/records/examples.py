"""Records that are serialized `tf.train.Example`s, written and read without TensorFlow."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import ArrayLike, NDArray

from edl_horovod.errors import DataError
from edl_horovod.proto.example_pb2 import BytesList, Example, Feature
from edl_horovod.records.columns import object_array

__all__ = ["example", "read_examples", "texts_of"]


def example(features: Mapping[str, ArrayLike | Sequence[bytes]]) -> bytes:
    """Serialize an example.

    Args:
        features: Values by name: floating-point numbers are stored as float32, integers as int64,
            and one `bytes` or a list of `bytes` unchanged. Shapes are not stored.
    """
    message = Example()
    message.features.SetInParent()
    for name, values in features.items():
        _fill(message.features.feature[name], values)
    return message.SerializeToString(deterministic=True)


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
        features = _features(record)
        for name, shape in shapes.items():
            if name not in features:
                problem = f"A record has no feature {name!r}."
                hint = "Prepare the records with this model's own prepare function."
                raise DataError(problem, received=", ".join(sorted(features)) or "none", hint=hint)
            values = _values(features[name])
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
    features = _features(record)
    for name, feature in features.items():
        if feature.WhichOneof("kind") not in ("bytes_list", None):
            problem = f"The feature {name!r} of a record is not text."
            raise DataError(problem, hint="Prepare the records again with edl prepare.")
    return {name: next(iter(features[name].bytes_list.value), b"") for name in sorted(features)}


def _fill(feature: Feature, values: Any) -> None:
    """Set the values in place: to copy a long field takes many times as long."""
    if isinstance(values, bytes):
        values = [values]
    if isinstance(values, list | tuple) and all(isinstance(value, bytes) for value in values):
        feature.bytes_list.SetInParent()
        feature.bytes_list.value.extend(values)
        return
    flat = np.asarray(values).ravel()
    if flat.dtype.kind in "iub":
        feature.int64_list.SetInParent()
        feature.int64_list.value.extend(flat.astype(np.int64).tolist())
        return
    # Packed numbers are encoded like one value of bytes: no Python object for each number.
    packed = BytesList(value=[flat.astype("<f4").tobytes()]).SerializeToString()
    feature.float_list.SetInParent()
    feature.float_list.MergeFromString(packed)


def _features(record: bytes) -> Mapping[str, Feature]:
    try:
        return Example.FromString(record).features.feature
    except DecodeError as error:
        problem = "A record is not a serialized tf.train.Example."
        raise DataError(problem, received=f"{len(record)} bytes") from error


def _values(feature: Feature) -> NDArray[Any]:
    """Return the values of a feature as a one-dimensional array."""
    if feature.HasField("bytes_list"):
        return object_array(feature.bytes_list.value)
    if feature.HasField("int64_list"):
        numbers = feature.int64_list.value
        return np.fromiter(numbers, np.int64, len(numbers))
    # They are one run of bytes at the end: no Python object for each number.
    packed, count = feature.float_list.SerializeToString(), len(feature.float_list.value)
    return np.frombuffer(packed, "<f4", count, len(packed) - 4 * count)
