"""The page: what stands on it, and that nothing breaks out of it."""

import json
from hashlib import sha256

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from edl_horovod.cluster.causes import Cause
from edl_horovod.cluster.status import JobView, PodView
from edl_horovod.config.kubernetes import KubernetesConfig
from edl_horovod.config.schema import JobConfig
from edl_horovod.config.slurm import SlurmConfig
from edl_horovod.displays.page import rendering
from edl_horovod.displays.page.folder import JobList, list_view
from edl_horovod.displays.page.rendering import charts_of, log_view, page, settings_view
from edl_horovod.displays.page.report import live_view
from edl_horovod.displays.page.snapshot import JobSnapshot, Process
from edl_horovod.job.account import CAUSES, LOST, Account, RankAccount
from edl_horovod.job.state import JobState, WorkerState
from tests.html_elements import Elements

NOW = 1_000_000.0
NUMBERS = st.floats(allow_nan=False) | st.integers()


def _snapshot_of(text: str, *, in_cluster: bool) -> JobSnapshot:
    """A job with the text wherever somebody else's text may stand."""
    rank = RankAccount(text, 1, NOW - 9, NOW, 9.0, {f"{text} x": 4.0, "input": 5.0}, text)
    state = JobState(
        state="running",
        task="train",
        message=text,
        output=text,
        step=5,
        total_steps=9,
        loss=0.5,
        size=2,
        metrics={text: 0.5},
        workers={text: WorkerState("lost", NOW, text)},
        account=Account({rank.process: rank}),
    )
    pod = PodView(
        name="m-worker-0",
        role="worker",
        state="pending",
        restarts=0,
        node=text,
        message=text,
        created=NOW,
    )
    job = JobView(
        name="m",
        namespace="d",
        state="waiting",
        message=text,
        created=NOW,
        num_wanted=1,
        num_warm=0,
        slots_per_worker=1,
        pods=(pod,),
        waits_for=(Cause(text, f"{text} q", text),),
    )
    return JobSnapshot(
        time=NOW,
        state=state,
        details=job.details() if in_cluster else None,
        notable=((NOW, f"a{text}"),),
        problem=f"b{text}",
        loss=((1, 2.0), (2, 1.0)),
        metrics={text: ((1, 2.0), (2, 1.0))},
        ring=((NOW, 2),),
        processes=(Process(rank, (), text),),
        logs=(text,),
        began=NOW,
    )


def _page_of(text: str, *, in_cluster: bool) -> Elements:
    snapshot = _snapshot_of(text, in_cluster=in_cluster)
    return Elements(page(live_view(f"c{text}", snapshot, now=NOW), stream="?changes"))


@given(text=st.text(min_size=1), in_cluster=st.booleans())
@example(text="<script>alert(1)</script>", in_cluster=True)
@example(text="\" onload='alert(1)", in_cluster=False)
@example(text="</title><!--", in_cluster=True)
@example(text="{{ 7 * 7 }}{% raw %}", in_cluster=False)
@example(text="\ud800", in_cluster=True)
def test_no_text_breaks_out_of_the_page(text, in_cluster):
    assert _page_of(text, in_cluster=in_cluster).tags == _page_of("x", in_cluster=in_cluster).tags


@given(text=st.text(min_size=1))
@example(text="<script>alert(1)</script>")
@example(text="javascript:alert(1)//")
@example(text="\ud800")
def test_no_text_breaks_out_of_the_list_of_jobs(text):
    def parsed(text):
        jobs = ((text, _snapshot_of(text, in_cluster=False)), (f"{text}2", None))
        return Elements(page(list_view(text, JobList(NOW, jobs, problem=f"a{text}"), now=NOW)))

    assert parsed(text).tags == parsed("x").tags


@given(text=st.text() | st.binary().map(lambda log: log.decode(errors="replace")))
@example(text="</pre><script>alert(1)</script>\x00\x1b[31m")
def test_no_log_breaks_out_of_its_page(text):
    assert (
        Elements(page(log_view("m", "p", text))).tags == Elements(page(log_view("m", "p", ""))).tags
    )


def test_the_settings_hide_what_may_hold_a_secret():
    config = JobConfig(
        task="train",
        data="https://user:hunter2@host/part,https://host/part?token=hunter2",
        output="/o",
        model_def="m",
        kubernetes=KubernetesConfig(env={"KEY": "hunter2"}),
        slurm=SlurmConfig(setup=["export KEY=hunter2"]),
    )
    text = page(settings_view("m", config)).decode()

    assert "hunter2" not in text
    assert text.count("may hold a secret") == 2
    assert "https://host/part" in text


def test_text_is_shown_as_it_was_written():
    parsed = _page_of("<b>&amp;{{ 7 }}", in_cluster=False)

    assert parsed.texts.count("b<b>&amp;{{ 7 }}") == 1
    assert " a<b>&amp;{{ 7 }}" in parsed.texts


def test_a_page_shows_step_loss_ring_and_workers():
    parsed = _page_of("x", in_cluster=False)

    shown = " ".join(parsed.texts)
    assert "5 of 9" in shown
    assert "0.5" in shown
    assert "2 ranks" in shown
    assert "loss over" in shown
    assert "ranks in" not in shown, "it has one point, and no time has passed"


def test_a_page_of_nothing_says_why():
    snapshot = JobSnapshot(time=NOW, problem="gone")
    parsed = Elements(page(live_view("m", snapshot, now=NOW)))

    assert "gone" in parsed.texts
    assert "unknown" in parsed.texts


def test_a_page_has_no_script_or_style_in_itself_and_asks_nobody_else():
    parsed = _page_of("x", in_cluster=True)

    scripts = [names for tag, names in parsed.tags if tag == "script"]
    assert scripts
    assert all("src" in names for names in scripts)
    assert "style" not in {tag for tag, _ in parsed.tags}
    values = [value for _, attributes in parsed.elements for value in attributes.values()]
    assert not [value for value in values if value and "//" in value]
    assert not [names for _, names in parsed.tags if "style" in names]


@pytest.mark.parametrize(
    ("name", "digest"),
    [
        ("LICENSE", "8f989229699b4fe2f1a0432d0e9edc338a8a911e250e2d1b01ecd770a5f5b1bd"),
        ("uPlot.iife.min.js", "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f"),
        ("uPlot.min.css", "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04"),
    ],
)
def test_the_library_of_curves_is_as_its_authors_published_it(name, digest):
    """These are the digests of the files in version 1.6.32 of uplot in npm's registry."""
    assert sha256(rendering.shipped(f"uplot/{name}").encode()).hexdigest() == digest


def test_each_cause_has_a_colour():
    style = rendering.shipped("style.css")
    assert not [cause for cause in (*CAUSES, LOST) if f".of-{cause} {{" not in style]


@given(st.lists(st.tuples(NUMBERS, NUMBERS), max_size=20))
def test_a_curve_has_numbers_that_a_browser_can_draw(points):
    for chart in charts_of(JobSnapshot(time=NOW, loss=tuple(points))):
        (data,) = json.loads(chart.data)["curves"]
        assert len(data["x"]) == len(data["y"]) >= 2
        assert max(map(abs, data["x"])) < 2**53
        assert max(map(abs, data["y"])) < 1e30
