"""`edl report` of a job that lost a worker: where the time of each of its processes went."""

import collections
import gzip
import itertools
import json
import os
import re
import signal
import time

import pytest

from edl_horovod.errors import NotEnoughWorkers
from edl_horovod.job.account import LOST
from tests.integration.conftest import edl


def wait_for_end_of_killed(job):
    """Wait until the event says how a killed worker ended; returns when that was."""
    killed = job.wait_for(
        lambda events: next(
            (e for e in events if e.event.kind == "worker" and "SIGKILL" in e.event.message), None
        ),
        "the end of the killed one",
    )
    return killed.time


def assert_timeline_agrees(job, ranks):
    """Compare the spans of each process with its account, and look for what else there must be."""
    with gzip.open(job.job_dir / "timeline.json.gz") as stream:
        timeline = json.load(stream)
    trace, began = timeline["traceEvents"], timeline["otherData"]["began"]
    processes = {e["args"]["name"]: e["pid"] for e in trace if e["name"] == "process_name"}
    rows = {(e["pid"], e["args"]["name"]): e["tid"] for e in trace if e["name"] == "thread_name"}

    def spans(process, row):
        place = process, rows[process, row]
        return [e for e in trace if e["ph"] == "X" and (e["pid"], e["tid"]) == place]

    assert len(processes) == 1 + len(ranks)
    for rank in ranks:
        process = processes[f"{rank['worker']}, pid {rank['pid']}"]
        doing = spans(process, "doing")
        for before, after in itertools.pairwise(doing):
            assert before["ts"] + before["dur"] <= after["ts"] <= before["ts"] + before["dur"] + 2
        seconds = collections.Counter()
        for e in doing:
            seconds[e["name"]] += e["dur"] / 1e6
        # A process that was killed took its last second with it, from both.
        was_killed = LOST in rank["seconds"]
        bound, least = (2.5, 0) if was_killed else (0.1, 5)
        for cause in seconds.keys() | rank["seconds"].keys() - {LOST}:
            assert seconds[cause] == pytest.approx(rank["seconds"].get(cause, 0), abs=bound), cause
        steps = spans(process, "steps")
        assert len({e["name"] for e in steps}) == len(steps) > least
        reduced = collections.defaultdict(dict)
        for e in trace:
            if e["ph"] in ("b", "e") and e["pid"] == process:
                reduced[e["id"]][e["ph"]] = e["ts"]
        assert all(ends["b"] <= ends["e"] for ends in reduced.values())
        assert len(reduced) > least  # None while the survivor is alone.
    clocks = [e["args"]["labels"] for e in trace if e["name"] == "process_labels"]
    assert any(clock.startswith("the coordinator's clock") for clock in clocks)
    done = {
        (e["name"], round(began + (e["ts"] + e["dur"]) / 1e6))
        for process in processes.values()
        if process
        for e in spans(process, "steps")
    }
    for step in job.events("step"):
        moments = {round(step.time + late) for late in (-1, 0, 1)}
        name = f"step {step.event.step - 1}"
        # All ranks end a step together, and the one that wrote the event may have been killed.
        assert done & {(name, moment) for moment in moments}, (step, done)
    reported = [e.event for e in job.events("reset")]
    assert [e["dur"] / 1e6 for e in spans(0, "resets")] == pytest.approx(
        [e.seconds for e in reported], abs=0.01
    )
    written = [e for e in job.events("checkpoint") if e.event.state == "written"]
    checkpoints = [
        e for process in processes.values() if process for e in spans(process, "checkpoints")
    ]
    assert len(checkpoints) == len(written) > 0


@pytest.mark.long
def test_the_causes_of_each_process_add_up_to_its_life(start_paced, tmp_path):
    job = start_paced(
        "train.epochs=20",
        "data_plan.lanes=6",
        "launch.np=2",
        "elastic.max_np=2",
        "checkpoint.every_steps=20",
        "debug.timeline=true",
    )
    job.wait_for_step(5)
    ring = job.generation()
    lost_rank = job.events("generation")[-1].event.members.index("localhost:1")
    killed_at = time.time()
    job.signal_worker(1, signal.SIGKILL)
    assert wait_for_end_of_killed(job) - killed_at < 5
    lost = (
        rf"rank {lost_rank} \(localhost:1\) was lost, and 1 other had to stop in step \d+: ended"
        " with SIGKILL"
    )
    assert re.search(f"last stop +{lost}", edl("status", str(job.job_dir)))
    job.wait_for_ring(2, after=ring)
    running = json.loads(edl("report", str(job.job_dir), "-o", "json"))
    assert any(rank["doing"] for rank in running["ranks"])
    job.succeed()

    report = json.loads(edl("report", str(job.job_dir), "-o", "json"))
    (survivor,) = [rank for rank in report["ranks"] if rank["worker"] == "localhost:0"]
    killed, newcomer = sorted(
        (rank for rank in report["ranks"] if rank["worker"] == "localhost:1"),
        key=lambda rank: rank["began"],
    )
    for rank in report["ranks"]:
        life = rank["until"] - rank["began"]
        assert sum(rank["seconds"].values()) == pytest.approx(life, rel=0.005, abs=0.01)
        assert rank["doing"] == ""
        assert rank["seconds"]["building"] > 0
    for reset in report["resets"]:
        notice, rendezvous, sync, first_step = reset["parts"].values()
        assert notice + rendezvous + sync == pytest.approx(reset["seconds"], abs=1e-3)
        assert min(notice, sync) >= 0 < min(rendezvous, first_step)
    assert [reset["new_size"] for reset in report["resets"]] == [1, 2]
    assert survivor["seconds"]["computing"] > 10
    assert survivor["seconds"]["redone"] > 0
    assert "ending" in newcomer["seconds"]
    # An account is written again each second, or after 2 % of a longer life.
    assert 0 < killed["seconds"][LOST] < 5
    assert sum(report["seconds"].values()) == pytest.approx(
        sum(sum(rank["seconds"].values()) for rank in report["ranks"]), rel=1e-6
    )
    begins = {e.event.pid: e.time for e in job.events("worker") if e.event.state == "started"}
    for rank in report["ranks"]:
        assert rank["began"] == pytest.approx(begins[rank["pid"]], abs=3)

    assert_timeline_agrees(job, report["ranks"])

    text = edl("report", str(job.job_dir), "--html", str(tmp_path / "report.html"))
    assert f"goodput    {report['goodput']:.1%}" in text
    assert str(survivor["pid"]) in text
    page = (tmp_path / "report.html").read_text()
    assert all(f"pid {rank['pid']}" in page for rank in report["ranks"])
    for shown in (text, page):
        assert re.search(lost, shown)
        assert "rank is localhost:" in shown
    assert 0 < report["slowest"]["score"] <= 1.5


@pytest.mark.long
def test_a_rank_that_waits_outside_of_a_ring_says_for_what(start_paced):
    job = start_paced(
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
        lambda events: any(e.event.kind == "job" and e.event.state == "waiting" for e in events),
        "the wait",
    )
    os.kill(job.coordinator_pid(), signal.SIGKILL)
    assert job.end() == NotEnoughWorkers.exit_code, job.describe()
    lost = rf"ring stopped last: rank {lost_rank} \(localhost:1\) was lost, .*: ended with SIGKILL"
    assert re.search(lost, job.printed)

    report = json.loads(edl("report", str(job.job_dir), "-o", "json"))
    (survivor,) = [rank for rank in report["ranks"] if rank["worker"] == "localhost:0"]
    assert survivor["seconds"]["below_min_np"] > 10
    assert survivor["seconds"]["coordinator_away"] > 0.1
    life = survivor["until"] - survivor["began"]
    assert sum(survivor["seconds"].values()) == pytest.approx(life, rel=0.005, abs=0.01)
