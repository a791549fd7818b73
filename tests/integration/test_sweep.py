"""`edl train -m` as a user runs it: Ctrl-C in the middle, and the same again."""

import json
import signal
import subprocess
import sys

import pytest

from tests.integration.conftest import REPOSITORY, ZOO, Job, for_framework
from tests.records import write_records


def states(output):
    jobs = json.loads((output / "sweep.json").read_text())["jobs"]
    return {name: job["state"] for job in jobs for name in job["chosen"].values()}


@pytest.mark.long
def test_an_interrupt_keeps_what_is_finished(tmp_path, framework):
    data, output = write_records(tmp_path / "data", 100), tmp_path / "sweep"
    command = [
        sys.executable,
        "-m",
        "edl_horovod",
        "train",
        "-m",
        *for_framework(framework, ["model_def=tiny"]),
        f"model_zoo={ZOO}",
        f"data={data}",
        f"output={output}",
        f"job_dir={tmp_path}/jobs",
        "train.batch_size=20",
        "train.max_steps=5,1000000,7",
        "train.epochs=10000000",
        "launch.threads_per_rank=1",
    ]
    long_job = tmp_path / "jobs" / "max_steps=1000000"
    long_job.mkdir(parents=True)
    job = Job(command, long_job)
    try:
        job.wait_for_step(1)
        job.process.send_signal(signal.SIGINT)
        assert job.end() == 130, job.describe()
        assert job.processes() == []
    finally:
        job.close()

    assert states(output) == {"5": "finished", "1000000": "interrupted", "7": "waiting"}
    assert (output / "max_steps=5" / "trained_model.pb").exists()
    assert not (output / "max_steps=1000000").exists()
    assert "1000000          interrupted" in job.printed

    again = subprocess.run(
        [*command, "--dry-run"], capture_output=True, text=True, cwd=REPOSITORY, check=True
    )
    assert [line.split()[:2] for line in again.stdout.splitlines()[1:]] == [
        ["5", "earlier"],
        ["1000000", "waiting"],
        ["7", "waiting"],
    ]
