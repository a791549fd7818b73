"""Whole jobs on data that is not RecordIO on this disk: objects of an S3 server, CSV files."""

import csv
import re
from pathlib import Path

import numpy as np
import pytest

from edl_horovod import trained_model
from edl_horovod.records.reader import Reader
from edl_horovod.trained_model.params import read_params
from tests.records import write_records
from tests.s3_server import serve

NUM_RECORDS = 100
COMMON = ("model_def=tiny", "train.batch_size=24", "train.epochs=2", "data_plan.lanes=6")


def weights(output):
    return dict(read_params(trained_model.read(output).params_files))


@pytest.mark.further
def test_two_ranks_on_s3_train_what_one_does_on_the_disk(start, tmp_path):
    pattern = write_records(tmp_path / "data", NUM_RECORDS)
    start("train", *COMMON, f"data={pattern}", f"output={tmp_path}/local").succeed()
    with serve() as server:
        for path in (tmp_path / "data").iterdir():
            server.put(f"data/{path.name}", path.read_bytes())
        server.requests.clear()

        start(
            "train",
            *COMMON,
            "data=s3://bucket/data/part-*.recordio",
            "launch.np=2",
            f"output={tmp_path}/remote",
            **server.environment,
        ).succeed()

        assert server.gets(".recordio")
    local, remote = weights(tmp_path / "local"), weights(tmp_path / "remote")
    assert list(local) == list(remote)
    for name, value in remote.items():
        np.testing.assert_allclose(value, local[name], rtol=1e-4, atol=1e-6)


@pytest.mark.long
def test_what_is_wrong_with_remote_data_is_one_message(start):
    with serve() as server:
        server.put("data/x.recordio", b"")
        job = start("train", *COMMON, "data=s3://bukket/data/*", **server.environment)
        assert job.end() == 4, job.describe()
    assert re.search(r"s3://bukket/data .*404", job.printed)
    assert "Traceback" not in job.printed


@pytest.fixture
def table(tmp_path):
    """Two CSV files of rows with y = 2 x0 - x1, and text that needs quotes."""
    random = np.random.default_rng(3)
    for number in range(2):
        path = tmp_path / "table" / f"part-{number}.csv"
        path.parent.mkdir(exist_ok=True)
        with path.open("w", newline="") as stream:
            writer = csv.writer(stream)
            writer.writerow(["note", "x0", "x1", "y"])
            for row in range(200):
                x0, x1 = random.normal(size=2)
                writer.writerow([f'row {row},\n"quoted"', x0, x1, 2 * x0 - x1])
    return tmp_path / "table"


@pytest.mark.further
def test_a_folder_of_csv_files_is_learned_and_predicted(start, table, tmp_path):
    model = tmp_path / "model"
    job = start(
        "train",
        "model_def=table",
        f"data={table}",
        f"validation_data={table}/part-1.csv",
        "train.batch_size=40",
        "train.epochs=20",
        "launch.np=2",
        f"output={model}",
    ).succeed()
    assert job.events("step")[-1].event.records_seen == 20 * 400
    assert job.events("evaluation")[-1].event.examples == 200
    assert job.events("evaluation")[-1].event.metrics["absolute_error"] < 0.05

    predictions = tmp_path / "predictions.recordio"
    start("predict", f"trained_model={model}", f"data={table}", f"output={predictions}").succeed()
    with Reader.open(str(predictions)) as reader:
        assert len(reader) == 400


def test_formats_that_differ_end_the_job_at_once(start, table, tmp_path):
    records = write_records(tmp_path / "data", NUM_RECORDS)
    job = start("train", "model_def=table", f"data={table}", f"validation_data={records}")
    assert job.end() == 4, job.describe()
    assert "record format" in job.printed
    assert not Path(tmp_path, "job-0", "logs").exists()
