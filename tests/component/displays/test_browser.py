"""The pages in a real Chromium: live, in both themes, by keyboard, on a phone."""

import os
import time
import urllib.parse
from pathlib import Path

import pytest

from edl_horovod.cli.main import main
from edl_horovod.job.events import line_of
from tests.chromium import DESKTOP, OBSERVE_LONG_TASKS, PHONE, PROGRAM, REASON, chromium
from tests.dashboard import dashboard, new_job
from tests.job_events import append, event, recorded

pytestmark = pytest.mark.skipif(PROGRAM is None, reason=REASON)

HOSTILE = "<img src=x onerror=window.isBroken=1><script>window.isBroken=1</script>"
CURVE = "Boolean(document.querySelector('.chart canvas'))"
AXE = os.environ.get("EDL_AXE")
NOT_A_JOB = "no config.yaml"


def steps(first, last, **fields):
    """Events of steps, one a second, and each tenth with the accounts of two ranks."""
    for number in range(first, last + 1):
        when = 1000.0 + number
        fields_of_step = {"step": number, "total_steps": 200_000, "size": 2, **fields}
        yield recorded("step", when, "host:0", loss=1 / number, **fields_of_step)
        if number % 10 == 0:
            for rank in (0, 1):
                spent = {"computing": number * 0.7, "input": number * 0.2, "exchange": number * 0.1}
                about = {"pid": 7 + rank, "began": 1000.0, "seconds": spent, "doing": "computing"}
                yield recorded("account", when, f"host:{rank}", **about)
        if number % 5000 == 0:
            yield recorded("reset", when, "host:0", old_size=1, new_size=2, step=number)
            yield recorded("evaluation", when, "host:0", step=number, metrics={"auc": 0.5})


@pytest.fixture(scope="module")
def browser():
    with chromium() as running:
        yield running


@pytest.fixture
def tab(browser):
    opened = browser.tab()
    yield opened
    opened.call("Page.close")


@pytest.fixture
def job_dir(tmp_path):
    path = new_job(tmp_path)
    events = [
        recorded("job", 1000.0, "launcher", state="running", task="train"),
        recorded("generation", 1000.5, "coordinator", size=2, is_formed=True),
        *steps(1, 60, records_per_second=1000.0),
        recorded("worker", 1061.0, "launcher", worker="host:1", state="hung", message=HOSTILE),
    ]
    (path / "events.jsonl").write_text("".join(map(line_of, events)))
    (path / "logs").mkdir()
    (path / "logs" / "worker-1.log").write_bytes(HOSTILE.encode() + b"\xff\x00\n")
    return path


@pytest.mark.further
def test_what_happens_is_shown_within_two_seconds_and_without_reload(tab, job_dir):
    with dashboard(job_dir) as served:
        tab.open(served.url)
        tab.wait_for(CURVE)
        tab.evaluate("window.isSamePage = true; document.querySelector('[tabindex]').focus()")
        label = tab.evaluate("document.activeElement.ariaLabel")
        began = time.monotonic()
        lost = event("worker", worker="host:0", state="lost", message="gone")
        append(job_dir, "coordinator", lost)
        tab.wait_for("document.body.innerText.includes('worker host:0 lost: gone')")
        seconds = time.monotonic() - began
        append(job_dir, "host:1", event("step", step=61, total_steps=100, loss=0.125, size=1))
        tab.wait_for("document.body.innerText.includes('61 of 100')")

        assert seconds < 2.0
        assert "0.125" in tab.text("#facts")
        assert "last 0.125" in tab.evaluate("document.querySelector('.chart').ariaLabel")
        assert tab.evaluate("window.isSamePage")
        assert label
        assert tab.evaluate("document.activeElement.ariaLabel") == label
        append(job_dir, "launcher", event("job", state="finished"))
        tab.wait_for("document.title.startsWith('finished')")
        assert tab.said == []


def test_more_tabs_than_connections_are_followed_once_they_are_looked_at(browser, job_dir):
    tabs = []
    with dashboard(job_dir) as served:
        for _ in range(8):  # A browser has six connections to a server.
            tabs.append(browser.tab())
            tabs[-1].open(served.url)
        assert tabs[0].evaluate("document.hidden")
        append(job_dir, "host:1", event("step", step=61, total_steps=100, size=1))
        tabs[-1].wait_for("document.body.innerText.includes('61 of 100')")
        assert "60 of" in tabs[0].text("#facts")
        tabs[0].call("Page.bringToFront")
        tabs[0].wait_for("document.body.innerText.includes('61 of 100')")
        assert tabs[0].text("#connection") == ""
        for tab in tabs:
            tab.call("Page.close")


def test_a_page_that_lacks_a_section_is_loaded_again(tab, job_dir):
    with dashboard(job_dir) as served:
        tab.open(served.url)
        tab.wait_for(CURVE)
        tab.evaluate("document.querySelector('#facts').remove()")
        append(job_dir, "host:1", event("step", step=61, total_steps=100, size=1))
        tab.wait_for("document.querySelector('#facts')?.innerText.includes('61 of 100')")


@pytest.mark.long
def test_a_lost_connection_is_told_and_comes_back(tab, job_dir):
    with dashboard(job_dir) as served:
        port = str(urllib.parse.urlsplit(served.url).port)
        tab.open(served.url)
        tab.wait_for(CURVE)
        served.process.kill()
        tab.wait_for("document.querySelector('#connection').innerText.includes('lost')")
        assert "60 of" in tab.text("#facts"), "what was known stays"
    append(job_dir, "host:1", event("step", step=61, total_steps=100, size=1))
    with dashboard(job_dir, "--port", port):
        tab.wait_for("document.body.innerText.includes('61 of 100')")
        assert tab.text("#connection") == ""


def test_what_a_job_writes_stays_text(tab, job_dir):
    with dashboard(job_dir) as served:
        for path, element in (("", "#events"), ("logs/worker-1", "pre")):
            tab.open(served.url + path)
            assert HOSTILE in tab.text(element)
            word = f"written for {element}"
            append(job_dir, "launcher", event("log", message=word))
            with (job_dir / "logs" / "worker-1.log").open("a") as log:
                log.write(f"{word}\n")
            tab.wait_for(f"document.body.innerText.includes('{word}')")
            assert HOSTILE in tab.text(element)
            assert tab.evaluate("window.isBroken === undefined")
            assert tab.evaluate("document.querySelectorAll('img, main script').length") == 0
    assert not [line for line in tab.said if "favicon" not in line]


@pytest.mark.further
def test_a_hundred_thousand_events_stay_fluid(browser, tmp_path):
    job_dir = new_job(tmp_path)
    started = recorded("job", 1000.0, "launcher", state="running", task="train")
    number = 97_600
    with (job_dir / "events.jsonl").open("w") as log:
        log.writelines(map(line_of, [started, *steps(1, number, records_per_second=9.0)]))
    longest = []
    with dashboard(job_dir) as served:
        for _ in range(3):  # Other programs on the machine only make tasks longer.
            tab = browser.tab()
            tab.at_start(OBSERVE_LONG_TASKS)
            tab.open(served.url)
            tab.wait_for(CURVE, seconds=60)
            for _ in range(8):
                first, number = number + 1, number + 100
                with (job_dir / "events.jsonl").open("a") as log:
                    log.writelines(map(line_of, steps(first, number, records_per_second=9.0)))
                tab.wait_for(f"document.body.innerText.includes('{number:,} of')")
            assert tab.evaluate("document.querySelectorAll('*').length") < 5000
            longest.append(max(tab.evaluate("window.longTasks"), default=0))
            if longest[-1] < 100:
                break
            tab.call("Page.close")

    assert min(longest) < 100


def test_the_losses_of_the_jobs_of_a_folder_are_drawn_in_one_chart_that_is_live(tab, tmp_path):
    jobs = [new_job(tmp_path, f"{rate}.job", params={"rate": rate}) for rate in (0.1, 0.01)]
    for job_dir in jobs:
        (job_dir / "events.jsonl").write_text("".join(map(line_of, steps(1, 60))))
    tab.look_like(PHONE)
    with dashboard(tmp_path) as served:
        tab.open(served.url)
        tab.wait_for(CURVE)
        label = "document.querySelector('.chart').ariaLabel"
        tab.evaluate("window.isSamePage = true")
        append(jobs[0], "host:0", event("step", step=61, loss=0.125))
        tab.wait_for(f"{label}.includes('last 0.125')")

        assert tab.evaluate("window.isSamePage")
        assert tab.evaluate("document.querySelectorAll('.chart').length") == 1
        assert "params.rate" in tab.text("#settings")
        assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert tab.said == []


def test_a_phone_needs_no_scrolling_to_the_side(tab, job_dir, tmp_path):
    tab.look_like(PHONE)
    with dashboard(job_dir) as served:
        for path in ("", "logs/worker-1", "settings"):
            tab.open(served.url + path)
            assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_all_of_a_page_is_reached_by_keyboard(tab, job_dir):
    with dashboard(job_dir) as served:
        tab.open(served.url)
        reached = set()
        for _ in range(20):
            tab.press("Tab")
            reached.add(
                tab.evaluate("document.activeElement.ariaLabel || document.activeElement.innerText")
            )
        assert {"settings", "Time by cause", "Processes", "worker-1", "status.json"} <= reached
        tab.evaluate("document.querySelector('nav a').focus()")
        tab.press("Enter")
        tab.wait_for("location.pathname === '/settings'")


def test_the_themes_differ_and_follow_the_system(tab, job_dir):
    with dashboard(job_dir) as served:
        tab.open(served.url)
        tab.wait_for(CURVE)
        grounds = set()
        for theme in ("light", "dark"):
            tab.look_like(PHONE, theme)
            grounds.add(tab.evaluate("getComputedStyle(document.body).backgroundColor"))
            tab.wait_for(CURVE)
        assert len(grounds) == 2


@pytest.mark.skipif(AXE is None, reason="EDL_AXE is to be the path of axe-core's axe.min.js")
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing(tab, job_dir, theme):
    tab.look_like(DESKTOP, theme)
    with dashboard(job_dir.parent) as served:
        for path in ("", *(f"job/model.job/{name}" for name in ("", "logs/worker-1", "settings"))):
            tab.open(served.url + path)
            tab.wait_for("Boolean(document.querySelector('main table, main pre'))")
            tab.evaluate(Path(AXE).read_text() + "; null")
            assert tab.evaluate("axe.run().then((results) => results.violations)") == []


def test_a_job_that_never_started_is_waited_for(tab, tmp_path):
    with dashboard(tmp_path / "model.job") as served:
        tab.open(served.url)
        assert NOT_A_JOB in tab.text("[role=alert]")
        append(new_job(tmp_path), "launcher", event("job", state="running", task="train"))
        tab.wait_for("document.querySelector('.state')?.dataset.state === 'lost'")
        assert tab.text("[role=alert]") == ""


@pytest.mark.long
def test_a_report_draws_its_curves_from_a_file(tab, job_dir, tmp_path):
    file = tmp_path / "report.html"
    assert main(["report", str(job_dir), "--html", str(file)]) == 0
    tab.open(file.as_uri())
    tab.wait_for(CURVE)
    assert tab.evaluate("window.isBroken === undefined")
    assert tab.said == []
    assert os.stat(file).st_size < 500_000
