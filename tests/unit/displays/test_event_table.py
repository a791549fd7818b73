"""A job's events as a table, read again by others' readers."""

import csv
import os

import pyarrow.parquet
import pytest

from edl_horovod.cli.main import main
from edl_horovod.displays import event_table
from edl_horovod.errors import ConfigError, OutputError
from edl_horovod.job.events import Recorded
from tests.job_events import event

EVENTS = [
    Recorded(1000.25, "launcher", event("job", state="running", metrics={"accuracy": 0.5})),
    Recorded(1001.0, "host:0", event("step", step=3, loss=None, metrics={"accuracy": 0.75})),
    Recorded(
        1002.0, "coordinator", event("generation", members=("a:0", "b:0"), reason='a "new", one\n')
    ),
    Recorded(1003.0, "host:0", event("account", seconds={"computing": 2.0})),
    Recorded(1004.0, "host:0", event("reset", seconds=0.03)),
    Recorded(1005.0, "a:0", event("evaluation", parties={"a": {"loss": 0.5}, "b": {"loss": 2.0}})),
]


def read_parquet(path):
    return pyarrow.parquet.read_table(path).to_pylist()


def read_csv(path):
    with path.open(newline="") as stream:
        return list(csv.DictReader(stream))


@pytest.mark.parametrize(("suffix", "read"), [(".parquet", read_parquet), (".csv", read_csv)])
def test_each_event_is_a_row_and_each_named_number_a_column(tmp_path, suffix, read):
    path = tmp_path / f"events{suffix}"
    assert event_table.write(path, iter(EVENTS)) == len(EVENTS)

    job, step, generation, account, reset, evaluation = read(path)
    assert [str(row["kind"]) for row in (job, step)] == ["job", "step"]
    assert [float(row["metrics.accuracy"]) for row in (job, step)] == [0.5, 0.75]
    assert int(step["step"]) == 3
    assert step["loss"] in (None, "")
    assert generation["members"] == '["a:0", "b:0"]'
    assert generation["reason"] == 'a "new", one\n'
    assert float(account["seconds.computing"]) == 2.0
    assert float(reset["seconds"]) == 0.03
    assert [float(evaluation[f"parties.{party}.loss"]) for party in "ab"] == [0.5, 2.0]
    assert str(job["time"]).replace(" ", "T").startswith("1970-01-01T00:16:40.250000")


def test_fields_of_one_name_and_several_types_are_one_column(tmp_path):
    events = [
        Recorded(1.0, "host:0", event("step", metrics={"a": 0.5})),
        Recorded(2.0, "host:0", event("log", message="text")),
        Recorded(3.0, "host:0", event("progress", records=7)),
    ]
    event_table.write(tmp_path / "e.parquet", events)
    assert [row["records"] for row in read_parquet(tmp_path / "e.parquet")] == [None, None, 7]


def test_another_kind_of_file_is_refused_before_anything_is_read(tmp_path, capsys):
    arguments = ["events", str(tmp_path / "no-job"), "--to", str(tmp_path / "e.xlsx")]
    assert main(arguments) == ConfigError.exit_code
    assert ".parquet" in capsys.readouterr().err


def test_a_job_without_events_is_a_table_without_rows(tmp_path):
    for suffix in event_table.SUFFIXES:
        assert event_table.write(tmp_path / f"e{suffix}", []) == 0
    assert read_csv(tmp_path / "e.csv") == []
    assert read_parquet(tmp_path / "e.parquet") == []


def test_a_file_that_cannot_be_written_is_one_error(tmp_path):
    with pytest.raises(OutputError):
        event_table.write(tmp_path / "no" / "e.csv", EVENTS)
    assert os.listdir(tmp_path) == []
