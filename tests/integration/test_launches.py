"""The same training by every launch; the errors that a user can meet."""

import json
import os
import re
import shutil
import signal
import sys
from pathlib import Path

import numpy as np
import pytest

from edl_horovod import trained_model
from edl_horovod.errors import JobFailed
from edl_horovod.trained_model.params import read_params
from tests.frameworks import NEEDS_KERAS
from tests.integration.conftest import edl
from tests.records import write_records
from tests.waiting import wait_until

NUM_RECORDS = 100
COMMON = ("model_def=tiny", "train.batch_size=24", "train.epochs=3", "data_plan.lanes=6")


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    return write_records(tmp_path_factory.mktemp("data"), NUM_RECORDS)


@pytest.fixture
def assert_same_weights(shared_folder, framework):
    """Compare a trained model with that of whichever launch was the first to end."""

    def compare(output):
        params = dict(read_params(trained_model.read(output).params_files))
        with shared_folder(f"launches-{framework}") as folder:
            path = folder / "weights.npz"
            if not path.exists():
                np.savez(path, **params)
            with np.load(path) as expected:
                assert sorted(params) == sorted(expected)  # A protobuf map has no order.
                for name, value in params.items():
                    np.testing.assert_allclose(value, expected[name], rtol=1e-4, atol=1e-6)

    return compare


@pytest.mark.long
def test_a_ring_of_one_gets_the_weights_of_all_launches(start, data, assert_same_weights, tmp_path):
    start("train", *COMMON, f"data={data}", "launch.np=1").succeed()
    assert_same_weights(tmp_path / "out")


@pytest.mark.further
def test_a_ring_of_three_gets_the_weights_of_all_launches(
    start, data, assert_same_weights, tmp_path
):
    start("train", *COMMON, f"data={data}", "launch.np=3").succeed()
    assert_same_weights(tmp_path / "out")


@pytest.mark.long
def test_a_static_ring_gets_the_weights_of_all_launches(start, data, assert_same_weights, tmp_path):
    start("train", *COMMON, f"data={data}", "launch=mpi", "launch.np=2").succeed()
    assert_same_weights(tmp_path / "out")


@pytest.mark.long
def test_a_static_ring_ends_with_its_killed_launcher(start, data):
    endless = ("model_def=tiny", "train.epochs=1000000", f"data={data}")
    job = start("train", *endless, "launch=mpi", "launch.np=2")
    job.wait_for_step(1)
    job.process.kill()
    wait_until(lambda: not job.processes(), "the end of the ring", seconds=20)


@pytest.mark.long
def test_a_static_ring_names_the_rank_that_was_killed(start, data):
    endless = ("model_def=tiny", "train.epochs=1000000", f"data={data}")
    job = start("train", *endless, "launch=mpi", "launch.np=2")
    job.wait_for_step(1)
    accounts = {e.source.rpartition(":")[2]: e for e in job.events("account")}
    os.kill(accounts["1"].event.pid, signal.SIGKILL)

    assert job.end() == JobFailed.exit_code, job.describe()
    lost = rf"rank 1 \({accounts['1'].source}\) was lost.*: ended with SIGKILL"
    assert re.search(lost, job.printed)
    report = json.loads(edl("report", str(job.job_dir), "-o", "json"))
    assert [stop["rank"] for stop in report["stops"]] == [1]
    assert re.search(f"last stop +{lost}", edl("status", str(job.job_dir)))


def environment_without_programs(folder):
    """This Python's environment once more, with nothing beside its Python; returns that."""
    (folder / "bin").mkdir(parents=True)
    python = folder / "bin" / "python"
    python.symlink_to(Path(sys.executable).resolve())
    (folder / "lib").symlink_to(Path(sys.prefix) / "lib")
    (folder / "pyvenv.cfg").write_text(f"home = {Path(sys.executable).resolve().parent}\n")
    return str(python)


def test_without_mpi_one_sentence_says_what_to_install(start, data, tmp_path):
    job = start(
        "train",
        *COMMON,
        f"data={data}",
        "launch=mpi",
        python=environment_without_programs(tmp_path / "bare"),
        PATH="/nowhere",
    )
    assert job.end() == 8, job.describe()
    assert "'.[mpi]'" in job.printed
    assert "Traceback" not in job.printed


@pytest.mark.long
def test_a_bad_loss_ends_the_job_with_its_step(start, data, tmp_path):
    job = start("train", *COMMON, f"data={data}", "params.bad_id=5", "launch.np=2")
    assert job.end() == 5, job.describe()
    assert "loss of" in job.printed
    assert "Traceback" not in job.printed
    assert not (tmp_path / "out").exists()
    assert not job.processes()


@pytest.mark.long(after=1)
@pytest.mark.parametrize(
    ("overrides", "code", "sentence"),
    [
        (["model_def=raises"], 3, "this file is broken on purpose"),
        pytest.param(["model_def=tinny"], 3, "tiny", marks=pytest.mark.further),
        pytest.param(
            ["model_def=tiny", "params.keep=2"], 2, "keep_every", marks=pytest.mark.further
        ),
        pytest.param(
            ["model_def=tiny", "train.batchsize=2"],
            2,
            "train.batch_size",
            marks=pytest.mark.further,
        ),
        (["model_def=tiny", "data=/no/such/*.recordio"], 4, "/no/such"),
        pytest.param(
            ["model_def=tiny", "model_zoo=/no/such/zoo"],
            2,
            "/no/such/zoo",
            marks=pytest.mark.further,
        ),
    ],
    ids=lambda value: str(value)[:40],
)
@NEEDS_KERAS
def test_a_mistake_is_one_message(start, data, tmp_path, overrides, code, sentence):
    words = (
        overrides if any(o.startswith("data=") for o in overrides) else [*overrides, f"data={data}"]
    )
    job = start("train", *words)
    assert job.end() == code, job.describe()
    assert sentence in job.printed
    assert "Traceback" not in job.printed
    assert not (tmp_path / "out").exists()


@pytest.mark.long
def test_what_is_left_out_of_the_data_is_told_once(start, tmp_path):
    data = write_records(tmp_path / "data", 300)
    damaged = tmp_path / "data" / "part-1.recordio"
    damaged_bytes = bytearray(damaged.read_bytes())
    damaged_bytes[len(damaged_bytes) // 2] ^= 1
    damaged.write_bytes(damaged_bytes)
    settings = ("launch.np=2", "train.max_steps=3", "data_plan.damaged=skip")
    job = start("train", *COMMON, *settings, f"data={data}").succeed()
    messages = [recorded.event.message for recorded in job.events("log")]
    assert len([message for message in messages if str(damaged) in message]) == 1
    assert job.printed.count(str(damaged)) == 1


def test_an_existing_output_is_not_touched(start, data, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("precious")
    job = start("train", *COMMON, f"data={data}")
    assert job.end() == 7, job.describe()
    assert (tmp_path / "out" / "thesis.txt").read_text() == "precious"
    shutil.rmtree(tmp_path / "out")
