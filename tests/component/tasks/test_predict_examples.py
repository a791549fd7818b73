"""The bytes of prediction records: what protobuf writes, and what TensorFlow reads back."""

from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl_horovod.errors import UserCodeError
from edl_horovod.frameworks.values import Output, flatten_outputs
from edl_horovod.tasks.examples import ExampleEncoder, require_encodable
from tests.later import LATER, later

if LATER:
    import tensorflow as tf

    from edl_horovod.frameworks.keras.model import describe_outputs

Pair = namedtuple("Pair", ["mean", "scale"])


def described(outputs: Any) -> tuple[Output, ...]:
    outputs = describe_outputs(outputs)
    require_encodable(outputs, model="M")
    return outputs


def arrays_of(outputs: Any) -> dict[str, np.ndarray]:
    return {name: value.numpy() for name, value in flatten_outputs(outputs).items()}


def encode(outputs: Any, ids: list[int] | None = None) -> list[bytes]:
    tensors = tf.nest.map_structure(tf.convert_to_tensor, outputs)
    number = len(tf.nest.flatten(tensors)[0])
    encoder = ExampleEncoder(described(tensors))
    return encoder.encode(np.array(ids or range(number), np.int64), arrays_of(tensors))


def by_protobuf(record_id: int, **features: list[Any]) -> bytes:
    """The record as protobuf's own classes make it."""
    encoded = {"id": tf.train.Feature(int64_list=tf.train.Int64List(value=[record_id]))}
    for name, values in features.items():
        if values and isinstance(values[0], bytes):
            encoded[name] = tf.train.Feature(bytes_list=tf.train.BytesList(value=values))
        elif values and isinstance(values[0], int):
            encoded[name] = tf.train.Feature(int64_list=tf.train.Int64List(value=values))
        else:
            encoded[name] = tf.train.Feature(float_list=tf.train.FloatList(value=values))
    example = tf.train.Example(features=tf.train.Features(feature=encoded))
    return example.SerializeToString(deterministic=True)


@dataclass(frozen=True)
class Case:
    name: str
    array: np.ndarray
    values: list[list[Any]]
    """The values of each record, as protobuf takes them."""


def _case(name: str, array: np.ndarray) -> Case:
    return Case(name, array, [np.ravel(row).tolist() for row in array])


HALVES = np.array([[1.5, -2], [0, 65504]])
LARGE = np.array([[0, -1, 127, 128], [2**63 - 1, -(2**63), 2**14 - 1, 2**14]])
CASES = [
    _case("floats", np.linspace(-1, 1, 2000, dtype=np.float32).reshape(2, 1000)),
    _case("images", np.arange(48, dtype=np.float32).reshape(2, 4, 3, 2)),
    _case("scalars", np.array([1.5, np.inf], np.float32)),
    _case("no floats", np.zeros((3, 0), np.float32)),
    _case("integers", LARGE),
    _case("small integers", np.array([[3], [200]], np.uint8)),
    Case("booleans", np.array([[True, False]]), [[1, 0]]),
    _case("float16", HALVES.astype(np.float16)),
    _case("bfloat16", HALVES.astype(ml_dtypes.bfloat16)),
    _case("float64", np.array([[0.5, 3.0]])),
    Case(
        "strings",
        np.array([[b"", b"ab\x00"], [b"x" * 300, b"\xff"]], object),
        [[b"", b"ab\x00"], [b"x" * 300, b"\xff"]],
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_record_is_what_protobuf_writes(case):
    ids = [5, 300, 2**40][: len(case.array)]
    expected = [
        by_protobuf(record_id, output=values)
        for record_id, values in zip(ids, case.values, strict=True)
    ]
    assert encode(case.array, ids) == expected


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=8))
def test_any_integers_are_what_protobuf_writes(values):
    assert encode(np.array([values])) == [by_protobuf(0, output=values)]


def test_several_outputs_are_sorted_by_name_as_protobuf_sorts_them():
    outputs = {"z": np.ones((1, 2), np.float32), "a": np.array([7]), "é" * 80: np.array([[b"s"]])}
    expected = by_protobuf(0, z=[1.0, 1.0], a=[7], **{"é" * 80: [b"s"]})
    assert encode(outputs) == [expected]


def test_the_schema_is_enough_for_tensorflow_to_read_the_records():
    outputs = {
        "box": np.arange(12, dtype=np.float16).reshape(2, 2, 3),
        "name": np.array([b"one", b"two"]),
    }
    tensors = {name: tf.convert_to_tensor(value) for name, value in outputs.items()}
    encoder = ExampleEncoder(described(tensors))
    dtypes = {"float_list": tf.float32, "int64_list": tf.int64, "bytes_list": tf.string}
    schema = encoder.schema(num_records=2)
    features = {
        name: tf.io.FixedLenFeature(feature["shape"], dtypes[feature["list"]])
        for name, feature in schema["features"].items()
    }
    records = encoder.encode(np.array([3, 4]), arrays_of(tensors))
    parsed = tf.io.parse_example(records, features)
    assert parsed["id"].numpy().tolist() == [3, 4]
    np.testing.assert_array_equal(parsed["box"], outputs["box"].astype(np.float32))
    assert parsed["name"].numpy().tolist() == [b"one", b"two"]
    assert schema["features"]["box"] == {"dtype": "float16", "shape": [2, 3], "list": "float_list"}
    assert schema["num_records"] == 2


def test_one_axis_may_differ_and_is_null_in_the_schema():
    encoder = ExampleEncoder(described(tf.TensorSpec((None, None, 4), tf.float32)))
    assert encoder.schema(1)["features"]["output"]["shape"] == [None, 4]


@pytest.mark.parametrize(
    ("outputs", "names"),
    [
        (1, ["output"]),
        ([1, 2], ["output_0", "output_1"]),
        ((1,), ["output_0"]),
        (Pair(1, 2), ["mean", "scale"]),
        ({"b": [1, 2], "a": {"c": 3}}, ["b/0", "b/1", "a/c"]),
    ],
)
def test_outputs_are_named(outputs, names):
    assert list(flatten_outputs(outputs)) == names


def _spec(shape: Any, dtype: Any = "float32") -> Any:
    return tf.TensorSpec(shape, dtype)


@pytest.mark.parametrize(
    ("outputs", "named"),
    [
        (later("{'id': _spec((None, 1))}"), "'id' .*number"),
        (later("_spec((None,), tf.complex64)"), ": complex64"),
        (later("_spec((None,), tf.uint64)"), ": uint64"),
        (later("_spec(())"), "first axis"),
        (later("_spec(None)"), "first axis"),
        (later("_spec((None, None, None))"), "only one axis"),
        (
            later("tf.RaggedTensorSpec((None, None))"),
            ": RaggedTensorSpec",
        ),
        (later("[_spec((None,)), None]"), "'output_1' .*NoneType"),
    ],
)
def test_what_records_cannot_hold_is_refused_by_name(outputs, named):
    with pytest.raises(UserCodeError, match=named):
        described(outputs)


def test_an_output_that_is_not_one_a_record_is_refused():
    encoder = ExampleEncoder(described(_spec((None, 2))))
    with pytest.raises(UserCodeError, match=r"\(1, 2\) .*3 records"):
        encoder.encode(np.arange(3), arrays_of(tf.zeros((1, 2))))


def test_float64_is_said_to_lose_digits(caplog):
    described(_spec((None,), tf.float64))
    assert "'output' of M" in caplog.text
