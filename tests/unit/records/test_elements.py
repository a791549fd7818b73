"""Arrays come back from a record's bytes as they were."""

import numpy as np
import pytest

from edl_horovod.records.elements import TYPES, decode_arrays, encode_arrays, text_array


@pytest.mark.parametrize("name", [name for name in TYPES if name != "object"])
def test_numbers_of_every_type_and_shape(name):
    shapes = [(), (0,), (3,), (2, 0, 4), (2, 3, 4)]
    arrays = [np.arange(np.prod(s, dtype=int)).reshape(s).astype(name) for s in shapes]
    for array in arrays:
        (decoded,) = decode_arrays(encode_arrays([array]))
        assert (decoded.dtype, decoded.shape) == (array.dtype, array.shape)
        np.testing.assert_array_equal(decoded, array)


def test_texts_and_several_arrays():
    texts = np.array([[b"", b"a\0"], ["é".encode(), b"long" * 100]], dtype=object)
    scalar = np.empty((), dtype=object)
    scalar[()] = b"x\0"
    swapped = np.arange(3, dtype=">i4")
    decoded = decode_arrays(encode_arrays([texts, scalar, swapped, np.arange(6).reshape(2, 3).T]))
    assert decoded[0].tolist() == texts.tolist()
    assert decoded[1].item() == b"x\0"
    assert decoded[2].tolist() == [0, 1, 2]
    assert decoded[3].tolist() == [[0, 3], [1, 4], [2, 5]]


ONE, ZERO = np.float32(1).tobytes(), np.float32(0).tobytes()


@pytest.mark.parametrize(
    ("value", "texts"),
    [
        ([ONE, ZERO], [ONE, ZERO]),
        ((ZERO, "a\0"), [ZERO, b"a\0"]),
        ([[ZERO, "é"], ["", b"\xff"]], [[ZERO, "é".encode()], [b"", b"\xff"]]),
        ([[], []], None),
        ([np.array(["a"]), np.array(["é"])], [[b"a"], ["é".encode()]]),
        (np.array(["é", "b"]), ["é".encode(), b"b"]),
        ([1, 2], None),
        (["a", 1], None),
        ([1, "a"], None),
        ([b"a", 1.5], None),
        (["a", None], None),
        ([["a"], [b"b", "c"]], None),
    ],
)
def test_texts_keep_all_their_bytes_and_take_no_numbers_among_them(value, texts):
    array = text_array(value)
    assert (array is None) if texts is None else (array.tolist() == texts)
