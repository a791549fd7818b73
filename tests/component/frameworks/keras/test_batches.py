"""What a user reads where `create_dataset` and records do not fit. These tests load TensorFlow."""

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from edl_horovod.errors import DataError, UserCodeError
from edl_horovod.frameworks.keras.batches import KerasBatches
from edl_horovod.models.zoo import load_spec
from edl_horovod.records.index import Index
from edl_horovod.records.plan import DataPlan
from edl_horovod.records.reader import Reader
from edl_horovod.spec import Mode
from tests.records import write_records

SPEC = """
import keras, tensorflow as tf
from edl_horovod import ElasticDLSpec

class Mine(ElasticDLSpec):
    def create_model(self): return keras.Sequential([keras.layers.Dense(1)])
    def create_loss(self, outputs, labels): return tf.reduce_mean(outputs - labels)
    def create_optimizer(self, lr=0.1): return keras.optimizers.SGD(lr)
    def create_dataset(self, dataset, mode):
        def parse(record):
            {parse}
        {made}
"""
PARSE = (
    'return tf.io.parse_single_example(record, {{"{name}": tf.io.FixedLenFeature([], tf.int64)}})'
)


@pytest.fixture
def stream(tmp_path: Path):
    """A stream of `id`, `x` and `y` through a pipeline of these lines."""

    def make(parse: str, made: str = "return dataset.map(parse)") -> KerasBatches:
        (tmp_path / "mine.py").write_text(SPEC.format(parse=parse, made=made))
        index = Index.open(write_records(tmp_path / "data", 10))
        plan = DataPlan(
            block_starts=index.block_starts,
            block_counts=index.block_counts,
            global_batch=4,
            num_lanes=2,
            is_shuffled=False,
        )
        loaded = load_spec(str(tmp_path), "mine", params={})
        return KerasBatches(Reader(index), plan, loaded, Mode.PREDICTION, prefetch=1)

    return make


def test_a_feature_that_the_records_lack_is_named_without_the_graph_around_it(stream):
    with pytest.raises(DataError) as caught:
        stream(PARSE.format(name="age")).try_first()
    assert "create_dataset of Mine of " in str(caught.value)
    assert "in mode prediction fails for records of step 0: Feature: age " in str(caught.value)
    assert "function_node" not in str(caught.value)


def test_records_that_fit_are_tried_and_come_again(stream):
    good = stream(PARSE.format(name="id"))
    good.try_first()
    good.restart(range(2), 0, 1)
    assert good.next_batch().num_examples == 4


@pytest.mark.parametrize(
    ("parse", "made", "line", "said"),
    [
        ("return record", 'raise KeyError("age")', 12, "KeyError: 'age'"),
        ("return tf.nothing(record)", "return dataset.map(parse)", 11, "'tensorflow' has no attr"),
    ],
)
def test_an_error_in_the_pipeline_is_one_line_with_its_place(
    stream, tmp_path, parse, made, line, said
):
    with pytest.raises(UserCodeError) as caught:
        stream(parse, made)
    assert f" in mode prediction failed at {tmp_path}/mine.py:{line}: " in str(caught.value)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_python_conditions_in_a_mapped_function_still_become_those_of_tensorflow(stream):
    parse = """if tf.strings.length(record) > 0:
                return 1
            return 0"""
    found = stream(parse)
    found.restart(range(2), 0, 1)
    assert found.next_batch().features.numpy().tolist() == [1, 1, 1, 1]


ID = """return tf.io.parse_single_example(
                record, {"id": tf.io.FixedLenFeature([], tf.int64)})["id"]"""


@pytest.mark.parametrize(
    ("element", "features"),
    [
        ("i, 1.0", lambda i: i),
        ("i, 1.0, 2.0", lambda i: i),
        ("((i, i + 1),)", lambda i: (i, i + 1)),
        ("((i, i + 1), 3)", lambda i: (i, i + 1)),
        ('{"a": i}', lambda i: {"a": i}),
    ],
)
def test_in_predictions_a_tuple_is_features_labels_and_weights_as_in_keras(
    stream, element, features
):
    found = stream(ID, f"return dataset.map(parse).map(lambda i: ({element}))")
    batch = found.try_first()
    expected = features(np.arange(batch.num_examples) + first(batch.features))
    np.testing.assert_array_equal(
        tf.nest.flatten(batch.features)[-1], tf.nest.flatten(expected)[-1]
    )
    tf.nest.assert_same_structure(batch.features, expected)
    assert batch.labels is None


def first(features):
    return int(tf.nest.flatten(features)[0][0])


def test_more_parts_than_keras_knows_are_refused(stream):
    with pytest.raises(UserCodeError, match=r"elements of 4 parts.*\(features,\)"):
        stream(ID, "return dataset.map(parse).map(lambda i: (i, i, i, i))")


def test_examples_are_padded_to_one_of_a_few_lengths(stream):
    lines = """import edl_horovod
        rows = dataset.map(parse).map(lambda i: tf.range(i + 1))
        return edl_horovod.padded(rows, lengths=[4, 6, 16])"""
    found = stream(ID, lines)
    found.restart(range(2), 0, 3)
    batches = [found.next_batch() for _ in range(3)]
    longest = [batch.features.numpy().max() + 1 for batch in batches]
    sizes = [batch.features.shape[1] for batch in batches]
    assert sizes == [next(n for n in (4, 6, 16) if n >= length) for length in longest]


def test_an_example_that_is_longer_than_all_lengths_is_an_error(stream):
    lines = """import edl_horovod
        return edl_horovod.padded(dataset.map(parse).map(lambda i: tf.range(i + 1)), lengths=[8])"""
    found = stream(ID, lines)
    found.restart(range(2), 0, 3)
    with pytest.raises(DataError, match=r"An example is longer than the last of lengths=\[8\]"):
        list(iter(found.next_batch, None))


@pytest.mark.parametrize(
    ("made", "kind"),
    [
        ("edl_horovod.padded(rows, tf.constant(-1, tf.int64))", tf.Tensor),
        ("rows.map(lambda row: tf.RaggedTensor.from_tensor(row[None]))", tf.RaggedTensor),
    ],
)
def test_examples_of_different_lengths_are_padded_or_ragged(stream, made, kind):
    lines = f"""import edl_horovod
        rows = dataset.map(parse).map(lambda i: tf.range(i + 1))
        return {made}"""
    found = stream(ID, lines)
    found.restart(range(2), 0, 1)
    batch = found.next_batch()
    assert batch.num_examples == 4
    assert isinstance(batch.features, kind)
    if kind is tf.Tensor:
        longest = batch.features.numpy().max() + 1
        assert batch.features.shape == (4, longest)
        assert (batch.features.numpy() == -1).sum() == 4 * longest - sum(
            row.max() + 1 for row in batch.features.numpy()
        )
