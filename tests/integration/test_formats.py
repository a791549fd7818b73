"""Whole jobs on data of other formats: each record once an epoch, and the same weights."""

import io
import json
import signal
import tarfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
from PIL import Image

from edl_horovod import trained_model
from edl_horovod.errors import DataError, Interrupted
from edl_horovod.job.directory import JobDir
from edl_horovod.ledger.proof import prove
from edl_horovod.records.reader import Reader
from edl_horovod.trained_model.params import read_params
from tests.mds_shards import shard
from tests.records import example, write_records
from tests.s3_server import serve

NUM_RECORDS = 100
EPOCHS = 3
COMMON = ("train.batch_size=24", "train.epochs=2", "data_plan.lanes=6", "data_plan.shuffle=false")


def examples():
    """The numbers that `write_records` writes."""
    x = np.random.default_rng(7).normal(size=(NUM_RECORDS, 4)).astype(np.float32)
    return x, np.array([np.float32(row.sum() * 0.5) for row in x], dtype=np.float32)


def write_tfrecords(folder):
    tf = pytest.importorskip("tensorflow", reason="it writes TFRecords")
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


def write_feather(folder):
    folder.mkdir()
    x, y = examples()
    pairs = pa.array(list(x), pa.list_(pa.float32(), 4))
    feather.write_feather(pa.table({"x": pairs, "y": y}), str(folder / "a.arrow"), chunksize=7)
    return folder


def write_json_lines(folder):
    folder.mkdir()
    lines = [
        json.dumps({"x": row.tolist(), "y": float(y)}) for row, y in zip(*examples(), strict=True)
    ]
    (folder / "a.jsonl").write_text("\n".join(lines))
    return folder


def write_tars(folder):
    folder.mkdir()
    rows = list(zip(*examples(), strict=True))
    for shard_number in range(2):
        with tarfile.open(folder / f"{shard_number}.tar", "w") as archive:
            for number, row in enumerate(rows[shard_number::2]):
                for part, array in zip(("x", "y"), row, strict=True):
                    entry = tarfile.TarInfo(f"{number:04d}.{part}")
                    entry.size = array.nbytes
                    archive.addfile(entry, io.BytesIO(array.tobytes()))
    return folder


def write_mds(folder):
    folder.mkdir()
    x, y = examples()
    samples = [row.tobytes() + label.tobytes() for row, label in zip(x, y, strict=True)]
    written_shard = shard(samples, ["ndarray:float32:4", "float32"], [16, 4], ["x", "y"])
    (folder / "shard.00000.mds").write_bytes(written_shard)
    return folder


def write_pictures(folder):
    random = np.random.default_rng(7)
    for number in range(NUM_RECORDS):
        path = folder / ("cat", "dog")[number % 2] / f"{number:03d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 255, (2, 2), np.uint8)).save(path)
    return folder


def no_files(folder):
    return "dataset:own_rows.Rows"


def a_stream(folder):
    return "dataset:own_rows.stream"


def examples_of_tf_data(folder):
    return "dataset:own_rows.examples"


def weights(output):
    return dict(read_params(trained_model.read(output).params_files))


@pytest.mark.long
@pytest.mark.parametrize(
    ("write", "model"),
    [
        (write_tfrecords, "tiny"),
        (write_parquet, "rows"),
        pytest.param(write_arrays, "rows", marks=pytest.mark.further),
        pytest.param(no_files, "rows", marks=pytest.mark.further),
        pytest.param(a_stream, "rows", marks=pytest.mark.further),
        pytest.param(examples_of_tf_data, "examples", marks=pytest.mark.further),
    ],
)
def test_two_ranks_train_what_one_does_on_recordio(start, framework, tmp_path, write, model):
    if framework != "keras" and write is examples_of_tf_data:
        pytest.skip("data sets of tf.data are TensorFlow's")
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
    expected, actual = weights(alone), weights(output)
    assert list(expected) == list(actual)
    for name, value in actual.items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-4, atol=1e-6)

    predictions = tmp_path / "predictions.recordio"
    start("predict", f"trained_model={output}", f"data={data}", f"output={predictions}").succeed()
    with Reader.open(str(predictions)) as reader:
        assert len(reader) == NUM_RECORDS


@pytest.mark.long
def test_classes_of_pictures_keep_the_numbers_of_the_training(start, tmp_path):
    data, model = write_pictures(tmp_path / "data"), tmp_path / "model"
    settings = ("model_def=formats.FormatSpec", f"data={data}", f"validation_data={data}")
    trained = start("train", *COMMON, *settings, f"output={model}").succeed()

    def loss_of(name):
        job = start("evaluate", f"trained_model={model}", f"data={data / name}").succeed()
        return job.events("job")[-1].event.metrics["loss"]

    # The loss is a mean over the pictures, of which each class has as many.
    whole = trained.events("evaluation")[-1].event.metrics["loss"]
    assert (loss_of("cat") + loss_of("dog")) / 2 == pytest.approx(whole, rel=1e-4)

    (data / "dog").rename(data / "wolf")
    other = ("model_def=formats.FormatSpec", f"data={data / 'cat'}", f"output={tmp_path}/other")
    for words in (
        ("evaluate", f"trained_model={model}", f"data={data}"),
        ("train", *COMMON, *other, f"validation_data={data}"),
    ):
        refused = start(*words)
        assert refused.end() == DataError.exit_code, refused.describe()
        assert "wolf" in refused.printed
    predictions = tmp_path / "predictions.recordio"
    start("predict", f"trained_model={model}", f"data={data}", f"output={predictions}").succeed()
    with Reader.open(str(predictions)) as reader:
        assert len(reader) == NUM_RECORDS


def step_after(job, step, kind="step", **fields):
    """Wait until an event of this kind is there for a step after this one; return its step."""
    log = job.wait_for(
        lambda all_of_it: [
            e.event.step
            for e in all_of_it
            if e.event.kind == kind
            and e.event.step > step
            and all(getattr(e.event, name) == value for name, value in fields.items())
        ],
        f"{kind} after step {step}",
    )
    return log[-1]


def lose_a_worker_and_resume(start, data, **variables):
    """A job of two ranks, of which one is killed; ended, and resumed on a ring of three.

    Returns what each of the two jobs printed.
    """
    settings = (
        "model_def=formats.FormatSpec",
        "train.batch_size=24",
        f"train.epochs={EPOCHS}",
        "data_plan.lanes=6",
        f"data={data}",
        "elastic.min_np=1",
        "debug.ledger=true",
        "checkpoint.every_steps=1",
    )
    job = start("train", *settings, "launch.np=2", **variables)
    step = step_after(job, 1)
    job.signal_worker(1, signal.SIGKILL)
    step = step_after(job, step + 1)
    step_after(job, step, kind="checkpoint", state="written")
    job.process.send_signal(signal.SIGINT)
    assert job.end() == Interrupted.exit_code, job.describe()
    printed = job.printed  # The next job prints to the same file.

    job_dir = f"job_dir={job.job_dir}"
    resumed = start("train", *settings, job_dir, "launch.np=3", "resume=must", **variables)
    resumed.succeed()
    proof = prove(JobDir(job.job_dir))
    assert proof.is_good, proof.violations
    assert (proof.is_finished, proof.num_records) == (True, EPOCHS * NUM_RECORDS)
    return printed, resumed.printed


@pytest.mark.further
@pytest.mark.parametrize(
    "write", [write_pictures, write_tars, write_mds, write_json_lines, write_feather, write_arrays]
)
def test_each_record_counts_once_over_a_killed_worker_and_another_ring(start, tmp_path, write):
    lose_a_worker_and_resume(start, write(tmp_path / "data"))


@pytest.mark.further
def test_a_stream_is_read_once_by_all_ranks_and_the_job_that_goes_on(start, tmp_path):
    printed = lose_a_worker_and_resume(start, a_stream(tmp_path))
    assert [text.count("it is read once now") for text in printed] == [1, 0], printed
    assert not (tmp_path / "job-0" / "records.partial").exists()


@pytest.mark.further
@pytest.mark.parametrize("write", [write_pictures, write_mds])
def test_each_record_in_s3_counts_once_over_a_killed_worker_and_another_ring(
    start, tmp_path, monkeypatch, write
):
    folder = write(tmp_path / "data")
    with serve() as server:
        for name, value in server.environment.items():  # For the proof, which reads them, too.
            monkeypatch.setenv(name, value)
        for path in filter(Path.is_file, folder.rglob("*")):
            server.put(f"data/{path.relative_to(folder)}", path.read_bytes())
        lose_a_worker_and_resume(start, "s3://bucket/data", **server.environment)
