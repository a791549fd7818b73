"""A user's own `tf.data.Dataset` arrives in `create_dataset` as it was, with TensorFlow."""

import sys

import numpy as np
import pytest

from edl_horovod.config.schema import DataConfig
from edl_horovod.errors import UserCodeError
from edl_horovod.models.zoo import Overrides, load_spec
from edl_horovod.records.job_data import open_source, plan_of
from edl_horovod.records.source import JobFolders
from edl_horovod.spec import Mode
from tests.later import LATER

if LATER:
    import tensorflow as tf

    from edl_horovod.frameworks.keras.batches import KerasBatches

NUM, BATCH = 10, 4
SPEC = """
import keras, tensorflow as tf
from edl_horovod import ElasticDLSpec

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

class Mine(ElasticDLSpec):
    parses_batches = {at_once}
    def create_model(self): return keras.Sequential([keras.layers.Dense(1)])
    def create_loss(self, outputs, labels): return tf.reduce_mean(outputs - labels)
    def create_optimizer(self, lr=0.1): return keras.optimizers.SGD(lr)
"""
METHOD = "    def create_dataset(self, dataset, mode): return {made}\n"


@pytest.fixture
def batches(tmp_path, monkeypatch):
    """Batches of a stream of the module through one line of a pipeline, or none."""
    opened = []

    def make(name, pipeline=None, *, at_once=False, mode=Mode.TRAINING):
        method = "" if pipeline is None else METHOD.format(made=pipeline)
        (tmp_path / "mine.py").write_text(SPEC.replace("{at_once}", str(at_once)) + method)
        loaded = load_spec(
            str(tmp_path), "mine.Mine", params={}, overrides=Overrides(has_own_dataset=True)
        )
        folders = JobFolders(*(tmp_path / "job" / part for part in ("index", "records", "part")))
        source = open_source(f"dataset:mine.{name}", DataConfig(), folders=folders)
        opened.append(source)
        settings = DataConfig(shuffle=False)
        plan = plan_of(source, settings, num_lanes=2, is_training=True, global_batch=BATCH)
        return KerasBatches(source, plan, loaded, mode, prefetch=1)

    yield make
    for source in opened:
        source.close()
    sys.modules.pop("mine", None)


def read_all(batches):
    batches.restart(range(2), 0, 3)
    return [batches.next_batch() for _ in range(3)]


def elements(batches, pipeline):
    """What one expression of an element is, over all elements, by their numbers."""
    values = {}
    for batch in read_all(batches("everything", pipeline)):
        for number, value in zip(batch.features["n"].numpy(), batch.features["v"], strict=True):
            values[int(number)] = value.numpy()
    assert sorted(values) == list(range(NUM))
    return values


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
def test_tensors_of_every_kind_are_what_they_were(batches, value, expected):
    values = elements(batches, f"dataset.map(lambda f, y: ({{'n': f['n'], 'v': {value}}}, y))")
    for number, element in values.items():
        np.testing.assert_array_equal(element, expected(number))


@pytest.mark.long
def test_ragged_and_sparse_tensors_reach_the_model_as_such(batches):
    pipeline = "dataset.map(lambda f, y: ({'rows': f['rows'], 'sparse': f['sparse']}, y))"
    spec, labels = batches("everything", pipeline).element_spec
    assert isinstance(spec["rows"], tf.RaggedTensorSpec)
    assert isinstance(spec["sparse"], tf.SparseTensorSpec)
    assert labels == tf.TensorSpec((None, 1), tf.float32)
    numbers = [n for batch in read_all(batches("everything", pipeline)) for n in batch.labels[:, 0]]
    rows = [r for b in read_all(batches("everything", pipeline)) for r in b.features["rows"]]
    for number, row in zip(map(int, numbers), rows, strict=True):
        assert row.to_list() == [list(range(number % 3)), [number % 3, number % 3 + 1]]


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
def test_examples_need_no_create_dataset_and_records_do(batches, name, pipeline, at_once):
    read = read_all(batches(name, pipeline, at_once=at_once))
    assert sorted(int(n) for batch in read for n in batch.labels) == list(range(NUM))
    for batch in read:
        np.testing.assert_array_equal(batch.features["x"][:, 0], batch.labels)


def test_weights_of_examples_arrive_and_labels_stay_away_from_predictions(batches):
    for batch in read_all(batches("weighed")):
        np.testing.assert_array_equal(batch.weights, batch.labels + 1)
    for batch in read_all(batches("weighed", mode=Mode.PREDICTION)):
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
