"""Jobs on this machine through the client, by directories that jobs have filled."""

import fcntl
import os
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from edl_horovod import Client
from edl_horovod.config import resolved
from edl_horovod.config.schema import CheckpointConfig, JobConfig
from edl_horovod.errors import ConfigError, JobFailed, OutputError, TimedOut
from edl_horovod.job.directory import JobDir
from edl_horovod.job.earlier import hold
from edl_horovod.job.events import EventLog
from edl_horovod.launch import waiting
from edl_horovod.launch.local import LocalTarget
from edl_horovod.launch.target import TARGETS
from edl_horovod.supervisor.plan import LaunchPlan
from edl_horovod.supervisor.run import JobResult
from tests.job_events import event
from tests.waiting import wait_until

EVERY_STEP = CheckpointConfig(every_steps=1, every_seconds=0)
NEVER = CheckpointConfig(every_steps=0, every_seconds=0)


def make_job(path: Path, *, checkpoint: CheckpointConfig = EVERY_STEP, state: str = "") -> JobDir:
    """A job's directory after its first steps; its launcher said `state` last."""
    job = JobDir(path)
    job.claim()
    config = JobConfig(
        task="train", data="/d", output=f"{path}.out", model_def="m", checkpoint=checkpoint
    )
    resolved.dump(config, job.config)
    job.hosts.write_text("localhost:2\n")
    job.logs.mkdir()
    for name in ("launcher", "worker-0", "worker-1"):
        (job.logs / f"{name}.log").write_text(f"first of {name}\nlast of {name}\n")
    with EventLog(job.events, "launcher") as log:
        log.write(event("job", state="running", task="train"))
        members = ("localhost:1", "localhost:0")
        log.write(event("generation", size=2, members=members, is_formed=True))
        log.write(event("reset", generation=1, new_size=2, seconds=0.1))
        log.write(event("step", step=5, total_steps=20, size=2))
    if state:
        say(job, state)
    return job


def say(job: JobDir, state: str) -> None:
    with EventLog(job.events, "launcher") as log:
        log.write(event("job", state=state, task="train", message=f"it {state}"))


@pytest.fixture
def client():
    with Client() as client:
        yield client


class Launcher:
    """Holds a job's directory as a launcher does."""

    def __init__(self, job: JobDir) -> None:
        self._stream = job.launcher_pid.open("w")
        fcntl.flock(self._stream, fcntl.LOCK_EX)
        self._stream.write(f"{os.getpid()}\n")
        self._stream.flush()

    def end(self) -> None:
        self._stream.truncate(0)
        self._stream.close()


@pytest.fixture
def running(tmp_path):
    job = make_job(tmp_path / "running")
    launcher = Launcher(job)
    yield job
    launcher.end()


def test_list_has_a_row_for_each_job_below_a_folder(tmp_path, client):
    make_job(tmp_path / "models" / "a.job", state="finished")
    make_job(tmp_path / "models" / "b.job")
    make_job(tmp_path / "1" / "2" / "3" / "4" / "too-deep.job")
    (tmp_path / "no.job").mkdir()

    rows = client.list([tmp_path])

    assert [(Path(row.job).name, row.state, row.num_ready, row.num_wanted) for row in rows] == [
        ("a.job", "finished", 0, 2),
        ("b.job", "lost", 0, 2),
    ]
    assert {(row.place, row.step, row.total_steps) for row in rows} == {("", 5, 20)}
    with pytest.raises(ConfigError, match="nothing"):
        client.list([tmp_path / "nothing"])


def test_status_is_what_the_events_add_up_to(running, client):
    status = client.status(running.path)

    assert (status.state, status.progress.step, status.is_at_rest) == ("running", 5, False)
    assert str(status) == "running, 2 ranks"


def test_a_further_look_reads_only_new_events(running, client):
    before = client.status(running.path)
    size = running.events.stat().st_size
    first = running.events.read_bytes().index(b"\n") + 1
    with running.events.open("r+b") as stream:
        stream.seek(first)
        stream.write(b"x" * (size - first - 1))  # Nothing of this is read again.
    with EventLog(running.events, "localhost:0") as log:
        log.write(event("reset", generation=2, old_size=2, new_size=1, step=6))
        log.write(event("step", step=7, total_steps=20, size=1))

    status = client.wait(running.path, "running", timeout_seconds=0)

    assert before.progress.num_resets == 0
    assert (status.state, status.progress.step, status.progress.num_resets) == ("running", 7, 1)
    assert status.progress.members == before.progress.members


def test_a_job_that_begins_again_in_the_directory_is_a_new_one(running, client):
    client.status(running.path)
    os.truncate(running.events, 0)
    nothing = client.status(running.path)
    with EventLog(running.events, "launcher") as log:
        log.write(event("job", state="starting", task="train"))

    begun = client.status(running.path)

    assert nothing.progress.step == 0
    assert (begun.state, begun.progress.step, begun.progress.members) == ("starting", 0, ())


def test_logs_are_the_launchers_and_the_workers(tmp_path, client):
    job = make_job(tmp_path / "job", state="finished").path

    lines = [(line.source, line.text) for line in client.logs(job, tail=1)]

    names = ["launcher", "worker-0", "worker-1"]
    assert lines == [(name, f"last of {name}") for name in names]
    assert [line.text for line in client.logs(job, rank=0, tail=1)] == ["last of worker-1"]
    assert {line.source for line in client.logs(job, worker="localhost:0")} == {"worker-0"}
    assert len(list(client.logs(job, worker="launcher", follow=True))) == 2
    with pytest.raises(ConfigError, match="worker-0, worker-1"):
        client.logs(job, worker="worker-7")
    with pytest.raises(ConfigError, match="no rank 2"):
        client.logs(job, rank=2)


def test_followed_logs_end_with_the_job(tmp_path, client):
    job = make_job(tmp_path / "job")
    launcher = Launcher(job)
    lines = client.logs(job.path, worker="worker-0", follow=True)
    assert [next(lines).text, next(lines).text] == ["first of worker-0", "last of worker-0"]

    with (job.logs / "worker-0.log").open("a") as stream:
        stream.write("one more\nhalf a ")
        stream.flush()
        assert next(lines).text == "one more"
        stream.write("line")
    launcher.end()

    assert [line.text for line in lines] == ["half a line"]


def test_events_are_marked_with_who_said_them(tmp_path, client):
    job = make_job(tmp_path / "job", state="finished").path

    events = list(client.events(job))

    kinds = ["job", "generation", "reset", "step", "job"]
    assert [(event.origin, event.source, event.kind) for event in events] == [
        ("edl", "launcher", kind) for kind in kinds
    ]
    assert events[3].fields["step"] == 5
    assert "loss=0.5" in events[3].text
    assert "size=2 members=localhost:1,localhost:0 is_formed=True" in events[1].text
    assert list(client.events(job, follow=True)) == events


@pytest.mark.parametrize(
    ("state", "condition"),
    [("running",) * 2, ("finished", "running"), ("finished",) * 2, ("failed", "ended")],
)
def test_wait_ends_when_the_state_is_reached(tmp_path, client, state, condition):
    job = make_job(tmp_path / "job", state=state)
    launcher = Launcher(job)

    status = client.wait(job.path, condition, timeout_seconds=0)

    assert status.state == state
    launcher.end()


def test_a_stopped_job_has_ended(tmp_path, client):
    job = make_job(tmp_path / "m.job", state="suspended")
    assert client.wait(job.path, "ended", timeout_seconds=5) is not None


@pytest.mark.parametrize("name", ["job", "models/mnist.job"])
def test_wait_gives_a_job_the_time_to_start(tmp_path, client, monkeypatch, caplog, name):
    """Also where its name may be that of one in a cluster, as long as it is not there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KUBECONFIG", os.devnull)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    (tmp_path / "models").mkdir()

    def begin() -> None:
        wait_until(lambda: "no job" in caplog.text)
        make_job(tmp_path / "begun", state="finished").path.rename(tmp_path / name)

    starting = threading.Thread(target=begin)
    starting.start()
    status = client.wait(name)
    starting.join()
    assert status.state == "finished"


def test_wait_for_a_job_that_never_starts_ends(tmp_path, client, monkeypatch):
    monkeypatch.setattr(waiting, "START_SECONDS", 0.1)
    (tmp_path / "other").mkdir()
    for name in ("nowhere", "other"):
        with pytest.raises(ConfigError, match=r"config\.yaml"):
            client.wait(tmp_path / name)


def test_wait_says_why_it_gives_up(running, client):
    with pytest.raises(TimedOut, match="running, 2 ranks"):
        client.wait(running.path, timeout_seconds=0)
    say(running, "failed")
    with pytest.raises(JobFailed, match="it failed"):
        client.wait(running.path)
    assert client.wait(running.path.with_name("gone.job"), "deleted") is None
    with pytest.raises(ConfigError, match="ended, deleted"):
        client.wait(running.path, "done")


def test_a_stop_asks_the_launcher_and_waits_for_its_end(tmp_path, client):
    job = make_job(tmp_path / "job")
    launcher = Launcher(job)
    client.stop(job.path, is_dry_run=True)
    assert not job.stop_request.exists()

    def end() -> None:
        while not job.stop_request.exists():
            pass
        launcher.end()

    thread = threading.Thread(target=end)
    thread.start()
    client.stop(job.path)
    thread.join()

    assert client.status(job.path).is_at_rest
    with pytest.raises(ConfigError, match="not running"):
        client.stop(job.path)


def test_a_stop_that_would_lose_steps_must_be_meant(tmp_path, client):
    job = make_job(tmp_path / "job", checkpoint=NEVER)
    launcher = Launcher(job)

    with pytest.raises(ConfigError, match="5 steps"):
        client.stop(job.path)
    assert not job.stop_request.exists()
    client.stop(job.path, may_lose_steps=True, wait=False)

    assert job.stop_request.exists()
    launcher.end()


def test_a_stop_of_a_job_that_has_ended_would_lose_nothing(tmp_path, client):
    job = make_job(tmp_path / "job", checkpoint=NEVER, state="finished")

    assert client.loss_at_stop(job.path) == ""
    with pytest.raises(ConfigError, match="not running"):
        client.stop(job.path)


@pytest.mark.parametrize(("kind", "warnings"), [("local", 0), ("mpi", 1)])
def test_a_stop_of_a_static_ring_says_that_it_saves_nothing(
    tmp_path, client, caplog, kind, warnings
):
    job = make_job(tmp_path / "job")
    config = job.read_config()
    resolved.dump(replace(config, launch=replace(config.launch, kind=kind)), job.config)
    launcher = Launcher(job)

    client.stop(job.path, wait=False)

    launcher.end()
    assert [record.message.partition(";")[0] for record in caplog.records] == warnings * [
        "The stop saves no checkpoint"
    ]


class Recorder(LocalTarget):
    def __init__(self) -> None:
        self.configs: list[JobConfig] = []

    def launch(self, plan: LaunchPlan, *, on_events: Any = None, warm: object = None) -> JobResult:
        self.configs.append(plan.config)
        return JobResult(output="", job_dir="", steps=20)


@pytest.mark.parametrize("state", ["suspended", "failed", ""])
def test_resume_launches_the_job_again_from_its_checkpoint(tmp_path, client, monkeypatch, state):
    recorder = Recorder()
    monkeypatch.setitem(TARGETS, "local", lambda: recorder)
    job = make_job(tmp_path / "job", state=state)

    assert client.resume(job.path, is_dry_run=True) is None
    assert recorder.configs == []
    result = client.resume(job.path)

    assert result.steps == 20
    (config,) = recorder.configs
    assert (config.resume, config.job_dir) == ("auto", str(job.path))


def test_what_runs_or_has_finished_is_not_resumed(tmp_path, running, client):
    with pytest.raises(ConfigError, match="is running"):
        client.resume(running.path)
    with pytest.raises(ConfigError, match="has finished"):
        client.resume(make_job(tmp_path / "done", state="finished").path)


def test_delete_removes_a_jobs_directory_and_nothing_else(tmp_path, client):
    """Also what a killed writer left there."""
    job = make_job(tmp_path / "job", state="finished")
    (job.path / ".config.yaml.0a0a0a0a.partial").touch()

    assert str(job.path) in client.delete(job.path, is_dry_run=True)
    assert job.config.is_file()
    client.delete(job.path)

    assert list(tmp_path.iterdir()) == []


def test_what_is_not_provably_an_ended_jobs_is_not_deleted(tmp_path, running, client):
    with pytest.raises(ConfigError, match="is running"):
        client.delete(running.path)
    without_marker = make_job(tmp_path / "unmarked", state="finished")
    without_marker.marker.unlink()
    link = tmp_path / "link"
    link.symlink_to(make_job(tmp_path / "linked", state="finished").path)
    for path in (without_marker.path, link):
        with pytest.raises(OutputError, match="No marker"):
            client.delete(path)
    for name, events in {"of-horovodrun": [event("step", step=1)], "to-be-launched": []}.items():
        foreign = JobDir(tmp_path / name)
        foreign.claim()
        with EventLog(foreign.events, "localhost:0") as log:
            for first in events:
                log.write(first)
        with pytest.raises(ConfigError, match="not launch"):
            client.delete(foreign.path)

    assert len(list(tmp_path.iterdir())) == 6


def test_a_dashboard_listens_until_it_is_closed(running, client):
    with client.dashboard(running.path) as dashboard:
        assert dashboard.url.startswith("http://127.0.0.1:")
        assert not dashboard.is_public


@pytest.mark.parametrize(
    ("place", "named"),
    [
        ("notes.txt", "notes.txt"),
        ("logs/notes.txt", "logs/"),
        ("checkpoints/mine/thesis.txt", "checkpoints/"),
    ],
)
def test_what_is_not_the_jobs_is_found_below_it_too(tmp_path, client, place, named):
    job = make_job(tmp_path / "m.job", state="finished")
    mine = job.path / place
    mine.parent.mkdir(parents=True, exist_ok=True)
    mine.write_text("mine")
    with pytest.raises(OutputError, match=f": {named}"):
        client.delete(job.path)
    assert mine.read_text() == "mine"


def test_what_a_link_leads_to_stays(tmp_path, client):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "step-000000001.safetensors").write_text("good")
    job = make_job(tmp_path / "m.job", state="finished")
    job.checkpoints.symlink_to(elsewhere)
    client.delete(job.path)
    assert os.listdir(tmp_path) == ["elsewhere"]
    assert (elsewhere / "step-000000001.safetensors").exists()


def test_the_current_folder_is_deleted_by_its_name_and_no_name_is_refused(
    tmp_path, client, monkeypatch
):
    monkeypatch.chdir(make_job(tmp_path / "m.job", state="finished").path)
    with pytest.raises(ConfigError, match="needs a name"):
        client.delete("")
    client.delete(".")
    assert os.listdir(tmp_path) == []


def test_ranks_without_a_launcher_keep_the_directory(tmp_path, client):
    job = make_job(tmp_path / "m.job", state="failed")
    with job.in_use():
        with pytest.raises(ConfigError, match="is running"):
            client.delete(job.path)
        settings = {"hosts": {}, "secret_file": None, "has_coordinator": True}
        held = hold(job, job.read_config(), is_takeover=False, **settings)
        with pytest.raises(ConfigError, match="job runs"), held:
            pass
    assert job.logs.is_dir()
    client.delete(job.path)


@pytest.mark.parametrize("number", ["1", "4194399", "99999999999999999999", "rubbish"])
def test_a_running_launcher_is_known_by_its_lock_and_not_by_a_number(
    tmp_path, running, client, number
):
    job = make_job(tmp_path / "m.job")
    for directory, state in ((job, "lost"), (running, "running")):
        directory.launcher_pid.write_text(number)
        assert client.status(directory.path).state == state
