"""The event log: whole lines, in order, from several writers."""

import json
import math
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from edl_horovod.job import events
from edl_horovod.job.events import EventLog, line_of
from tests.job_events import DEFAULTS, KINDS, event, recorded


@pytest.fixture
def path(tmp_path):
    return tmp_path / "events.jsonl"


def steps(entries):
    return [event.step for _, _, event in entries]


def test_what_was_written_is_read(path):
    written = [event(kind) for kind in KINDS]
    written.append(event("job", message="a\nb Zürich", metrics={"loss": 0.5}, output="/out"))
    written.append(event("evaluation", parties={"north": {"loss": 0.5}, "west": {"loss": 2.0}}))
    written.append(event("worker", state="hung", pid=7))
    with EventLog(path, "launcher") as log:
        for entry in written:
            log.write(entry)
    log.close()  # Closing twice is nothing.
    entries = events.read(path)
    assert [recorded.event for recorded in entries] == written
    assert {recorded.source for recorded in entries} == {"launcher"}
    assert entries[0].time <= entries[1].time


def test_no_log_has_no_events(path):
    assert events.read(path) == []
    assert next(events.follow(path)) == []


def test_a_log_knows_what_anybody_wrote(path):
    with EventLog(path, "a") as first, EventLog(path, "b") as second:
        first.write(event("evaluation", step=7))
        assert second.has(lambda entry: entry == event("evaluation", step=7))
        assert not second.has(lambda entry: entry.kind == "step")


def test_a_log_that_cannot_be_read_knows_nothing_and_stops_nobody(path, caplog):
    with EventLog(path, "a") as log:
        path.unlink()
        path.mkdir()
        assert not log.has(lambda entry: True)
    assert str(path) in caplog.text


def test_a_half_written_line_waits_for_its_end(path):
    new_events = events.follow(path)
    line = line_of(recorded("log")).encode()
    path.write_bytes(line + line[:5])
    assert len(next(new_events)) == 1
    path.write_bytes(line + line)
    assert len(next(new_events)) == 1


def test_each_event_is_followed_once_and_a_torn_line_is_passed_over(path):
    with EventLog(path, "a") as log:
        log.write(event("step", step=1))
        log.write(event("step", step=2))
    whole = path.read_bytes()
    path.write_bytes(whole[:-9])  # Its writer was killed, or the disk was full.
    new_events = events.follow(path)
    assert [steps(next(new_events)) for _ in range(2)] == [[1], []]
    with EventLog(path, "b") as log:
        log.write(event("step", step=3))
        assert [steps(next(new_events)) for _ in range(2)] == [[3], []]
    entries = events.read(path)
    assert [(entry.source, entry.event.step) for entry in entries] == [("a", 1), ("b", 3)]


LINES = [b"\xff\xfe", b"[1]", b"7", b"{}", b'{"kind', b"", b"\x85{}", b"[" * 100_000]


@pytest.mark.parametrize("line", LINES)
def test_lines_that_are_no_events_are_passed_over(path, line):
    good = recorded("log")
    path.write_bytes(b"\n".join([line_of(good).encode(), line, line_of(good).encode()]))
    assert events.read(path) == [good] * 2


@pytest.mark.parametrize(
    ("kind", "name", "values"),
    [
        ("step", "metrics", [[1], "text", {"auc": "text"}, {"auc": {}}]),
        ("evaluation", "parties", [{"north": 0.5}, [1]]),
        ("generation", "members", [2, [2]]),
        ("generation", "is_formed", [1]),
        ("step", "step", ["text", None, 10**30]),
        ("step", "size", [[1]]),
        ("step", "loss", ["text", float("inf")]),
        ("reset", "seconds", [None]),
        ("log", "time", [float("nan"), -1.0, 1e300]),
        ("log", "source", [7]),
        ("job", "state", [7]),
        ("job", "metrics", ["text", [1], {"auc": "text"}, {"auc": [1]}]),
        ("job", "steps", [None]),
        ("log", "message", [None]),
        ("log", "kind", [7, []]),
    ],
)
def test_events_whose_fields_are_not_what_they_must_be_are_passed_over(path, kind, name, values):
    good = line_of(recorded(kind))
    for value in values:
        bad = json.dumps({**json.loads(good), name: value}) + "\n"
        path.write_text("".join([good, bad, good]))
        assert events.read(path) == [recorded(kind)] * 2, value


@pytest.mark.parametrize("kind", KINDS)
def test_an_event_without_what_its_kind_always_has_is_passed_over(path, kind):
    good = json.loads(line_of(recorded(kind)))
    for name in ("time", "source", next(iter(DEFAULTS[kind]))):
        path.write_text(json.dumps({key: good[key] for key in good if key != name}) + "\n")
        assert events.read(path) == [], name


def test_what_a_newer_version_adds_is_passed_over(path):
    good = json.loads(line_of(recorded("log", message="known")))
    lines = [{**good, "kind": "something new"}, {**good, "something": ["new"]}]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert events.read(path) == [recorded("log", message="known")]


def test_the_log_s_format_is_that_of_earlier_versions():
    """Lines as they stood in the logs of jobs before events had classes."""
    line = (
        '{"time": 1.5, "source": "localhost:0", "kind": "step", "step": 3, "total_steps": 9, '
        '"epoch": 0, "loss": null, "records_per_second": 12.5, "records_seen": 96, "size": 2, '
        '"metrics": {"auc": 0.5}}\n'
    )
    step = {"step": 3, "total_steps": 9, "epoch": 0, "loss": None, "records_per_second": 12.5}
    step |= {"records_seen": 96, "size": 2, "metrics": {"auc": 0.5}}
    parsed = events.parse(line)
    assert parsed == events.Recorded(1.5, "localhost:0", events.StepEvent(**step))
    assert line_of(parsed) == line


def test_numbers_that_are_not_finite_are_null_in_the_log():
    line = line_of(recorded("step", loss=math.inf, metrics={"auc": math.nan}))
    assert (json.loads(line)["loss"], json.loads(line)["metrics"]) == (None, {"auc": None})
    step = events.parse(line).event
    assert step.loss is None
    assert math.isnan(step.metrics["auc"])


def test_fields_that_an_event_does_not_have_are_not_in_the_log():
    line = '{"time": 1.0, "source": "test", "kind": "job", "state": "running", "message": ""}'
    assert json.loads(line_of(recorded("job", 1.0))) == json.loads(line)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_a_full_disk_is_warned_of_once_and_ends_nothing(caplog):
    with EventLog(Path("/dev/full"), "a") as log:
        for _ in range(3):
            log.write(event("log"))
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "No space" in caplog.text


def test_a_write_cut_short_leaves_the_next_one_whole(path, monkeypatch, caplog):
    write = os.write
    with EventLog(path, "a") as log:
        monkeypatch.setattr(os, "write", lambda file, data: write(file, data[:7]))
        log.write(event("step", step=1))
        log.write(event("step", step=2))
        monkeypatch.undo()
        log.write(event("step", step=3))
    assert steps(events.read(path)) == [3]
    assert len(caplog.records) == 1


def test_lines_of_many_writers_do_not_mix(path):
    def write(source):
        with EventLog(path, source) as log:
            for number in range(100):
                log.write(event("log", message=f"{number} {'x' * 500}"))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, [f"w{n}" for n in range(8)]))
    entries = events.read(path)
    assert len(entries) == 800
    for source in {source for _, source, _ in entries}:
        messages = [event.message for _, who, event in entries if who == source]
        assert [int(message.split()[0]) for message in messages] == list(range(100))


def test_an_event_that_several_processes_have_is_written_once(path):
    code = (
        "import pathlib, sys\nfrom edl_horovod.job.events import EventLog, LogEvent\n"
        "with EventLog(pathlib.Path(sys.argv[1]), 'w') as log:\n"
        "    for number in range(50): log.write_once(LogEvent(message=str(number)))\n"
    )
    command = [sys.executable, "-c", code, str(path)]
    started = [subprocess.Popen(command) for _ in range(4)]
    assert [process.wait(60) for process in started] == [0] * 4
    assert [entry.event.message for entry in events.read(path)] == [str(n) for n in range(50)]
