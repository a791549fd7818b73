"""Columns of a source as a user's `create_dataset` sees them. These tests load TensorFlow."""

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pytest

from edl_horovod.errors import UserCodeError
from edl_horovod.models.zoo import load_spec
from edl_horovod.records.index import Index
from edl_horovod.records.plan import DataPlan
from edl_horovod.records.reader import Reader
from edl_horovod.spec import Mode
from tests.later import LATER

if LATER:
    import tensorflow as tf

    from edl_horovod.frameworks.keras.batches import KerasBatches

SPEC = """
import keras, tensorflow as tf
from edl_horovod import ElasticDLSpec

class Mine(ElasticDLSpec):
    parses_batches = {at_once}
    def create_model(self): return keras.Sequential([keras.layers.Dense(1)])
    def create_loss(self, outputs, labels): return tf.reduce_mean(outputs - labels)
    def create_optimizer(self, lr=0.1): return keras.optimizers.SGD(lr)
    def create_dataset(self, dataset, mode):
        return {made}
"""
NUM_RECORDS, BATCH = 10, 4
TABLE = {
    "id": list(range(NUM_RECORDS)),
    "text": [f"é{n}" for n in range(NUM_RECORDS)],
    "words": [["w"] * (n % 3) for n in range(NUM_RECORDS)],
    "pair": pa.array([[n, -n] for n in range(NUM_RECORDS)], pa.list_(pa.float32(), 2)),
}


@pytest.fixture
def stream(tmp_path):
    """A stream of a table's records through one line of a pipeline."""

    def make(pipeline, *, at_once=False, is_growing=False):
        (tmp_path / "mine.py").write_text(SPEC.format(at_once=at_once, made=pipeline))
        feather.write_feather(pa.table(TABLE), str(tmp_path / "a.feather"), chunksize=3)
        index = Index.open(str(tmp_path / "a.feather"))
        batch = {"rank_batch" if is_growing else "global_batch": BATCH}
        plan = DataPlan(
            block_starts=index.block_starts,
            block_counts=index.block_counts,
            num_lanes=2,
            is_shuffled=False,
            **batch,
        )
        loaded = load_spec(str(tmp_path), "mine", params={})
        return KerasBatches(Reader(index), plan, loaded, Mode.PREDICTION, prefetch=1)

    return make


def read_all(batches, steps):
    batches.restart(range(2), 0, steps)
    read = [batches.next_batch() for _ in range(steps)]
    return [batch.features for batch in read if batch is not None]


@pytest.mark.parametrize("at_once", [False, True])
def test_a_record_is_a_dict_of_its_columns_once_each(stream, at_once):
    count = "row['words'].row_lengths()" if at_once else "tf.size(row['words'], tf.int64)"
    columns = "'id': row['id'], 'text': row['text'], 'pair': row['pair']"
    pipeline = f"dataset.map(lambda row: {{{columns}, 'n': {count}}})"
    steps = read_all(stream(pipeline, at_once=at_once), 3)
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
def test_a_batch_that_grows_may_leave_a_rank_without_records(stream, at_once):
    pipeline = "dataset.map(lambda row: {'id': row['id']})"
    batches = stream(pipeline, at_once=at_once, is_growing=True)
    ids = np.concatenate([step["id"] for step in read_all(batches, 3)])
    assert sorted(ids.tolist()) == list(range(NUM_RECORDS))


def test_a_column_that_is_not_there_is_the_users_error_with_its_name(stream):
    with pytest.raises(UserCodeError, match="age"):
        stream("dataset.map(lambda row: row['age'])")
