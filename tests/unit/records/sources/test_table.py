"""A source that the table names is all that `data` needs: here one in memory."""

import subprocess
import sys

import pytest

from edl_horovod.config.compose import compose
from edl_horovod.config.schema import DataConfig
from edl_horovod.errors import ConfigError, DataError
from edl_horovod.preparation.inputs import find
from edl_horovod.records.job_data import open_source, plan_of
from edl_horovod.records.sources.table import SCHEMES, check_sources, kind_of
from edl_horovod.records.steps import StepRecords

TRAIN = ["output=/o", "model_def=m"]


@pytest.fixture(autouse=True)
def _with_numbers(monkeypatch):
    monkeypatch.setitem(SCHEMES, "numbers", "tests.memory_source")


def test_a_job_reads_every_record_of_a_source_in_memory_once_an_epoch():
    config = compose("train", ["data=numbers:1000", "train.batch_size=16", *TRAIN])
    check_sources([config.data, config.validation_data], config.data_plan)
    with open_source(config.data, config.data_plan) as source:
        plan = plan_of(source, config.data_plan, global_batch=16, num_lanes=16, is_training=True)
        records = StepRecords(source, plan)
        records.restart(range(plan.num_lanes), 0, plan.steps_per_epoch)
        run, num_steps = records.take_run(1)
        read = [record for n in range(num_steps) for record in records.read(run, n)[1]]

        assert sorted(read) == sorted(source.read(range(1000)))
        assert plan.facts()["data"] == source.fingerprint
    assert config.data == "numbers:1000"


def test_a_source_that_is_no_file_has_no_path_and_is_not_prepared():
    assert list(kind_of("numbers:7").local_patterns("numbers:7")) == []
    with pytest.raises(DataError, match="numbers:7"):
        find("numbers:7", shuffle=False)


@pytest.mark.parametrize("data", ["", "a:b", "s3://b/x", "file:///x", "/numbers:7", "a,numbers:7"])
def test_what_begins_with_no_scheme_of_the_table_names_files(data):
    assert kind_of(data) is kind_of("/data")


def test_files_are_checked_together_and_sources_of_other_kinds_by_themselves(tmp_path):
    for name in ("a.csv", "b.recordio"):
        (tmp_path / name).touch()
    check_sources([f"{tmp_path}/a.csv", "numbers:7"], DataConfig())
    with pytest.raises(DataError, match=r"a\.csv.*b\.recordio"):
        check_sources([f"{tmp_path}/a.csv", f"{tmp_path}/b.recordio"], DataConfig())


@pytest.mark.parametrize(
    "name",
    ["a.arrow", "a.feather", "a.txt", "a.tar", "a.mds", "a.npy", "a.npz", "dataset:own.train"],
)
def test_damage_that_a_format_cannot_leave_out_is_refused(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).touch()
    settings = DataConfig(damaged="skip")
    for refusing in (lambda: check_sources([name], settings), lambda: open_source(name, settings)):
        with pytest.raises(ConfigError) as error:
            refusing()
        assert error.value.received == {"data_plan.damaged": "skip"}


@pytest.mark.parametrize(
    "name", ["a.recordio", "a.csv", "a.tfrecord", "a.parquet", "a.jsonl", "a.jpg"]
)
def test_what_is_damaged_in_other_formats_may_be_left_out(tmp_path, name):
    (tmp_path / name).touch()
    check_sources([str(tmp_path / name)], DataConfig(damaged="skip"))


def test_commands_find_and_check_data_without_numpy(tmp_path):
    (tmp_path / "a.csv").touch()
    code = (
        "import sys; from edl_horovod.records.sources.table import check_sources\n"
        "check_sources([sys.argv[1]], None); assert 'numpy' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "a.csv")], check=True, timeout=60)
