"""Looks at a job by its directory: there, not yet there, torn, begun anew."""

import os
import time
from pathlib import Path
from typing import Any

from edl_horovod.config import resolved
from edl_horovod.config.schema import JobConfig
from edl_horovod.displays.page.rendering import PageTemplate
from edl_horovod.displays.page.snapshot import DirectorySource, History, JobSnapshot
from edl_horovod.job.directory import JobDir
from edl_horovod.job.events import EventLog, Recorded, line_of
from tests.job_events import recorded


def make_job(job_dir: Path) -> None:
    job_dir.mkdir(exist_ok=True)
    config = JobConfig(task="train", data="/d", output="/o", model_def="m")
    resolved.dump(config, job_dir / "config.yaml")


def step(number: int, **changes: Any) -> Recorded:
    said = {"step": number, "loss": 1.0 / number, "records_seen": number, "size": 2, **changes}
    return recorded("step", float(number), **said)


def write_steps(job_dir: Path, *numbers: int) -> None:
    with EventLog(job_dir / "events.jsonl", "launcher") as log:
        for number in numbers:
            log.write(step(number).event)


def test_a_job_that_is_not_there_yet_is_shown_once_it_is(tmp_path):
    source = DirectorySource(JobDir(tmp_path / "job"))

    missing = source.snapshot()
    make_job(tmp_path / "job")
    write_steps(tmp_path / "job", 1, 2)
    there = source.snapshot()

    assert (missing.http_status, missing.state) == (404, None)
    assert "no config.yaml" in missing.problem
    assert there.http_status == 200
    assert there.state is not None
    assert there.state.step == 2
    assert there.loss == ((1, 1.0), (2, 0.5))


def test_a_file_in_the_place_of_a_job_is_no_job(tmp_path):
    (tmp_path / "job").write_text("")

    assert DirectorySource(JobDir(tmp_path / "job")).snapshot().http_status == 404


def test_only_what_was_added_is_read_again(tmp_path):
    make_job(tmp_path)
    write_steps(tmp_path, *range(1, 100))
    source = DirectorySource(JobDir(tmp_path))
    source.snapshot()
    path = tmp_path / "events.jsonl"
    size = path.stat().st_size
    first = path.read_bytes().index(b"\n") + 1
    with path.open("r+b") as stream:
        stream.seek(first)
        stream.write(b"x" * (size - first - 1))  # What was read is not looked at again.

    write_steps(tmp_path, 100)

    assert [x for x, _ in source.snapshot().loss] == list(range(1, 101))


def test_a_torn_line_is_passed_over(tmp_path):
    make_job(tmp_path)
    write_steps(tmp_path, 1)
    source = DirectorySource(JobDir(tmp_path))
    with (tmp_path / "events.jsonl").open("ab") as stream:
        stream.write(b'{"time": 2.0, "kind": "st')
    torn = source.snapshot()
    write_steps(tmp_path, 3)

    assert torn.loss == ((1, 1.0),)
    assert [x for x, _ in source.snapshot().loss] == [1, 3]


def test_a_job_that_begins_anew_in_the_directory_is_a_new_one(tmp_path):
    make_job(tmp_path)
    write_steps(tmp_path, 5)
    source = DirectorySource(JobDir(tmp_path))
    source.snapshot()

    os.truncate(tmp_path / "events.jsonl", 0)
    write_steps(tmp_path, *range(1, 5))

    assert [x for x, _ in source.snapshot().loss] == [1, 2, 3, 4]


def test_an_event_that_lacks_a_field_hurts_nothing(tmp_path):
    make_job(tmp_path)
    write_steps(tmp_path, 1)
    with (tmp_path / "events.jsonl").open("a") as stream:
        stream.write('{"time": 2.0, "source": "launcher", "kind": "step", "step": 2}\n')
    write_steps(tmp_path, 3)

    assert [x for x, _ in DirectorySource(JobDir(tmp_path)).snapshot().loss] == [1, 3]


def test_a_loss_that_is_no_number_leaves_a_gap():
    history = History()
    for one in (step(1), step(2, loss=None), step(3, loss=None)):
        history.add(one)

    assert [x for x, _ in history.loss.points] == [1]
    assert history.state.step == 3


def test_only_changes_of_the_ring_are_kept():
    history = History()
    for number, size in enumerate((2, 2, 3, 3, 1), 1):
        history.add(step(number, size=size))

    assert history.ring.points == ((1.0, 2), (3.0, 3), (5.0, 1))


def test_the_curve_of_the_ring_of_a_job_that_is_over_ends_with_the_job(tmp_path):
    make_job(tmp_path)
    source = DirectorySource(JobDir(tmp_path))
    path = tmp_path / "events.jsonl"
    ended = time.time() - 3600
    lines = [recorded("step", ended - 120 + number, size=2, step=number) for number in (1, 2)]
    lines.append(recorded("job", ended, state="finished", steps=2))
    path.write_text("".join(map(line_of, lines)))

    snapshot = source.snapshot()

    assert snapshot.ended == ended
    shown = PageTemplate().render("m", snapshot, now=time.time()).decode()
    assert "ranks in the ring over time" in shown
    assert "0:01:59" in shown
    assert "1:01:" not in shown


def test_the_curve_of_the_ring_of_a_job_that_runs_extends_until_now(tmp_path):
    history = History()
    history.add(recorded("step", time.time() - 600, size=2, step=1))
    snapshot = JobSnapshot(time=time.time(), state=history.state, ring=history.ring.points)

    assert "0:10:0" in PageTemplate().render("m", snapshot, now=time.time()).decode()
