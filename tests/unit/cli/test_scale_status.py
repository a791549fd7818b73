import json
import os
from pathlib import Path
from typing import Any

import pytest

from edl_horovod.cli.main import main
from edl_horovod.config import resolved
from edl_horovod.config.schema import ElasticConfig, JobConfig, LaunchConfig
from edl_horovod.files import marker
from edl_horovod.job import outcome
from edl_horovod.job.directory import JobDir
from edl_horovod.job.events import EventLog, line_of
from edl_horovod.job.outcome import Failure, Success
from tests.job_events import event, recorded
from tests.programs import run_python


def make_job(job_dir: Path, **changes: Any) -> None:
    job_dir.mkdir(exist_ok=True)
    settings = {"task": "train", "data": "/d", "output": "/o", "model_def": "m"}
    resolved.dump(JobConfig(**{**settings, **changes}), job_dir / "config.yaml")
    (job_dir / "hosts").write_text("localhost:2\n")


@pytest.fixture
def job_dir(tmp_path):
    """The directory of a job that has ended."""
    make_job(tmp_path / "job", launch=LaunchConfig(np=2), elastic=ElasticConfig(min_np=2, max_np=4))
    return tmp_path / "job"


@pytest.mark.parametrize(
    ("words", "slots", "told"),
    [(["3"], 3, "2 -> 3 ranks"), (["4", "--dry-run"], 2, "2 -> 4 ranks (dry run)")],
)
def test_scale_rewrites_the_slots_of_this_machine(running, capsys, words, slots, told):
    assert main(["scale", str(running), "--np", *words]) == 0

    assert (running / "hosts").read_text() == f"localhost:{slots}\n"
    assert capsys.readouterr().out == f"job {running}: {told}\n"


def test_scale_keeps_other_hosts_and_counts_them(running, capsys):
    (running / "hosts").write_text("other:2\nlocalhost:1\n")

    assert main(["scale", str(running), "--np", "2"]) == 0
    assert (running / "hosts").read_text() == "other:2\nlocalhost:2\n"
    assert main(["scale", str(running), "--np", "3"]) == 2
    err = capsys.readouterr().err
    assert "3 on this" in err
    assert "2 on other" in err


@pytest.mark.parametrize(
    ("slots", "limits"),
    [
        *((slots, ("elastic.min_np=2", "4 ranks")) for slots in ("0", "1", "5")),
        ("33", ("elastic.min_np=1", "32 ranks")),  # Never beyond the lanes.
    ],
)
def test_scale_outside_the_limits_is_refused(running, slots, limits, capsys):
    if slots == "33":
        make_job(running)
    assert main(["scale", str(running), "--np", slots]) == 2

    err = capsys.readouterr().err
    assert all(limit in err for limit in limits)
    assert (running / "hosts").read_text() == "localhost:2\n"


@pytest.mark.parametrize(
    ("verb", "words", "named"),
    [("scale", ["--np", "2"], "launch.kind=mpi"), ("logs", ["--rank", "0"], "one log")],
)
def test_a_static_ring_is_not_scaled_and_has_one_log_of_all(running, capsys, verb, words, named):
    make_job(running, launch=LaunchConfig(kind="mpi"))

    assert main([verb, str(running), *words]) == 2
    assert named in capsys.readouterr().err


def test_an_ended_job_is_neither_scaled_nor_stopped(job_dir, capsys):
    for verb, *words in (["scale", "--np", "3"], ["stop"]):
        assert main([verb, str(job_dir), *words]) == 2
        err = capsys.readouterr().err
        assert err.startswith("error: ")
        assert "not running" in err


def test_a_dead_launcher_or_its_reused_number_is_not_running(job_dir, capsys):
    dead = run_python("-c", "import os; print(os.getpid())", check=True)
    for pid in (dead.stdout, f"{os.getpid()}\n", ""):
        (job_dir / "launcher.pid").write_text(pid)
        assert main(["scale", str(job_dir), "--np", "3"]) == 2
        assert "not running" in capsys.readouterr().err


@pytest.mark.parametrize("verb", [["status"], ["scale", "--dry-run", "--np", "2"]])
def test_a_directory_without_a_job_is_refused(tmp_path, verb, capsys):
    assert main([*verb, str(tmp_path)]) == 2
    assert "config.yaml" in capsys.readouterr().err


def write_events(job_dir: Path, *, is_finished: bool, source: str = "launcher") -> None:
    with EventLog(job_dir / "events.jsonl", source) as log:
        log.write(event("job", state="running", task="train"))
        log.write(event("worker", worker="localhost:0", state="warm"))
        log.write(event("worker", worker="localhost:1", state="lost", message="exit code 9"))
        log.write(event("worker", worker="localhost:2", state="warm"))
        members = ("localhost:0", "localhost:1")
        log.write(event("generation", size=2, members=members, is_formed=True))
        log.write(event("reset", generation=1, new_size=2, seconds=0.1))
        step = {"step": 50, "total_steps": 200, "records_per_second": 1000.0, "size": 2}
        log.write(event("step", **step))
        log.write(event("evaluation", step=50, metrics={"accuracy": 0.75}, examples=10))
        if is_finished:
            log.write(event("job", state="finished", task="train"))


def test_status_is_a_table(running, capsys):
    assert main(["status", str(running)]) == 0
    assert "task       train" in capsys.readouterr().out  # Before the first event.
    write_events(running, is_finished=False)

    assert main(["status", str(running)]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["state", "running"]
    shown = dict(line.split(maxsplit=1) for line in lines if " " in line)
    expected = {"step": "50 of 200", "epoch": "1", "loss": "0.5", "records/s": "1,000"}
    expected |= {"metrics": "accuracy 0.75", "ring": "2 ranks, generation 1, 0 resets"}
    assert {key: shown[key] for key in expected} == expected
    assert [line.split(maxsplit=1)[0] for line in lines[-3:]] == [
        f"localhost:{n}" for n in range(3)
    ]
    assert lines[-3].split()[1:] == ["in", "the", "ring", "0:00:00"]
    assert lines[-2].split()[1:] == ["lost", "0:00:00", "exit", "code", "9"]
    assert lines[-1].split()[1:] == ["warm", "0:00:00"]


def test_a_rank_of_which_only_the_connection_was_lost_is_in_the_ring(running, capsys):
    with EventLog(running / "events.jsonl", "launcher") as log:
        log.write(event("job", task="train"))
        log.write(event("worker", state="warm"))
        log.write(event("generation", size=1, members=("localhost:0",), is_formed=True))
        log.write(event("worker", state="lost"))
        log.write(event("worker", state="returned"))

    assert main(["status", str(running)]) == 0

    out = capsys.readouterr().out
    assert "last stop" not in out
    assert out.splitlines()[-1].split()[:4] == ["localhost:0", "in", "the", "ring"]


def test_status_is_json(job_dir, capsys):
    write_events(job_dir, is_finished=True)

    assert main(["status", str(job_dir), "-o", "json"]) == 0

    status = json.loads(capsys.readouterr().out)
    assert (status["state"], status["step"], status["total_steps"]) == ("finished", 50, 200)
    assert status["workers"]["localhost:1"]["state"] == "lost"
    assert status["output"] == "/o"


def test_workers_of_a_job_that_has_ended_are_in_no_ring(job_dir, capsys):
    write_events(job_dir, is_finished=True)

    assert main(["status", str(job_dir)]) == 0

    workers = [line.split()[:2] for line in capsys.readouterr().out.splitlines()[-3:]]
    assert workers == [["localhost:0", "ended"], ["localhost:1", "lost"], ["localhost:2", "ended"]]


@pytest.mark.parametrize("verb", ["status", "dashboard", "logs", "events", "stop", "resume"])
def test_a_trained_model_is_told_with_the_directory_of_its_job(job_dir, verb, capsys):
    model = job_dir.with_name("model")
    make_job(model)
    marker.write(model, "trained model", job=str(job_dir))

    assert main([verb, str(model)]) == 2

    message = capsys.readouterr().err
    for named in (f"{model} is", "a trained model", str(job_dir)):
        assert named in message


def test_status_of_a_killed_launcher_is_lost(job_dir, capsys):
    write_events(job_dir, is_finished=False)

    assert main(["status", str(job_dir)]) == 0
    assert capsys.readouterr().out.startswith("state      lost: the launcher died")


def test_no_rank_of_a_killed_launcher_does_anything(job_dir, capsys):
    fields = {"doing": "computing", "began": 0.0}
    events = [
        recorded("job", 1.0, "launcher", state="running", task="train"),
        recorded("account", 70.0, "a:0", pid=1, seconds={"computing": 70.0}, **fields),
        recorded("account", 100.0, "a:1", pid=2, seconds={"computing": 100.0}, **fields),
    ]
    JobDir(job_dir).events.write_text("".join(map(line_of, events)))

    assert main(["report", str(job_dir), "-o", "json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [rank["doing"] for rank in report["ranks"]] == ["", ""]
    # Until the last sign of life of any rank; when somebody looks does not matter.
    assert report["seconds"] == {"computing": 170.0, "lost": 30.0}


@pytest.mark.parametrize(
    ("ended", "line"),
    [
        (Success(steps=7, metrics={}, output="/out"), "state      finished"),
        (Failure(error="OutputError", message="no room"), "state      failed: no room"),
    ],
)
def test_status_of_a_job_whose_last_events_found_no_room_says_how_it_ended(
    job_dir, ended, line, capsys
):
    write_events(job_dir, is_finished=False)
    outcome.save(job_dir / "result.json", ended)

    assert main(["status", str(job_dir)]) == 0
    assert capsys.readouterr().out.splitlines()[0] == line


def test_status_of_a_job_of_plain_horovodrun_says_what_is_known(job_dir, capsys):
    write_events(job_dir, is_finished=False, source="localhost:0")

    assert main(["status", str(job_dir)]) == 0

    first, *others = capsys.readouterr().out.splitlines()
    assert first.startswith("state      running: edl did not launch it")
    assert first.endswith("the last one is 0:00:00 old")
    assert "step       50 of 200" in others
