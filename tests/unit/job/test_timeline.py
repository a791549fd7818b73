"""The timeline of a job: what its processes wrote, as one trace by one clock."""

import contextlib
import gzip
import json

import pytest

from edl_horovod.job import timeline as module
from edl_horovod.job.directory import JobDir
from edl_horovod.job.events import EventLog
from edl_horovod.job.timeline import Timeline, recorded, write
from tests.job_events import event


@pytest.fixture
def job_dir(tmp_path):
    (tmp_path / "events.jsonl").touch()
    return JobDir(tmp_path)


@pytest.fixture
def timeline():
    return Timeline()


def keep(timeline, job_dir, worker="host:0", *, has_room=True):
    """Write a timeline as its process does."""
    folder = job_dir.timeline_parts
    with recorded(timeline, folder, worker, has_room=lambda: has_room, end_phase=lambda: None):
        pass


def trace_of(job_dir):
    with gzip.open(job_dir.timeline) as stream:
        return json.load(stream)


def slices(trace):
    return [entry for entry in trace["traceEvents"] if entry["ph"] == "X"]


def written(timeline, job_dir):
    """The trace of a job with one timeline."""
    keep(timeline, job_dir)
    write(job_dir)
    return trace_of(job_dir)


def test_a_phase_has_its_causes_one_after_the_other(timeline, job_dir):
    timeline.add_phase("step 3", "computing", 10.0, 16.0, {"exchange": 2.0, "applying": 1.0})
    timeline.add_phase("step 4", "computing", 16.0, 17.0, {"redone": 1.0})
    phases = [
        (entry["name"], entry["ts"], entry["dur"], entry["args"]["phase"])
        for entry in slices(written(timeline, job_dir))
    ]
    assert phases == [
        ("computing", 0, 3_000_000, "step 3"),
        ("exchange", 3_000_000, 2_000_000, "step 3"),
        ("applying", 5_000_000, 1_000_000, "step 3"),
        ("redone", 6_000_000, 1_000_000, "step 4"),
    ]
    assert not job_dir.timeline_parts.exists()


def test_clocks_of_hosts_are_aligned_by_the_exchange_that_took_the_least_time(job_dir):
    # The coordinator's clock is 1,000 s ahead of the first host's, and 40 s behind the second's.
    for worker, ahead in (("near:0", 1000.0), ("far:0", -40.0)):
        timeline = Timeline()
        for begin, outward, back in (
            (90.0, 0.0, 0.4),
            (95.0, 0.001, 0.001),
            (100.0, 0.002, 0.002),
        ):
            heard = begin + outward + ahead
            timeline.add_exchange(begin, heard, heard + 2, begin + 2 + outward + back)
        timeline.add_phase("step 0", "computing", 105.0 - ahead, 106.0 - ahead, {})
        keep(timeline, job_dir, worker)
    write(job_dir)
    trace = trace_of(job_dir)
    assert [entry["ts"] for entry in slices(trace)] == pytest.approx([0, 0], abs=1)
    labels = [
        entry["args"]["labels"]
        for entry in trace["traceEvents"]
        if entry["name"] == "process_labels"
    ]
    assert all("1.00 ms" in label for label in labels)


def test_an_answer_that_was_not_sent_says_nothing(timeline):
    timeline.add_exchange(0.0, 0.0, 123.0, 5.0)
    assert timeline.lines() == b""


def test_resets_and_checkpoints_come_from_the_events(timeline, job_dir):
    timeline.add_phase("", "building", 0.0, 1.0, {})
    with EventLog(job_dir.events, "host:0") as log:
        log.write(event("reset", old_size=2, new_size=1, seconds=0.5, reason="host:1 lost"))
        log.write(event("checkpoint", step=7, seconds=0.25, num_bytes=9))
        log.write(event("worker", worker="host:1", state="lost"))
    trace = written(timeline, job_dir)
    metadata = [entry for entry in trace["traceEvents"] if entry["name"] == "process_name"]
    names = {entry["pid"]: entry["args"]["name"].partition(",")[0] for entry in metadata}
    by_process = {
        names[entry["pid"]]: entry for entry in slices(trace) if entry["name"] != "building"
    }
    assert by_process["job"]["dur"] == 500_000
    assert by_process["job"]["args"]["reason"] == "host:1 lost"
    assert (by_process["host:0"]["dur"], by_process["host:0"]["args"]["bytes"]) == (250_000, 9)
    assert "host:1 lost" in [entry["name"] for entry in trace["traceEvents"] if entry["ph"] == "i"]


def test_sums_of_buckets_may_overlap(timeline, job_dir):
    timeline.add_phase("step 0", "computing", 5.0, 7.0, {})
    timeline.add_reductions([("a", -1.0, 0.5), ("b", -0.5, 0.75)], 6.0)
    spans = [span for span in written(timeline, job_dir)["traceEvents"] if span["ph"] in "be"]
    by_id = {span["id"]: {} for span in spans}
    for span in spans:
        by_id[span["id"]][span["ph"]] = span["ts"]
    assert list(by_id.values()) == [{"b": 0, "e": 1_500_000}, {"b": 500_000, "e": 1_750_000}]


@pytest.mark.parametrize("limit", ["MOST_SPANS", "MOST_IN_TRACE"])
def test_what_is_left_out_is_said(job_dir, monkeypatch, caplog, limit):
    monkeypatch.setattr(module, limit, 3)
    timeline = Timeline()
    for number in range(10):
        timeline.add_phase("", "input", float(number), number + 1.0, {})
    trace = written(timeline, job_dir)
    assert len(slices(trace)) == 3
    assert "host:0" in trace["otherData"]["left out"][0]
    assert [entry["name"] for entry in trace["traceEvents"] if entry["ph"] == "i"]
    assert "host:0" in caplog.text


def test_what_a_killed_process_left_is_read(timeline, job_dir):
    timeline.add_phase("", "input", 1.0, 2.0, {})
    keep(timeline, job_dir)
    (path,) = job_dir.timeline_parts.iterdir()
    with path.open("ab") as stream:
        stream.write(b'["doing", "comp')
    (job_dir.timeline_parts / "0.host:1.5.jsonl").touch()
    write(job_dir)
    assert [entry["name"] for entry in slices(trace_of(job_dir))] == ["input"]


def test_a_full_disk_is_left_to_others(timeline, job_dir, caplog):
    timeline.add_phase("", "input", 1.0, 2.0, {})
    keep(timeline, job_dir, has_room=False)
    assert "host:0" in caplog.text
    with contextlib.suppress(FileNotFoundError):
        assert sum(path.stat().st_size for path in job_dir.timeline_parts.iterdir()) == 0
    write(job_dir)
    assert not job_dir.timeline.exists()
