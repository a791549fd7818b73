"""Jobs of launch=slurm in a real Slurm: what Slurm and the verbs may do to them."""

import json
import subprocess
import sys

import pytest

from edl_horovod import trained_model
from edl_horovod.job import events
from tests import logs, slurm_lab
from tests.integration.conftest import REPOSITORY, ZOO, for_framework
from tests.records import write_records
from tests.waiting import wait_until

pytestmark = pytest.mark.root
STEPS_OF_AN_EPOCH = 5


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """The settings of a Slurm that runs."""
    slurm_lab.skip_without_slurm()
    with slurm_lab.running_slurm(tmp_path_factory.mktemp("slurm")) as settings:
        yield settings


@pytest.fixture
def submit(cluster, framework, tmp_path, monkeypatch):
    """Submit a training of two ranks on two nodes; gives its number in Slurm."""
    monkeypatch.setenv("SLURM_CONF", str(cluster))
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))

    def submit_job(*overrides, num_epochs):
        data = write_records(tmp_path / "data", 120)
        printed = edl(
            "train",
            *for_framework(framework, ["model_def=paced.PacedSpec"]),
            f"model_zoo={ZOO}",
            f"data={data}",
            f"output={tmp_path}/out",
            f"job_dir={tmp_path}/job",
            "train.batch_size=24",
            f"train.epochs={num_epochs}",
            "data_plan.lanes=6",
            "checkpoint.every_seconds=600",
            "launch=slurm",
            "launch.np=2",
            "launch.threads_per_rank=1",
            "slurm.interface=lo",
            *overrides,
        )
        return printed.split()[1]

    yield submit_job
    slurm("scancel", "--user=root", "--full", "--signal=KILL")


def edl(*words, code=0):
    command = [sys.executable, "-m", "edl_horovod", *words]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=320)
    assert ended.returncode == code, ended.stdout + ended.stderr
    return ended.stdout + ended.stderr


def slurm(*words):
    return subprocess.run(words, capture_output=True, text=True, timeout=60, check=True).stdout


def state_in_slurm(number):
    return slurm("squeue", "--noheader", "--states=all", f"--jobs={number}", "--format=%T").strip()


def wait_in_job(is_there, job_dir, *, seconds=150):
    """Wait until a function is true, else fail with all that the job wrote."""

    def describe():
        files = [*job_dir.parent.glob("*.log"), *job_dir.glob("logs/*.log")]
        return logs.page(files, recorded=events.read(job_dir / "events.jsonl"))

    wait_until(is_there, seconds=seconds, describe=describe, pause=0.2)


def events_of(job_dir, kind=None):
    recorded = [entry.event for entry in events.read(job_dir / "events.jsonl")]
    return [event for event in recorded if kind in (None, event.kind)]


def wait_for_ring(job_dir, size):
    """Wait until the last ring that was formed has this size, and has trained."""

    def is_there():
        last = [event for event in events_of(job_dir) if event.kind in ("generation", "step")][-1:]
        return bool(last) and last[0].kind == "step" and last[0].size == size

    wait_in_job(is_there, job_dir)


def last_step(job_dir):
    return max(event.step for event in events_of(job_dir, "step"))


@pytest.mark.timeout(400)
def test_a_job_trains_on_two_nodes_and_the_verbs_show_it(submit, tmp_path):
    number = submit(num_epochs=8)

    assert number in [row["job"] for row in json.loads(edl("list", "-A", "-o", "json"))]
    assert "finished" not in edl("status", number)
    wait_for_ring(tmp_path / "job", 2)
    status = edl("status", number)
    assert "n1:0" in status
    assert "n2:0" in status
    assert "[launcher]" not in edl("logs", number, "--rank", "1")
    edl("wait", number, "--timeout", "2m")

    assert trained_model.read(tmp_path / "out").message.steps == 8 * STEPS_OF_AN_EPOCH
    assert "generation 1: 0 -> 2 ranks" in edl("logs", number, "--worker", "coordinator")
    wait_in_job(lambda: state_in_slurm(number) == "COMPLETED", tmp_path / "job")
    # Slurm forgets it after some minutes; its directory names it, too.
    assert "finished" in edl("status", f"{tmp_path}/job")


@pytest.mark.timeout(600)
def test_a_ring_follows_scale_and_lost_nodes_and_goes_on_after_a_stop(submit, tmp_path):
    job_dir = tmp_path / "job"
    number = submit(num_epochs=200)
    wait_for_ring(job_dir, 2)

    assert "2 -> 1 ranks" in edl("scale", number, "--np", "1")
    wait_for_ring(job_dir, 1)
    assert "resume=auto" in edl("scale", number, "--np", "3", code=2)
    edl("scale", number, "--np", "2")
    wait_for_ring(job_dir, 2)

    slurm("scontrol", "update", "NodeName=n2", "State=DOWN", "Reason=test")
    wait_for_ring(job_dir, 1)
    wait_in_job(lambda: "n2" not in (job_dir / "hosts").read_text(), job_dir)
    slurm("scontrol", "update", "NodeName=n2", "State=RESUME")

    assert f"edl resume {number}" in edl("stop", number)
    checkpoint = events_of(job_dir, "checkpoint")[-1]
    assert checkpoint.step >= last_step(job_dir)
    edl("resume", str(job_dir))
    wait_for_ring(job_dir, 2)
    assert events_of(job_dir, "reset")[0].step == checkpoint.step
    edl("stop", str(job_dir))


@pytest.mark.timeout(600)
def test_a_job_leaves_before_its_time_limit_and_is_queued_again(submit, tmp_path):
    job_dir = tmp_path / "job"
    number = submit("slurm.time=2", "slurm.leave_seconds=20", num_epochs=80)
    wait_for_ring(job_dir, 2)
    wait_in_job(lambda: state_in_slurm(number) == "PENDING", job_dir, seconds=200)

    checkpoint = events_of(job_dir, "checkpoint")[-1]
    assert "waiting: Slurm" in edl("status", number)
    # Slurm itself waits two minutes. It kills a job that starts again within the second of its end.
    slurm("scontrol", "update", f"JobId={number}", "StartTime=now+3", "TimeLimit=20")
    edl("wait", number, "--timeout", "5m")

    assert events_of(job_dir, "reset")[0].step == checkpoint.step
    assert trained_model.read(tmp_path / "out").message.steps == 80 * STEPS_OF_AN_EPOCH


def test_a_job_that_has_not_started_is_cancelled(submit, tmp_path):
    number = submit("slurm.options=['--begin=now+1hour']", num_epochs=1)

    assert "waiting" in edl("status", number)
    assert "not started" in edl("logs", number, code=2)
    edl("stop", number)

    assert state_in_slurm(number) == "CANCELLED"
    assert not (tmp_path / "out").exists()
