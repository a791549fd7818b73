"""The event log: whole lines, in order, from several writers."""

import json
import threading

import pytest

from edl_horovod import events
from edl_horovod.events import EventLog


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
