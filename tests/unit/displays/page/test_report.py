"""The report of a job as one file of HTML."""

from base64 import b64encode
from hashlib import sha256

import pytest

from edl_horovod.displays.page.report import render
from edl_horovod.job.events import AccountEvent, JobEvent, Recorded, WorkerEvent
from edl_horovod.job.state import summarize
from tests.html_elements import Elements
from tests.job_events import recorded


def report(*events, name="a job"):
    state = summarize(events)
    return Elements(render(name, state, None, events, now=2000.0))


def account(time, worker, pid, doing="computing", age=None, **seconds):
    event = AccountEvent(pid=pid, began=1000.0, seconds=seconds, doing=doing, age=age)
    return Recorded(time, worker, event)


def bars_of(page):
    """Class, begin and width of each part of a process' bar."""
    rects = [rect for rect in page.of("rect") if "x" in rect and rect["height"] != "40"]
    return [(bar["class"], float(bar["x"]), float(bar["width"])) for bar in rects]


EVENTS = (
    Recorded(1000.0, "launcher", JobEvent(state="running", task="train")),
    account(1010.0, "host:0", 1, building=4.0, computing=6.0),
    account(1010.0, "host:1", 2, building=8.0, computing=2.0),
    account(1020.0, "host:0", 1, building=4.0, computing=16.0),
    Recorded(1015.0, "coordinator", WorkerEvent(worker="host:1", state="lost")),
    recorded("reset", 1016.0, "host:0", old_size=2, new_size=1, step=7, reason="host:1 was lost"),
)


def test_it_shows_what_cost_the_most_and_each_process():
    page = report(*EVENTS)
    for words in ("building: 34.3%", "(12.0 s)", "lost: 14.3%", "(5.0 s)", "host:1 was lost"):
        assert words in page.text
    titles = [svg.get("aria-label", "") for svg in page.of("svg")]
    for process in ("host:0, pid 1, 20.0 s", "host:1, pid 2, 15.0 s, lost"):
        assert any(process in title for title in titles)


def test_it_says_which_rank_is_slow_and_which_were_lost_where():
    events = [recorded("generation", size=2, members=("host:0", "host:1"), is_formed=True)]
    for slot, spent in enumerate((4.0, 8.0)):
        seconds = {"computing": spent, "exchange": 8.0 - spent}
        fields = {"pid": 7, "seconds": seconds, "steps": 10}
        events.append(recorded("account", 1010.0, f"host:{slot}", **fields))
    events.append(recorded("worker", 1015.0, worker="host:1", state="lost"))
    events.append(recorded("trace", 1015.0, "host:0", phase="step 10"))
    page = report(*events)
    assert "host:1 (pid 7)" in page.text
    assert "rank 1 (host:1)" in page.text
    assert "step 10" in page.text


def test_the_bar_of_a_process_covers_its_life():
    bars = bars_of(report(*EVENTS))
    # The second process lived for the first three quarters of the first one's life.
    assert max(begin + width for _, begin, width in bars) == 1000.0
    of_second = bars[-3:]
    assert max(begin + width for _, begin, width in of_second) == 750.0
    assert {name for name, _, _ in of_second} == {"of-building", "of-computing", "of-lost"}


@pytest.mark.parametrize(
    ("cause", "accounts"),
    [
        # A part of a step fills the bar from its begin.
        (
            "hung",
            [
                account(1010.0, "host:0", 1, building=10.0),
                account(1020.0, "host:0", 1, doing="input", building=10.0),
                account(1030.0, "host:0", 1, doing="input", building=10.0),
                account(1040.0, "host:0", 1, doing="", building=10.0, hung=30.0),
            ],
        ),
        # The bar of all ranks is as long as the job.
        (
            "computing",
            [
                account(1010.0, "all ranks", 0, building=40.0),
                account(1040.0, "all ranks", 0, building=40.0, computing=240.0),
            ],
        ),
        # A clock that was set forward shrinks no bar.
        (
            "input",
            [
                account(1010.0, "host:0", 1, "", age=10.0, building=10.0),
                account(4640.0, "host:0", 1, "", age=40.0, building=10.0, input=30.0),
            ],
        ),
    ],
)
def test_the_parts_of_a_bar(cause, accounts):
    bars = bars_of(report(*accounts))
    assert bars == [("of-building", 0.0, 250.0), (f"of-{cause}", 250.0, 750.0)]


def test_it_needs_no_other_file_and_runs_only_its_own_scripts():
    page = report(*EVENTS)
    assert not page.of("link") + page.of("img")
    assert not [script for script in page.of("script") if "src" in script]
    (policy,) = [meta["content"] for meta in page.of("meta") if "http-equiv" in meta]
    assert "default-src 'none'" in policy
    digests = [sha256(script.encode()).digest() for script in page.scripts]
    assert len(digests) == 2
    assert all(f"'sha256-{b64encode(digest).decode()}'" in policy for digest in digests)
    assert "'unsafe-inline'" not in policy.partition("script-src")[2]


def test_its_style_is_that_of_the_page():
    assert b'[data-state="failed"]' in render("a job", summarize(()), None, (), now=0.0)


def test_what_a_job_says_stays_text():
    page = report(
        account(1010.0, "<script>alert(1)</script>", 1, building=4.0, **{"</style><b>": 3.0}),
        name="<img src=x>",
    )
    assert len(page.of("script")) == 2
    assert not page.of("b") + page.of("img")
    assert "<script>alert(1)</script>" in page.text


def test_a_job_that_has_not_begun_has_a_report():
    assert "a job" in report().text


def test_many_accounts_make_a_picture_of_bounded_size():
    events = [
        account(1000.0 + n, "host:0", 1, computing=float(n), input=n / 2) for n in range(1, 5000)
    ]
    assert len(report(*events).of("rect")) < 2000
