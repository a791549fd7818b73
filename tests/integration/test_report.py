"""`edl report` of a job that lost a worker: where the time of each of its processes went."""

import json
import signal

import pytest

from edl_horovod.job.account import LOST
from tests.integration.conftest import edl
from tests.records import write_records


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
    job.signal_worker(1, signal.SIGKILL)
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
