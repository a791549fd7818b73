import json
import os
from pathlib import Path
from typing import Any

import pytest

from edl_horovod.cli.main import main
from edl_horovod.config import resolved
from edl_horovod.config.schema import DebugConfig, JobConfig, LaunchConfig, TrainConfig
from edl_horovod.ledger import LedgerFile
from edl_horovod.ledger.files import Begin, Done, Give, Leave
from edl_horovod.records.job_data import open_source, plan_of
from tests.programs import run_python
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


def begun_ledger(folder: Path) -> LedgerFile:
    file = LedgerFile(folder / "job" / "ledger", "localhost:0")
    file.write(Begin(ring=5, generation=3, rank=0, size=1, step=0, own_step=-1, digest="a"))
    return file


def write_ledger(folder: Path, config: JobConfig, *, leave_out: int = -1) -> None:
    """A job of one rank; it did not give the first record of the step `leave_out`."""
    batch = config.train.batch_size
    with open_source(config.data, config.data_plan) as source:
        plan = plan_of(
            source, config.data_plan, global_batch=batch, num_lanes=batch, is_training=True
        )
    file = begun_ledger(folder)
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


@pytest.mark.parametrize(
    ("leave_out", "missing_lines", "proof", "named"),
    [
        (2, slice(0), "FAILED", "generation 3, step 2, rank 0: 1 records"),
        (-1, slice(3, 5), "incomplete", "generation 3, step 1"),
    ],
    ids=["a lost record", "missing entries"],
)
def test_what_is_no_proof_is_an_exit_code(tmp_path, capsys, leave_out, missing_lines, proof, named):
    write_ledger(tmp_path, make_job(tmp_path), leave_out=leave_out)
    file = next((tmp_path / "job" / "ledger").iterdir())
    lines = file.read_bytes().splitlines(keepends=True)
    del lines[missing_lines]
    file.write_bytes(b"".join(lines))

    assert main(["ledger", str(tmp_path / "job")]) == 9
    printed = capsys.readouterr()
    assert f"proof      {proof}" in printed.out
    assert named in printed.err


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


@pytest.mark.further
def test_data_of_ones_own_that_imports_tensorflow_adds_no_noise(tmp_path):
    pytest.importorskip("tensorflow")
    (tmp_path / "own.py").write_text("import tensorflow as tf\n\nrows = [1, 2, 3]\n")
    make_job(tmp_path, data="dataset:own.rows", model_zoo=str(tmp_path))
    begun_ledger(tmp_path).close()
    quiet = {"TF_CPP_MIN_LOG_LEVEL", "TF_ENABLE_ONEDNN_OPTS"}
    variables = {name: value for name, value in os.environ.items() if name not in quiet}
    done = run_python("-m", "edl_horovod", "ledger", tmp_path / "job", env=variables)
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
