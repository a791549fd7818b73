"""Whole jobs on data of other formats: each record once an epoch, and the same weights."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from edl_horovod import trained_model
from edl_horovod.job.directory import JobDir
from edl_horovod.ledger.prove import prove
from edl_horovod.records.reader import Reader
from edl_horovod.trained_model.params import read_params
from tests.records import example, write_records

NUM_RECORDS = 100
COMMON = ("train.batch_size=24", "train.epochs=2", "data_plan.lanes=6", "data_plan.shuffle=false")


def examples():
    """The numbers that `write_records` writes."""
    x = np.random.default_rng(7).normal(size=(NUM_RECORDS, 4)).astype(np.float32)
    y = np.array([np.float32(row.sum() * 0.5) for row in x], dtype=np.float32)
    return x, y


def write_tfrecords(folder):
    import tensorflow as tf

    folder.mkdir()
    x, y = examples()
    for part in range(2):
        path = folder / f"train.tfrecord-0000{part}-of-00002"
        with tf.io.TFRecordWriter(str(path)) as writer:
            for n in range(part * 50, part * 50 + 50):
                writer.write(example(id=[n], x=x[n], y=[y[n]]))
    return folder


def write_parquet(folder):
    folder.mkdir()
    x, y = examples()
    pairs = pa.array(list(x), pa.list_(pa.float32(), 4))
    for part in range(2):
        rows = slice(part * 50, part * 50 + 50)
        table = pa.table({"id": np.arange(100)[rows], "x": pairs[rows], "y": y[rows]})
        pq.write_table(table, folder / f"part-{part}.parquet", row_group_size=7)
    return folder


def write_arrays(folder):
    folder.mkdir()
    x, y = examples()
    np.savez(folder / "a.npz", x=x[:30], y=y[:30])
    np.savez_compressed(folder / "b.npz", x=x[30:], y=y[30:])
    return folder


def no_files(folder):
    return "dataset:own_rows.Rows"


def weights(output):
    return dict(read_params(trained_model.read(output).params_files))


@pytest.mark.parametrize(
    ("write", "model"),
    [
        (write_tfrecords, "tiny"),
        (write_parquet, "rows"),
        (write_arrays, "rows"),
        (no_files, "rows"),
    ],
)
def test_two_ranks_train_what_one_does_on_recordio(start, tmp_path, write, model):
    pattern = write_records(tmp_path / "recordio", NUM_RECORDS)
    alone = tmp_path / "alone"
    start("train", *COMMON, "model_def=tiny", f"data={pattern}", f"output={alone}").succeed()
    data, output = write(tmp_path / "data"), tmp_path / "model"

    job = start(
        "train",
        *COMMON,
        f"model_def={model}",
        f"data={data}",
        f"validation_data={data}",
        "launch.np=2",
        "debug.ledger=true",
        f"output={output}",
    ).succeed()

    assert job.events("step")[-1].event.records_seen == 2 * NUM_RECORDS
    assert job.events("evaluation")[-1].event.examples == NUM_RECORDS
    proof = prove(JobDir(job.job_dir))
    assert proof.is_good, proof.violations
    assert (proof.is_finished, proof.num_records) == (True, 2 * NUM_RECORDS)
    expected, found = weights(alone), weights(output)
    assert list(expected) == list(found)
    for name, value in found.items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-4, atol=1e-6)

    predictions = tmp_path / "predictions.recordio"
    start("predict", f"trained_model={output}", f"data={data}", f"output={predictions}").succeed()
    with Reader.open(str(predictions)) as reader:
        assert len(reader) == NUM_RECORDS
