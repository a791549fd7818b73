"""A job's metrics, as Prometheus' client reads them and as its checker sees them."""

import shutil
import subprocess

import pytest
from prometheus_client.parser import text_string_to_metric_families

from edl_horovod.displays.page.metrics import RankSeconds, exposition
from edl_horovod.displays.page.snapshot import JobSnapshot
from edl_horovod.job.events import Recorded
from edl_horovod.job.state import TargetDetails, summarize
from tests.job_events import event

EVENTS = [
    Recorded(1.0, "launcher", event("job", state="running", task="train")),
    Recorded(2.0, "host:0", event("reset", old_size=1, new_size=2)),
    Recorded(3.0, "host:0", event("step", step=3, total_steps=90, loss=0.25, size=2)),
    Recorded(4.0, "host:0", event("evaluation", metrics={"accuracy": 0.75, "auc": float("nan")})),
    Recorded(5.0, "host:0", event("account", seconds={"computing": 3.0, "input": 1.0})),
]


def text_of(events=EVENTS, rank_seconds=None, **fields):
    snapshot = JobSnapshot(time=6.0, state=summarize(events) if events else None, **fields)
    return exposition({'a "job"\n': snapshot}, rank_seconds or RankSeconds()).decode()


def values(text):
    return {
        (s.name, *(label for key, label in sorted(s.labels.items()) if key != "job_name")): s.value
        for family in text_string_to_metric_families(text)
        for s in family.samples
    }


def test_step_ring_and_account_are_metrics():
    expected = {
        ("edl_up",): 1,
        ("edl_steps_done",): 3,
        ("edl_steps",): 90,
        ("edl_loss",): 0.25,
        ("edl_ring_ranks",): 2,
        ("edl_resets_total",): 1,
        ("edl_evaluation", "accuracy"): 0.75,
        ("edl_rank_seconds_total", "computing"): 3.0,
        ("edl_rank_seconds_total", "input"): 1.0,
        ("edl_goodput_ratio",): 0.75,
    }
    assert expected.items() <= values(text_of()).items()


def test_the_seconds_of_ranks_fall_only_where_the_job_begins_again():
    spent = event("account", seconds={"computing": 3.0, "input": 1.0}, doing="computing")
    at_work = [*EVENTS[:-1], Recorded(5.0, "host:0", spent)]
    lost = Recorded(9.0, "coordinator", event("worker", worker="host:0", state="lost"))
    account = event("account", seconds={"computing": 9.0, "input": 1.0})
    returned, rank_seconds = Recorded(10.0, "host:0", account), RankSeconds()
    read = values(text_of([*at_work, lost], rank_seconds, began=1.0))
    assert read["edl_rank_seconds_total", "lost"] == 5.0
    read = values(text_of([*at_work, lost, returned], rank_seconds, began=1.0))
    assert read["edl_rank_seconds_total", "lost"] == 5.0
    assert read["edl_rank_seconds_total", "computing"] == 9.0
    read = values(text_of(EVENTS, rank_seconds, began=2.0))
    assert read["edl_rank_seconds_total", "computing"] == 3.0
    assert ("edl_rank_seconds_total", "lost") not in read


def test_a_job_is_in_one_state():
    def states(**details):
        read = values(text_of(**details))
        return [key[1] for key, value in read.items() if key[0] == "edl_job_state" and value]

    assert states() == ["running"]
    for state, shown in (("pending in its own words", "unknown"), ("stopping", "stopping")):
        assert states(details=TargetDetails(state=state, created=0.0)) == [shown]


@pytest.mark.parametrize("end", ["finished", "failed", "suspended"])
def test_a_job_that_is_over_has_no_ranks_and_nothing_left(end):
    assert values(text_of())["edl_records_per_second",] > 0
    read = values(text_of([*EVENTS, Recorded(6.0, "launcher", event("job", state=end))]))
    assert read["edl_ring_ranks",] == 0
    assert read["edl_steps_done",] == 3
    assert ("edl_records_per_second",) not in read
    assert ("edl_left_seconds",) not in read


def test_a_task_without_steps_has_records():
    done = event("progress", records=30, total_records=90)
    read = values(text_of([Recorded(5.0, "host:0", done)]))
    assert (read["edl_records_done",], read["edl_records",]) == (30, 90)


def test_a_job_that_cannot_be_read_is_not_up():
    assert values(text_of([], problem="no such job")) == {("edl_up",): 0}


def test_the_name_of_a_job_is_a_label_as_it_is():
    families = text_string_to_metric_families(text_of())
    assert {s.labels["job_name"] for family in families for s in family.samples} == {'a "job"\n'}


def text_of_three_jobs():
    known = JobSnapshot(time=6.0, state=summarize(EVENTS))
    begun = JobSnapshot(time=6.0, state=summarize(EVENTS[:2]))
    jobs = {"a": begun, "b": known, "c": JobSnapshot(time=6.0, problem="x")}
    return exposition(jobs, RankSeconds()).decode()


def test_several_jobs_share_families():
    families = list(text_string_to_metric_families(text_of_three_jobs()))
    names = [family.name for family in families]
    assert len(names) == len(set(names))
    jobs = {
        family.name: [sample.labels["job_name"] for sample in family.samples] for family in families
    }
    assert jobs["edl_up"] == ["a", "b", "c"]
    assert jobs["edl_steps_done"] == ["a", "b"]
    assert jobs["edl_loss"] == ["b"]


@pytest.mark.skipif(not shutil.which("promtool"), reason="apt-get install prometheus")
@pytest.mark.parametrize("make_text", [text_of, text_of_three_jobs])
def test_names_and_types_follow_the_conventions(make_text):
    command = ["promtool", "check", "metrics"]
    checked = subprocess.run(command, input=make_text(), capture_output=True, text=True, timeout=60)
    assert checked.returncode == 0, checked.stdout + checked.stderr
