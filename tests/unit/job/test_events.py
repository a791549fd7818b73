"""The event log: whole lines, in order, from several writers."""

import json
import os
import threading
from pathlib import Path

import pytest

from edl_horovod.job import events
from edl_horovod.job.events import EventLog


@pytest.fixture
def path(tmp_path):
    return tmp_path / "events.jsonl"


def test_what_was_written_is_read(path):
    with EventLog(path, "launcher") as log:
        log.write("job", state="starting", message="a\nb Zürich")
        log.write("step", step=1, metrics={"loss": 0.5})
    found = events.read(path)
    assert [(e["source"], e["kind"]) for e in found] == [("launcher", "job"), ("launcher", "step")]
    assert found[0]["message"] == "a\nb Zürich"
    assert found[0]["time"] <= found[1]["time"]


def test_no_log_has_no_events(path):
    assert events.read(path) == []
    assert next(events.follow(path)) == []


def test_a_log_knows_what_anybody_wrote(path):
    with EventLog(path, "a") as first, EventLog(path, "b") as second:
        first.write("evaluation", step=7, examples=96)
        assert second.has("evaluation", step=7)
        assert not second.has("evaluation", step=8)
        assert not second.has("step", step=7)


def test_a_log_that_cannot_be_read_knows_nothing_and_stops_nobody(path, caplog):
    with EventLog(path, "a") as log:
        path.unlink()
        path.mkdir()
        assert not log.has("evaluation", step=7)
    assert "cannot be read" in caplog.text


def test_a_second_writer_appends(path):
    for source in ("a", "b"):
        with EventLog(path, source) as log:
            log.write("log", message="")
    assert [event["source"] for event in events.read(path)] == ["a", "b"]


def test_following_gives_each_event_once(path):
    new_events = events.follow(path)
    with EventLog(path, "a") as log:
        for number in range(3):
            log.write("log", number=number)
            assert [event["number"] for event in next(new_events)] == [number]
            assert next(new_events) == []


def test_a_half_written_line_waits_for_its_end(path):
    new_events = events.follow(path)
    line = json.dumps({"kind": "log"}).encode() + b"\n"
    path.write_bytes(line + line[:5])
    assert len(next(new_events)) == 1
    path.write_bytes(line + line)
    assert len(next(new_events)) == 1


def test_a_torn_line_is_passed_over_and_the_next_one_is_whole(path):
    with EventLog(path, "a") as log:
        log.write("log", number=1)
        log.write("log", number=2)
    whole = path.read_bytes()
    path.write_bytes(whole[:-9])  # Its writer was killed, or the disk was full.
    new_events = events.follow(path)
    assert [event["number"] for event in next(new_events)] == [1]
    with EventLog(path, "b") as log:
        log.write("log", number=3)
    assert [event["number"] for event in next(new_events)] == [3]
    assert [event["number"] for event in events.read(path)] == [1, 3]


@pytest.mark.parametrize("line", [b"\xff\xfe", b"[1]", b"7", b"{}", b'{"kind', b"", b"\x85{}"])
def test_lines_that_are_no_events_are_passed_over(path, line):
    good = json.dumps({"kind": "log"}).encode()
    path.write_bytes(b"\n".join([good, line, good, b""]))
    assert events.read(path) == [{"kind": "log"}] * 2


@pytest.mark.parametrize(
    "fields",
    [
        {"metrics": [1]},
        {"metrics": "text"},
        {"metrics": {"auc": "text"}},
        {"metrics": {"auc": {}}},
        {"members": 2},
        {"members": [2]},
        {"step": "text"},
        {"step": None},
        {"step": 10**30},
        {"size": [1]},
        {"loss": "text"},
        {"loss": float("inf")},
        {"time": float("nan")},
        {"time": -1.0},
        {"time": 1e300},
        {"state": 7},
        {"message": None},
        {"kind": 7},
    ],
)
def test_events_whose_fields_are_not_what_they_must_be_are_passed_over(path, fields):
    good = {"kind": "step", "time": 1.0, "step": 1, "loss": None, "metrics": {"auc": None}}
    path.write_text("".join(f"{json.dumps(one)}\n" for one in (good, {**good, **fields}, good)))
    assert events.read(path) == [good] * 2


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_a_full_disk_is_warned_of_once_and_ends_nothing(caplog):
    with EventLog(Path("/dev/full"), "a") as log:
        for _ in range(3):
            log.write("log", message="")
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "No space left on device" in caplog.text


def test_a_write_cut_short_leaves_the_next_one_whole(path, monkeypatch, caplog):
    write = os.write
    with EventLog(path, "a") as log:
        monkeypatch.setattr(os, "write", lambda file, data: write(file, data[:7]))
        log.write("log", number=1)
        log.write("log", number=2)
        monkeypatch.undo()
        log.write("log", number=3)
    assert [event["number"] for event in events.read(path)] == [3]
    assert len(caplog.records) == 1


def test_lines_of_many_writers_do_not_mix(path):
    def write(source):
        with EventLog(path, source) as log:
            for number in range(100):
                log.write("log", number=number, message="x" * 500)

    threads = [threading.Thread(target=write, args=(f"w{n}",)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = events.read(path)
    assert len(found) == 800
    for source in {event["source"] for event in found}:
        assert [e["number"] for e in found if e["source"] == source] == list(range(100))


def test_closing_twice_is_nothing(path):
    log = EventLog(path, "a")
    log.close()
    log.close()
