"""`edl report` of a job that lost a worker: where the time of each of its processes went."""

import json
import os
import re
import signal
import time

import pytest

from edl_horovod.errors import NotEnoughWorkers
from edl_horovod.job.account import LOST
from tests.integration.conftest import edl
from tests.records import write_records


def wait_for_end_of_killed(job):
    """Wait until the event says how a killed worker ended; returns when that was."""
    killed = job.wait_for(
        lambda found: next(
            (e for e in found if e.event.kind == "worker" and "SIGKILL" in e.event.message), None
        ),
        "the end of the killed one",
    )
    return killed.time


def test_the_causes_of_each_process_add_up_to_its_life(start, tmp_path):
    data = write_records(tmp_path / "data", 120)
    job = start(
        "train",
        "model_def=paced.PacedSpec",
        f"data={data}",
        "train.batch_size=24",
        "train.epochs=20",
        "data_plan.lanes=6",
        "launch.np=2",
        "elastic.max_np=2",
    )
    job.wait_for_step(5)
    ring = job.generation()
    lost_rank = job.events("generation")[-1].event.members.index("localhost:1")
    killed_at = time.time()
    job.signal_worker(1, signal.SIGKILL)
    assert wait_for_end_of_killed(job) - killed_at < 1
    lost = (
        rf"rank {lost_rank} \(localhost:1\) was lost, and 1 other had to stop in step \d+: ended"
        " with SIGKILL"
    )
    assert re.search(f"last loss +{lost}", edl("status", str(job.job_dir)))
    job.wait_for_ring(2, after=ring)
    running = json.loads(edl("report", str(job.job_dir), "-o", "json"))
    assert any(rank["doing"] for rank in running["ranks"])
    job.succeed()

    found = json.loads(edl("report", str(job.job_dir), "-o", "json"))
    (survivor,) = [rank for rank in found["ranks"] if rank["worker"] == "localhost:0"]
    killed, newcomer = sorted(
        (rank for rank in found["ranks"] if rank["worker"] == "localhost:1"),
        key=lambda rank: rank["began"],
    )
    for rank in found["ranks"]:
        life = rank["until"] - rank["began"]
        assert sum(rank["seconds"].values()) == pytest.approx(life, rel=0.005, abs=0.01)
        assert rank["doing"] == ""
        assert rank["seconds"]["building"] > 0
    assert survivor["seconds"]["computing"] > 10
    assert survivor["seconds"]["redone"] > 0
    assert "ending" in newcomer["seconds"]
    # An account is written again each second, or after 2 % of a longer life.
    assert 0 < killed["seconds"][LOST] < 5
    assert sum(found["seconds"].values()) == pytest.approx(
        sum(sum(rank["seconds"].values()) for rank in found["ranks"]), rel=1e-6
    )
    begins = {e.event.pid: e.time for e in job.events("worker") if e.event.state == "started"}
    for rank in found["ranks"]:
        assert rank["began"] == pytest.approx(begins[rank["pid"]], abs=3)

    text = edl("report", str(job.job_dir), "--html", str(tmp_path / "report.html"))
    assert f"goodput    {found['goodput']:.1%}" in text
    assert str(survivor["pid"]) in text
    page = (tmp_path / "report.html").read_text()
    assert all(f"pid {rank['pid']}" in page for rank in found["ranks"])
    for shown in (text, page):
        assert re.search(lost, shown)
        assert "The slowest rank is localhost:" in shown
    assert 0 < found["slowest"]["score"] <= 1.5


@pytest.mark.long
def test_a_rank_that_waits_outside_of_a_ring_says_for_what(start, tmp_path):
    data = write_records(tmp_path / "data", 120)
    job = start(
        "train",
        "model_def=paced.PacedSpec",
        f"data={data}",
        "train.batch_size=24",
        "train.epochs=200",
        "data_plan.lanes=6",
        "launch.np=2",
        "elastic.min_np=2",
        "elastic.wait_seconds=30",
    )
    job.wait_for_step(3)
    lost_rank = job.events("generation")[-1].event.members.index("localhost:1")
    job.signal_worker(1, signal.SIGKILL)
    wait_for_end_of_killed(job)
    job.want(1)
    job.wait_for(
        lambda found: any(e.event.kind == "job" and e.event.state == "waiting" for e in found),
        "the wait",
    )
    os.kill(job.coordinator_pid(), signal.SIGKILL)
    assert job.end() == NotEnoughWorkers.exit_code, job.describe()
    lost = rf"The last loss: rank {lost_rank} \(localhost:1\) was lost, .*: ended with SIGKILL"
    assert re.search(lost, job.printed)

    found = json.loads(edl("report", str(job.job_dir), "-o", "json"))
    (survivor,) = [rank for rank in found["ranks"] if rank["worker"] == "localhost:0"]
    assert survivor["seconds"]["below_min_np"] > 10
    assert survivor["seconds"]["coordinator_away"] > 0.1
    life = survivor["until"] - survivor["began"]
    assert sum(survivor["seconds"].values()) == pytest.approx(life, rel=0.005, abs=0.01)
