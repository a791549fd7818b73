import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from edl_horovod.cli.main import main
from edl_horovod.config import resolved
from edl_horovod.config.schema import DebugConfig, JobConfig, LaunchConfig, TrainConfig
from edl_horovod.ledger import LedgerFile
from edl_horovod.ledger.files import Begin, Done, Give, Leave
from edl_horovod.records.job_data import open_source, plan_of
from tests.records import write_records

NUM_RECORDS, BATCH = 40, 8


def make_job(folder: Path, **changes: Any) -> JobConfig:
    (folder / "job").mkdir()
    settings = {
        "data": write_records(folder / "data", NUM_RECORDS),
        "debug": DebugConfig(ledger=True),
        **changes,
    }
    config = JobConfig(
        task="train", output="/o", model_def="m", train=TrainConfig(batch_size=BATCH), **settings
    )
    resolved.dump(config, folder / "job" / "config.yaml")
    (folder / "job" / "hosts").write_text("localhost:2\n")
    return config


def write_ledger(folder: Path, config: JobConfig, *, leave_out: int = -1) -> None:
    """A job of one rank; it did not give the first record of the step `leave_out`."""
    batch = config.train.batch_size
    with open_source(config.data, config.data_plan) as source:
        plan = plan_of(
            source, config.data_plan, global_batch=batch, num_lanes=batch, is_training=True
        )
    file = LedgerFile(folder / "job" / "ledger", "localhost:0")
    file.write(Begin(ring=5, generation=3, rank=0, size=1, step=0, own_step=-1, digest="a"))
    for step in range(plan.steps_per_epoch):
        ids = plan.order(0).records(step, range(plan.num_lanes))
        file.write(Give(ring=5, step=step, ids=ids[step == leave_out :]))
        file.write(Done(ring=5, step=step, examples=BATCH, loss=0.5))
    file.write(Leave(ring=5, step=plan.steps_per_epoch, digest="b", is_over=True))
    file.close()


def test_a_good_ledger_is_a_proof(tmp_path, capsys):
    write_ledger(tmp_path, make_job(tmp_path))

    assert main(["ledger", str(tmp_path / "job")]) == 0
    printed = capsys.readouterr().out
    assert "exactly once" in printed
    assert "5 (1 whole" in printed
    assert main(["ledger", str(tmp_path / "job"), "-o", "json"]) == 0
    proof = json.loads(capsys.readouterr().out)
    assert (proof["is_good"], proof["num_records"], proof["digest"]) == (True, NUM_RECORDS, "b")


def test_a_lost_record_is_an_exit_code(tmp_path, capsys):
    write_ledger(tmp_path, make_job(tmp_path), leave_out=2)

    assert main(["ledger", str(tmp_path / "job")]) == 9
    printed = capsys.readouterr()
    assert "proof      FAILED" in printed.out
    assert "generation 3, step 2, rank 0: 1 records" in printed.err


def test_missing_entries_are_an_exit_code_and_no_lost_record(tmp_path, capsys):
    write_ledger(tmp_path, make_job(tmp_path))
    file = next((tmp_path / "job" / "ledger").iterdir())
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join([*lines[:3], *lines[5:]]))

    assert main(["ledger", str(tmp_path / "job")]) == 9
    printed = capsys.readouterr()
    assert "proof      incomplete" in printed.out
    assert "generation 3, step 1" in printed.err


@pytest.mark.parametrize(
    ("has_ledger", "named"),
    [(False, "debug.ledger=true"), (True, "no entries")],  # It ended before its first step.
)
def test_a_job_without_a_ledger_or_with_an_empty_one_is_told(tmp_path, capsys, has_ledger, named):
    make_job(tmp_path, debug=DebugConfig(ledger=has_ledger))

    assert main(["ledger", str(tmp_path / "job")]) == 2
    err = capsys.readouterr().err
    assert named in err
    assert ("debug.ledger" in err) == (not has_ledger)


@pytest.mark.long
def test_data_of_ones_own_that_imports_tensorflow_adds_no_noise(tmp_path):
    pytest.importorskip("tensorflow")
    (tmp_path / "zoo").mkdir()
    (tmp_path / "zoo" / "own.py").write_text("import tensorflow as tf\n\nrows = [1, 2, 3]\n")
    make_job(tmp_path, data="dataset:own.rows", model_zoo=str(tmp_path / "zoo"))
    file = LedgerFile(tmp_path / "job" / "ledger", "localhost:0")
    file.write(Begin(ring=5, generation=3, rank=0, size=1, step=0, own_step=-1, digest="a"))
    file.close()
    quiet = {"TF_CPP_MIN_LOG_LEVEL", "TF_ENABLE_ONEDNN_OPTS"}
    done = subprocess.run(
        [sys.executable, "-m", "edl_horovod", "ledger", str(tmp_path / "job")],
        env={name: value for name, value in os.environ.items() if name not in quiet},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.fixture
def job_dir(tmp_path):
    make_job(tmp_path)
    return tmp_path / "job"


def test_a_dry_run_prints_the_schedule(running, capsys):
    assert main(["chaos", str(running), "20:add", "10:kill:1", "--dry-run"]) == 0
    assert capsys.readouterr().out == "10:kill:1\n20:add\n"
    seeded = ["--seed", "7", "--seconds", "10", "--dry-run", "-o", "json"]
    assert main(["chaos", str(running), *seeded]) == 0
    assert len(json.loads(capsys.readouterr().out)["schedule"]) == 2


def test_a_schedule_may_be_a_file(running, capsys):
    (running / "day").write_text("3:remove  # the night\n1:coordinator\n")

    assert main(["chaos", str(running), "--schedule", str(running / "day"), "--dry-run"]) == 0
    assert capsys.readouterr().out == "1:coordinator\n3:remove\n"
    assert main(["chaos", str(running), "--schedule", "/nowhere", "--dry-run"]) == 2


@pytest.mark.parametrize(("kind", "named"), [("local", "not running"), ("mpi", "launch.kind=mpi")])
def test_a_job_that_does_not_run_or_is_a_static_ring_is_left_alone(tmp_path, capsys, kind, named):
    make_job(tmp_path, launch=LaunchConfig(kind=kind))

    assert main(["chaos", str(tmp_path / "job"), "1:kill"]) == 2
    assert named in capsys.readouterr().err
