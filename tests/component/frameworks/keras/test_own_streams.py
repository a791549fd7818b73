"""A user's own `tf.data.Dataset` arrives in `create_dataset` as it was, with TensorFlow."""

import numpy as np
import pytest

from edl_horovod.errors import UserCodeError
from edl_horovod.spec import Mode
from tests.later import LATER

if LATER:
    import tensorflow as tf

NUM = 10
STREAMS = """
def words(n):
    return tf.gather(tf.constant(["a", "b", "c"]), tf.range(n % 4) % 3)

def everything():
    def element(n):
        rows = tf.RaggedTensor.from_row_lengths(tf.range(n % 3 + 2), [n % 3, 2])
        sparse = tf.SparseTensor([[0, n % 5]], [tf.cast(n, tf.float32)], [1, 5])
        features = {
            "n": n,
            "words": words(n),
            "rows": rows,
            "sparse": sparse,
            "picture": tf.fill([n + 1, 2, 3], tf.cast(n, tf.uint8)),
            "inner": (tf.cast(n, tf.float64), tf.strings.as_string(n)),
        }
        return features, tf.cast([n], tf.float32)
    return tf.data.Dataset.range(10).map(element)

def plain():
    return tf.data.Dataset.range(10).map(lambda n: ({"x": tf.cast([n, n], tf.float32)}, n))

def weighed():
    return plain().map(lambda x, y: (x, y, tf.cast(y + 1, tf.float32)))

def records():
    return tf.data.Dataset.range(10).map(tf.strings.as_string)

def batched():
    return plain().batch(4).prefetch(2)

def unbatched():
    return plain().batch(4).unbatch()

def endless():
    return plain().repeat()
"""


@pytest.fixture
def batches(batches_of):
    """Batches of a stream of the module through one line of a pipeline, or none."""

    def make(name, pipeline=None, *, mode=Mode.TRAINING, at_once=False):
        lines = pipeline and f"return {pipeline}"
        data = f"dataset:mine.{name}"
        return batches_of(data, lines, functions=STREAMS, at_once=at_once, mode=mode)

    return make


@pytest.fixture
def read_all(batches, next_batches):
    """All batches of such a stream."""
    return lambda *stream, **settings: next_batches(batches(*stream, **settings), 3)


@pytest.mark.long
@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("tf.strings.reduce_join(f['words'])", lambda n: b"abc"[: n % 4]),
        ("f['rows'].row_lengths()", lambda n: [n % 3, 2]),
        ("tf.reduce_sum(f['rows'].flat_values)", lambda n: sum(range(n % 3 + 2))),
        ("tf.sparse.to_dense(f['sparse'])[0]", lambda n: n * np.eye(5)[n % 5]),
        ("tf.shape(f['picture'])", lambda n: [n + 1, 2, 3]),
        ("tf.cast(tf.reduce_max(f['picture']), tf.int32)", lambda n: n),
        ("f['inner'][0]", float),
        ("f['inner'][1]", lambda n: b"%d" % n),
    ],
)
def test_tensors_of_every_kind_are_what_they_were(read_all, value, expected):
    numbers = []
    pipeline = f"dataset.map(lambda f, y: ({{'n': f['n'], 'v': {value}}}, y))"
    for batch in read_all("everything", pipeline):
        for number, element in zip(batch.features["n"].numpy(), batch.features["v"], strict=True):
            np.testing.assert_array_equal(element.numpy(), expected(int(number)))
            numbers.append(int(number))
    assert sorted(numbers) == list(range(NUM))


@pytest.mark.long
def test_ragged_and_sparse_tensors_reach_the_model_as_such(batches, read_all):
    pipeline = "dataset.map(lambda f, y: ({'rows': f['rows'], 'sparse': f['sparse']}, y))"
    spec, labels = batches("everything", pipeline).element_spec
    assert isinstance(spec["rows"], tf.RaggedTensorSpec)
    assert isinstance(spec["sparse"], tf.SparseTensorSpec)
    assert labels == tf.TensorSpec((None, 1), tf.float32)
    for batch in read_all("everything", pipeline):
        numbers = map(int, batch.labels[:, 0])
        for number, row in zip(numbers, batch.features["rows"], strict=True):
            assert row.to_list() == [list(range(number % 3)), [number % 3, number % 3 + 1]]


@pytest.mark.long(after=1)
@pytest.mark.parametrize(
    ("name", "pipeline", "at_once"),
    [
        ("plain", None, False),
        ("plain", None, True),
        ("unbatched", None, False),
        # Scalar strings are parsed as records of files are.
        (
            "records",
            "dataset.map(lambda r: tf.strings.to_number(r)).map(lambda n: ({'x': n[None]}, n))",
            False,
        ),
    ],
)
def test_examples_need_no_create_dataset_and_records_do(read_all, name, pipeline, at_once):
    read = read_all(name, pipeline, at_once=at_once)
    assert sorted(int(n) for batch in read for n in batch.labels) == list(range(NUM))
    for batch in read:
        np.testing.assert_array_equal(batch.features["x"][:, 0], batch.labels)


def test_weights_of_examples_arrive_and_labels_stay_away_from_predictions(read_all):
    for batch in read_all("weighed"):
        np.testing.assert_array_equal(batch.weights, batch.labels + 1)
    for batch in read_all("weighed", mode=Mode.PREDICTION):
        assert batch.features["x"].shape[1:] == (2,)
        assert batch.labels is None


@pytest.mark.parametrize(
    ("name", "pipeline", "at_once", "said"),
    [
        ("batched", None, False, r"BatchDataset|unbatch"),
        ("endless", None, False, r"repeat\(\)"),
        ("records", None, False, r"has no create_dataset \(input_fn\)"),
        ("everything", "dataset", True, "parses_batches = True"),
    ],
)
def test_what_would_be_another_training_is_refused(batches, name, pipeline, at_once, said):
    with pytest.raises(UserCodeError, match=said):
        batches(name, pipeline, at_once=at_once)
