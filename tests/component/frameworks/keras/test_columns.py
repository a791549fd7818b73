"""Columns of a source as a user's `create_dataset` sees them. These tests load TensorFlow."""

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pytest

from edl_horovod.errors import UserCodeError
from tests.later import LATER

if LATER:
    import tensorflow as tf

NUM_RECORDS = 10
TABLE = {
    "id": list(range(NUM_RECORDS)),
    "text": [f"é{n}" for n in range(NUM_RECORDS)],
    "words": [["w"] * (n % 3) for n in range(NUM_RECORDS)],
    "pair": pa.array([[n, -n] for n in range(NUM_RECORDS)], pa.list_(pa.float32(), 2)),
}


@pytest.fixture
def stream(batches_of, tmp_path):
    """A stream of a table's records through one line of a pipeline."""
    feather.write_feather(pa.table(TABLE), str(tmp_path / "a.feather"), chunksize=3)

    def make(pipeline, **settings):
        return batches_of(str(tmp_path / "a.feather"), f"return {pipeline}", **settings)

    return make


@pytest.fixture
def read_all(next_batches):
    """The features of all batches."""
    return lambda batches: [batch.features for batch in next_batches(batches, 3) if batch]


@pytest.mark.parametrize("at_once", [False, True])
def test_a_record_is_a_dict_of_its_columns_once_each(stream, read_all, at_once):
    count = "row['words'].row_lengths()" if at_once else "tf.size(row['words'], tf.int64)"
    columns = "'id': row['id'], 'text': row['text'], 'pair': row['pair']"
    pipeline = f"dataset.map(lambda row: {{{columns}, 'n': {count}}})"
    steps = read_all(stream(pipeline, at_once=at_once))
    rows = {key: np.concatenate([step[key] for step in steps]) for key in steps[0]}
    order = np.argsort(rows["id"])
    assert rows["id"][order].tolist() == list(range(NUM_RECORDS))
    assert [text.decode() for text in rows["text"][order]] == TABLE["text"]
    assert rows["pair"][order].tolist() == [[n, -n] for n in range(NUM_RECORDS)]
    assert rows["n"][order].tolist() == [n % 3 for n in range(NUM_RECORDS)]


def test_the_shapes_of_columns_are_known_when_the_graph_is_built(stream):
    features, _ = stream("dataset.map(lambda row: {'pair': row['pair']})").element_spec
    assert features["pair"].shape.as_list() == [None, 2]
    assert features["pair"].dtype == tf.float32


@pytest.mark.parametrize("at_once", [False, True])
def test_a_batch_that_grows_may_leave_a_rank_without_records(stream, read_all, at_once):
    pipeline = "dataset.map(lambda row: {'id': row['id']})"
    batches = stream(pipeline, at_once=at_once, rank_batch=4)
    ids = np.concatenate([step["id"] for step in read_all(batches)])
    assert sorted(ids.tolist()) == list(range(NUM_RECORDS))


def test_a_column_that_is_not_there_is_the_users_error_with_its_name(stream):
    with pytest.raises(UserCodeError, match="age"):
        stream("dataset.map(lambda row: row['age'])")
