"""`edl scale` and `edl status` on a job that runs, as a user types them."""

import json
import subprocess
import sys

import pytest

from tests import counting_job


def edl(*words):
    """One command to its end: exit code and what it printed."""
    run = subprocess.run(
        [sys.executable, "-m", "edl_horovod", *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return run.returncode, run.stdout + run.stderr


def status(job):
    code, printed = edl("status", job.job_dir, "-o", "json")
    assert code == 0, printed
    return json.loads(printed)


@pytest.mark.long
def test_a_running_job_is_scaled_up_and_down(start, tmp_path):
    settings = {"launch.np": 1, "elastic.max_np": 3}
    job = start("train", *counting_job.overrides(tmp_path, **settings))
    job.wait_for_step(2)
    assert edl("scale", job.job_dir, "--np", 2, "--dry-run") == (
        0,
        f"job {job.job_dir}: 1 -> 2 ranks (dry run)\n",
    )
    code, printed = edl("scale", job.job_dir, "--np", 4)
    assert code == 2, printed
    assert "min_np=1 and 3" in printed

    assert edl("scale", job.job_dir, "--np", 3) == (0, f"job {job.job_dir}: 1 -> 3 ranks\n")
    grown = job.wait_for_ring(3)
    now = status(job)
    assert (now["state"], now["size"], now["generation"]) == ("running", 3, grown)
    assert sorted(now["workers"]) == ["localhost:0", "localhost:1", "localhost:2"]
    code, printed = edl("status", job.job_dir)
    assert f"3 ranks, generation {grown}" in printed

    leavers = [job.worker_pid(slot) for slot in (1, 2)]
    assert edl("scale", job.job_dir, "--np", 1) == (0, f"job {job.job_dir}: 3 -> 1 ranks\n")
    shrunk = job.wait_for_ring(1, after=grown)
    # Who is dismissed ends by itself, so its slot is free for a new one.
    job.wait_for(lambda _: not set(leavers) & set(job.processes()), "the end of the dismissed")
    job.wait_for(
        lambda _: status(job)["workers"]["localhost:1"]["state"] == "left", "two that left"
    )
    assert status(job)["size"] == 1

    assert edl("scale", job.job_dir, "--np", 2) == (0, f"job {job.job_dir}: 1 -> 2 ranks\n")
    job.wait_for_ring(2, after=shrunk)
    (tmp_path / "hurry").touch()
    job.succeed()
    counting_job.assert_each_record_once_an_epoch(tmp_path / "out")
    assert status(job)["state"] == "finished"
    code, printed = edl("scale", job.job_dir, "--np", 3)
    assert code == 2, printed
    assert "not running" in printed
