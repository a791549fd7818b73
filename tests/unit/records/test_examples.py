import numpy as np
import pytest

from edl_horovod.errors import DataError
from edl_horovod.records.examples import example, read_examples
from tests.records import example as by_hand

FEATURES = {
    "x": np.arange(6, dtype=np.float32).reshape(2, 3),
    "n": [-3, 0, 1 << 40],
    "t": [b"a", b""],
}
SHAPES = {"x": (2, 3), "n": (3,), "t": (2,)}


def test_what_is_written_is_read():
    found = read_examples([example(FEATURES), example(FEATURES)], SHAPES)
    assert [found[name].shape for name in SHAPES] == [(2, 2, 3), (2, 3), (2, 2)]
    np.testing.assert_array_equal(found["x"][1], FEATURES["x"])
    assert found["n"][0].tolist() == FEATURES["n"]
    assert found["t"][1].tolist() == FEATURES["t"]


def test_others_write_the_same_bytes():
    made = {"x": np.float32([1, 2]), "id": [300], "text": [b"abc"]}
    assert example(made) == by_hand(**made)


def test_one_text_need_be_no_list_and_features_that_nobody_wants_are_passed_over():
    record = example({"image": b"png", "label": 7})
    assert read_examples([record], {"label": ()})["label"].tolist() == [7]
    assert read_examples([record], {"image": ()})["image"].tolist() == [b"png"]


def test_numbers_that_are_not_packed_are_read():
    # As some writers have them: a tag before each number.
    floats = b"".join(b"\x0d" + np.float32(value).tobytes() for value in (1, 2))
    whole = b"\x08\x05\x08\x06"
    feature = {
        "f": b"\x12" + bytes([len(floats)]) + floats,
        "i": b"\x1a" + bytes([len(whole)]) + whole,
    }
    record = b""
    for name, value in feature.items():
        entry = b"\x0a\x01" + name.encode() + b"\x12" + bytes([len(value)]) + value
        record += b"\x0a" + bytes([len(entry)]) + entry
    record = b"\x0a" + bytes([len(record)]) + record
    found = read_examples([record], {"f": (2,), "i": (2,)})
    assert found["f"].tolist() == [[1, 2]]
    assert found["i"].tolist() == [[5, 6]]


@pytest.mark.parametrize(
    ("record", "shapes", "message"),
    [
        (example({"x": [1.0]}), {"y": ()}, r"has no feature 'y'. Received: x"),
        (example({"x": [1.0]}), {"x": (2,)}, r"shape \(2,\). Received: 1 values"),
        (b"\xff\xff\xff", {"x": ()}, r"is no serialized tf.train.Example. Received: 3 bytes"),
        (example({"x": [1.0]})[:-2], {"x": ()}, r"is no serialized tf.train.Example"),
    ],
)
def test_what_is_no_such_example_is_refused(record, shapes, message):
    with pytest.raises(DataError, match=message):
        read_examples([record], shapes)
