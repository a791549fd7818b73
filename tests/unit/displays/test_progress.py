import contextlib
import functools
import io
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl_horovod.displays.terminal import (
    LiveDisplay,
    PlainDisplay,
    facts,
    open_terminal,
    prepare_events,
)
from edl_horovod.displays.text import notable, time_left
from edl_horovod.job.events import Recorded
from edl_horovod.job.state import JobState, advance, summarize
from tests.job_events import event, recorded


def step(number: int, time: float) -> Recorded:
    fields = {"loss": 0.25, "records_per_second": 1234.4, "size": 2, "total_steps": 100}
    return recorded("step", time, step=number, **fields)


def plain_lines(*events: Recorded) -> list[str]:
    """What a terminal without cursor shows of events that come one by one."""
    stream = io.StringIO()
    with PlainDisplay(stream) as display:
        for change in events:
            display([change])
    return stream.getvalue().splitlines()


@pytest.mark.parametrize(
    ("events", "shown"),
    [
        (
            [step(10, 100.0), step(20, 110.0)],
            "step 20 of 100, epoch 1 | loss 0.25 | 1,234 records/s | 2 ranks | 0:01:20 left",
        ),
        (  # Nothing is trained.
            [
                recorded("progress", 0.0, records=0, total_records=1000, size=1),
                recorded("progress", 2.0, records=500, total_records=1000, size=1),
            ],
            "500 of 1,000 records | 250 records/s | 1 rank | 0:00:02 left",
        ),
        ([recorded("job", state="starting", task="train")], "starting"),
    ],
    ids=["steps", "records", "before the first step"],
)
def test_facts_tell_where_the_job_is(events, shown):
    assert facts(summarize(events), "records") == shown


def test_a_job_that_stopped_early_is_at_its_end():
    state = summarize([step(10, 0.0), step(20, 10.0), recorded("job", state="finished", steps=20)])

    assert (state.done, state.total, state.seconds_left) == (20, 20, 0.0)


def test_time_left_is_not_guessed_over_a_reset_nor_a_clock_that_has_jumped():
    reset = recorded("reset", 15.0, generation=2, old_size=2, new_size=1, step=20, seconds=1.0)

    assert summarize([step(10, 0.0), step(20, 10.0), reset]).seconds_left is None
    assert time_left(summarize([step(1, 0.0), step(2, 1.8e9)])) == ""


@given(st.lists(st.sampled_from(["step", "reset", "progress", "evaluation"]), max_size=8))
def test_a_long_row_of_steps_adds_up_to_what_each_one_does(kinds):
    fields = {
        "step": lambda n: {"step": n, "loss": 0.25, "size": 2},
        "reset": lambda n: {"generation": n, "old_size": 2, "new_size": 1, "step": n},
        "progress": lambda n: {"records": n, "total_records": 99, "size": 1},
        "evaluation": lambda n: {"step": n, "metrics": {"accuracy": n / 99}},
    }
    # Each kind comes in a row that is longer than what a state remembers of it.
    kinds = [kind for kind in kinds for _ in range(25)]
    events = [recorded(kind, float(n), **fields[kind](n)) for n, kind in enumerate(kinds)]

    assert summarize(events) == functools.reduce(advance, events, JobState())


@pytest.mark.parametrize(
    ("start", "restart", "shown"),
    [(0.0, 6.0, [0, 5, 10, 11]), (3600.0, 6.0, [0, 5, 6, 11])],
    ids=["each five seconds and at the end", "where the clock is set back"],
)
def test_plain_lines_of_progress(start, restart, shown):
    before = [step(number, start + number) for number in range(6)]
    after = [step(number, restart + number - 6) for number in range(6, 12)]

    steps = [line.partition(" of")[0] for line in plain_lines(*before, *after)]
    assert steps == [f"step {number}" for number in shown]


def test_plain_lines_tell_every_notable_event():
    lines = plain_lines(
        step(1, 0.0),
        recorded("evaluation", step=1, metrics={"accuracy": 0.91234}, examples=10),
        recorded("worker", worker="localhost:1", state="lost", message="exit code 9"),
        recorded("worker", worker="localhost:2", state="warm", message=""),
    )

    assert lines[1:] == [
        "evaluation at step 1: accuracy 0.9123",
        "worker localhost:1 lost: exit code 9",
    ]


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (event("reset", new_size=2, reason="start", seconds=1.0), "ring of 2 formed"),
        (
            event("reset", old_size=2, new_size=3, step=1500, reason="a:1 joined", seconds=0.12),
            "ring 2 -> 3 after step 1,500 (a:1 joined, 0.120 s)",
        ),
        (event("job", state="waiting", message="1 of 2 needed"), "waiting: 1 of 2 needed"),
        (event("job", state="running", message=""), ""),
        (event("log", message="hello [red]"), "hello [red]"),
        (event("generation", generation=1, size=2, members=[], reason=""), ""),
    ],
)
def test_notable_events(change, line):
    assert notable(change) == line


def test_the_live_display_shows_bar_and_notable_lines(capsys):
    with LiveDisplay() as display:
        display([step(10, 0.0), step(20, 10.0), recorded("log", message="hello [red]")])

    err = capsys.readouterr().err
    assert "hello [red]" in err
    assert "step 20 of 100" in err


def test_a_terminal_shows_the_workers_and_the_time_that_is_left(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")  # As on a terminal.
    with LiveDisplay() as display:
        display([recorded("job", state="starting", task="train")])
        display([recorded("worker", worker="localhost:0", state="warm", message="")])
        monkeypatch.setattr("edl_horovod.displays.terminal.LIVE_SECONDS", 0)
        display([step(10, 0.0), step(20, 10.0)])
        shown = capsys.readouterr().err

    for words in ("localhost:0", "WORKER", "0:01:20 left", "starting"):
        assert words in shown
    # What is below the panel that was erased.
    _, _, left = capsys.readouterr().err.rpartition("\x1b[2K")
    assert (
        left == "step 20 of 100, epoch 1 | loss 0.25 | 1,234 records/s | 2 ranks | 0:01:20 left\n"
    )


def test_prepare_shows_files_as_a_job_shows_records():
    stream = io.StringIO()

    with PlainDisplay(stream, "files") as display:
        prepare_events(display)(3, 12, 40)

    assert stream.getvalue() == "3 of 12 files | 40 records\n"


def test_a_full_disk_ends_the_progress_and_not_the_command(monkeypatch, caplog):
    full = io.TextIOWrapper(io.FileIO("/dev/full", "w"))
    monkeypatch.setattr(sys, "stderr", full)
    with open_terminal(is_quiet=False) as show_events:
        show_events([step(10, 0.0)])
        show_events([step(20, 10.0)])
    assert caplog.text.count("No space left on device") == 1
    with pytest.raises(FileNotFoundError), open_terminal(is_quiet=False):
        raise FileNotFoundError
    with contextlib.suppress(OSError):  # What it could not write.
        full.close()


@pytest.mark.parametrize("progress", [step(1, 0.0), recorded("progress", records=1)])
def test_progress_ends_the_waiting(progress):
    waiting = recorded("job", state="waiting", message="1 workers, 2 needed")

    assert summarize([waiting]).state == "waiting"
    state = summarize([waiting, progress])
    assert (state.state, state.message) == ("running", "")


RING = recorded("generation", size=2, members=("a:0", "a:1"), is_formed=True)


@pytest.mark.parametrize(
    "change",
    [
        recorded("job", state="waiting", message="1 workers, 2 needed"),
        recorded("generation", generation=1, size=2, members=("a:0", "a:2"), is_formed=False),
    ],
    ids=["waiting", "not formed"],
)
def test_a_ring_that_has_ended_has_no_ranks(change):
    warm = recorded("worker", worker="a:0", state="warm")

    state = summarize([RING, step(1, 0.0), warm, change])

    assert (state.size, state.members, state.spares) == (0, (), ["a:0"])
    state = summarize([RING], state)
    assert (state.size, state.members, state.spares) == (2, ("a:0", "a:1"), [])
