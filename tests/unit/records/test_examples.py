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
    arrays = read_examples([example(FEATURES), example(FEATURES)], SHAPES)
    assert [arrays[name].shape for name in SHAPES] == [(2, 2, 3), (2, 3), (2, 2)]
    np.testing.assert_array_equal(arrays["x"][1], FEATURES["x"])
    assert arrays["n"][0].tolist() == FEATURES["n"]
    assert arrays["t"][1].tolist() == FEATURES["t"]


def test_others_write_the_same_bytes():
    features = {"x": np.float32([1, 2]), "id": [300], "text": [b"abc"]}
    assert example(features) == by_hand(**features)


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
    arrays = read_examples([record], {"f": (2,), "i": (2,)})
    assert arrays["f"].tolist() == [[1, 2]]
    assert arrays["i"].tolist() == [[5, 6]]


@pytest.mark.parametrize(
    ("record", "shapes", "received"),
    [
        (example({"x": [1.0]}), {"y": ()}, "x"),
        (example({"x": [1.0]}), {"x": (2,)}, "1 values"),
        (b"\xff\xff\xff", {"x": ()}, "3 bytes"),
        (example({"x": [1.0]})[:-2], {"x": ()}, "15 bytes"),
    ],
)
def test_a_record_that_does_not_have_the_features_is_refused(record, shapes, received):
    with pytest.raises(DataError) as error:
        read_examples([record], shapes)
    assert error.value.received == received
