"""`edl report` of several jobs: what each reached, and at what cost."""

import io
import json
import time

import pytest

from edl_horovod.cli.main import main
from edl_horovod.job.events import Recorded, line_of
from tests.html_elements import Elements
from tests.job_events import event
from tests.unit.cli.test_scale_status import make_job


def write(folder, *events):
    """A job with these events, each with its time and source."""
    make_job(folder)
    lines = [line_of(Recorded(*timed_event)) for timed_event in events]
    (folder / "events.jsonl").write_text("".join(lines))
    return str(folder)


@pytest.fixture
def jobs(tmp_path):
    """A quick job that lost a rank, and a slow one with another metric."""
    ring = event("generation", size=2, members=("a:0", "a:1"), is_formed=True)
    quick = write(
        tmp_path / "learning_rate=0.1.job",
        (1000.0, "launcher", event("job", state="running", task="train")),
        (1001.0, "coordinator", ring),
        *((1002.0 + n, "a:0", event("step", step=10 * n, loss=2.0 / n)) for n in range(1, 9)),
        (1009.0, "coordinator", event("worker", worker="a:1", state="lost")),
        (1010.0, "a:0", event("account", began=1000.0, seconds={"computing": 8.0, "input": 2.0})),
        (1011.0, "a:0", event("evaluation", step=80, metrics={"accuracy": 0.91})),
        (1012.0, "launcher", event("job", state="finished", steps=80)),
    )
    slow = write(
        tmp_path / "learning_rate=0.01.job",
        (1000.0, "launcher", event("job", state="running", task="train")),
        *((1002.0 + n, "a:0", event("step", step=10 * n, loss=3.0 / n)) for n in range(1, 9)),
        (1040.0, "a:0", event("account", began=1000.0, seconds={"computing": 4.0, "input": 36.0})),
        (1041.0, "a:0", event("evaluation", step=80, metrics={"auc": 0.7})),
        (1042.0, "launcher", event("job", state="finished", steps=80)),
    )
    return [quick, slow]


def test_jobs_are_rows_of_a_table(jobs, capsys):
    assert main(["report", *jobs]) == 0

    header, quick, slow = (line.split() for line in capsys.readouterr().out.splitlines())
    assert header[:6] == ["JOB", "STATE", "STEP", "LOSS", "ACCURACY", "AUC"]
    assert quick[:5] == [jobs[0], "finished", "80", "0.25", "0.91"]
    assert slow[:5] == [jobs[1], "finished", "80", "0.375", "0.7"]
    assert "80.0%" in quick
    assert "10.0%" in slow
    assert slow[-2:] == ["input", "90.0%"]


def test_programs_get_the_same_and_one_job_is_told_what_to_change(jobs, capsys):
    assert main(["report", *jobs, "-o", "json"]) == 0

    quick, slow = json.loads(capsys.readouterr().out)
    assert (quick["goodput"], slow["goodput"]) == (0.8, 0.1)
    assert (quick["total_seconds"], slow["total_seconds"]) == (10.0, 40.0)
    assert [stop["worker"] for stop in quick["stops"]] == ["a:1"]
    assert quick["metrics"] == {"accuracy": 0.91}
    assert slow["costs"][0].startswith("input: 90.0%")
    assert main(["report", jobs[1]]) == 0
    printed = capsys.readouterr().out
    assert "input: 90.0%" in printed
    assert printed.startswith("state      finished\n")


@pytest.mark.parametrize("num_resets", [0, 1])
def test_spares_are_recommended_only_where_the_ring_has_changed(tmp_path, capsys, num_resets):
    resets = [event("reset", old_size=old, new_size=2) for old in range(1 + num_resets)]
    seconds = {"building": 6.0, "forming": 2.0, "computing": 2.0}
    job = write(
        tmp_path / "short.job",
        *((1001.0, "a:0", reset) for reset in resets),
        (1002.0, "a:0", event("account", seconds=seconds)),
    )

    assert main(["report", job, "-o", "json"]) == 0

    building, forming = json.loads(capsys.readouterr().out)["costs"]
    assert ("elastic.spares" in building, "resets" in forming) == (bool(num_resets),) * 2


def test_the_report_of_a_job_without_accounts_says_why_it_failed(tmp_path, capsys):
    """A rank may fail before its first account, and a full disk has no room for any."""
    job = write(
        tmp_path / "failed.job",
        (1000.0, "launcher", event("job", task="train")),
        (1001.0, "coordinator", event("generation", members=("a:0",), is_formed=True)),
        (1002.0, "a:0", event("reset", old_size=2, reason="a:1 left")),
        (1003.0, "coordinator", event("worker", worker="a:0", state="lost")),
        (1004.0, "launcher", event("job", state="failed", message="the model is broken")),
    )

    assert main(["report", job]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "state      failed: the model is broken"
    assert any(line.endswith("a:1 left") for line in lines)
    assert any("0 (a:0)" in line for line in lines)


def test_stops_and_resets_of_a_long_job_have_their_day_and_their_zone(
    tmp_path, capsys, monkeypatch
):
    job = write(
        tmp_path / "long.job",
        (0.0, "coordinator", event("generation", members=("a:0", "a:1"), is_formed=True)),
        *((86400.0 * day, "a:0", event("reset", old_size=2)) for day in range(3)),
        (86400.0, "coordinator", event("worker", worker="a:1", state="lost")),
    )
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "XYZ-5")
        time.tzset()
        code = main(["report", job])
    time.tzset()

    assert code == 0
    printed = capsys.readouterr().out
    assert [printed.count(f"1970-01-0{day} 05:00:00") for day in (1, 2, 3)] == [1, 2, 1]
    assert "XYZ" in printed


@pytest.mark.parametrize(
    ("verb", "encoding"),
    [
        *((verb, "utf-8") for verb in ("status", "events -f", "report .")),
        *((verb, "ascii") for verb in ("events", "report")),
    ],
)
def test_what_others_wrote_can_be_printed_and_cannot_steer_the_terminal(
    tmp_path, monkeypatch, verb, encoding
):
    text = "\x1b[2J\ud800\nd\u00e9j\u00e0"
    job = write(
        tmp_path / "job",
        (1001.0, "a:0", event("reset", old_size=1, reason=text)),
        (1002.0, text, event("account", seconds={text: 1.0})),
        (1003.0, "a:0", event("worker", worker=text, state="failed", message=text)),
        (1004.0, "launcher", event("job", state="failed", message=text)),
    )
    stdout = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    monkeypatch.setattr("sys.stdout", stdout)

    words = [job if word == "." else word for word in verb.split()]
    assert main([*words, job]) == 0

    printed = stdout.buffer.getvalue().decode(encoding)
    assert all(line.isprintable() for line in printed.split("\n"))
    assert " [2J  d" in printed or verb == "report ."


def test_the_page_has_all_losses_in_one_picture_and_the_causes_of_each(jobs, capsys, tmp_path):
    page = tmp_path / "jobs.html"
    assert main(["report", *jobs, "--html", str(page)]) == 0

    elements = Elements(page.read_text())
    attributes = [attributes for _, attributes in elements.elements]
    (chart,) = [element["data-chart"] for element in attributes if "data-chart" in element]
    quick, slow = json.loads(chart)["curves"]
    assert (quick["y"][0], slow["y"][0], quick["y"][-1]) == (2.0, 3.0, 0.25)
    assert quick["x"] == slow["x"] == [10 * number for number in range(1, 9)]
    names = [svg.get("aria-label", "") for svg in elements.of("svg")]
    assert all(any(job in name for name in names) for job in jobs)
    assert not elements.of("link") + elements.of("img")
    assert not [element for element in attributes if "src" in element]


def test_a_job_that_has_not_begun_is_compared_as_well(jobs, capsys, tmp_path):
    fresh = write(tmp_path / "fresh.job")
    assert main(["report", jobs[0], fresh, "--html", str(tmp_path / "jobs.html")]) == 0
    assert main(["report", fresh, write(tmp_path / "other.job")]) == 0
    assert main(["report", fresh, "--html", str(tmp_path / "fresh.html")]) == 0
