"""Looks at a job by its directory: there, not yet there, torn, begun anew."""

import gc
import json
import os
import pickle
import re
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from edl_horovod.config import resolved
from edl_horovod.config.schema import JobConfig, KubernetesConfig
from edl_horovod.displays.page.folder import Folder, list_view
from edl_horovod.displays.page.rendering import charts_of, page
from edl_horovod.displays.page.snapshot import DirectorySource, History, JobSnapshot
from edl_horovod.job.directory import JobDir
from edl_horovod.job.events import Recorded, line_of
from tests.job_events import append, event, recorded


def make_job(job_dir: Path, output: str = "/o", **settings: Any) -> None:
    job_dir.mkdir(parents=True, exist_ok=True)
    config = JobConfig(task="train", data="/d", output=output, model_def="m", **settings)
    resolved.dump(config, job_dir / "config.yaml")


def step(number: int, **changes: Any) -> Recorded:
    said = {"step": number, "loss": 1.0 / number, "records_seen": number, "size": 2, **changes}
    return recorded("step", float(number), **said)


def snapshot_of(*events: Recorded) -> JobSnapshot:
    history = History()
    for entry in events:
        history.add(entry)
    return history.snapshot(history.state)


def steps_of(snapshot: JobSnapshot) -> list[int]:
    return [x for x, _ in snapshot.loss]


@pytest.fixture
def source(tmp_path):
    """A job that has no event yet."""
    make_job(tmp_path)
    return DirectorySource(JobDir(tmp_path))


def write_steps(job_dir: Path, *numbers: int) -> None:
    append(job_dir, "launcher", *(step(number).event for number in numbers))


def test_a_job_that_is_not_there_yet_is_shown_once_it_is(tmp_path):
    source = DirectorySource(JobDir(tmp_path / "job"))

    missing = source.snapshot()
    make_job(tmp_path / "job")
    write_steps(tmp_path / "job", 1, 2)
    present = source.snapshot()

    assert (missing.http_status, missing.state) == (404, None)
    assert "config.yaml" in missing.problem
    assert present.http_status == 200
    assert present.state is not None
    assert present.state.step == 2
    assert present.loss == ((1, 1.0), (2, 0.5))


def test_a_file_in_the_place_of_a_job_is_no_job(tmp_path):
    (tmp_path / "job").write_text("")

    assert DirectorySource(JobDir(tmp_path / "job")).snapshot().http_status == 404


def test_only_what_was_added_is_read_again(source, tmp_path):
    write_steps(tmp_path, *range(1, 100))
    source.snapshot()
    path = tmp_path / "events.jsonl"
    size = path.stat().st_size
    first = path.read_bytes().index(b"\n") + 1
    with path.open("r+b") as stream:
        stream.seek(first)
        stream.write(b"x" * (size - first - 1))  # What was read is not looked at again.

    write_steps(tmp_path, 100)

    assert steps_of(source.snapshot()) == list(range(1, 101))


def test_lines_that_are_no_whole_events_are_passed_over(source, tmp_path):
    write_steps(tmp_path, 1)
    with (tmp_path / "events.jsonl").open("a") as stream:
        stream.write('{"time": 2.0, "source": "launcher", "kind": "step", "step": 2}\n')
        stream.write('{"time": 2.0, "kind": "st')
    torn = source.snapshot()
    write_steps(tmp_path, 3)

    assert torn.loss == ((1, 1.0),)
    assert steps_of(source.snapshot()) == [1, 3]


def test_a_job_that_begins_again_in_the_directory_is_a_new_one(source, tmp_path):
    write_steps(tmp_path, 5)
    source.snapshot()

    os.truncate(tmp_path / "events.jsonl", 0)
    write_steps(tmp_path, *range(1, 5))

    assert steps_of(source.snapshot()) == [1, 2, 3, 4]


def test_a_loss_that_is_no_number_leaves_a_gap():
    snapshot = snapshot_of(step(1), step(2, loss=None), step(3, loss=None))

    assert (steps_of(snapshot), snapshot.state.step) == ([1], 3)


def test_only_changes_of_the_ring_are_kept():
    steps = [step(number, size=size) for number, size in enumerate((2, 2, 3, 3, 1), 1)]

    assert snapshot_of(*steps).ring == ((1.0, 2), (3.0, 3), (5.0, 1))


def test_the_curve_of_the_ring_of_a_job_that_is_over_ends_with_the_job(source, tmp_path):
    ended = time.time() - 3600
    lines = [recorded("step", ended - 120 + number, size=2, step=number) for number in (1, 2)]
    lines.append(recorded("job", ended, state="finished", steps=2))
    (tmp_path / "events.jsonl").write_text("".join(map(line_of, lines)))

    snapshot = source.snapshot()

    assert snapshot.ended == ended
    assert ring_seconds(snapshot) == [0, 119]


def test_the_curve_of_the_ring_of_a_job_that_runs_extends_until_now():
    began, until = ring_seconds(snapshot_of(recorded("step", time.time() - 600, size=2, step=1)))

    assert (began, round(until / 10)) == (0, 60)


def test_a_clock_that_is_set_back_leaves_a_curve_that_can_be_drawn():
    sizes = ((100.0, 2), (50.0, 3), (120.0, 1))
    events = [recorded("step", when, size=size, step=1) for when, size in sizes]
    snapshot = snapshot_of(*events, recorded("job", 60.0, state="finished"))

    assert ring_seconds(snapshot) == [0, 0, 20, 20]


def ring_seconds(snapshot):
    (chart,) = [drawn for drawn in charts_of(snapshot) if drawn.title.startswith("ranks")]
    return json.loads(chart.data)["curves"][0]["x"]


def test_nothing_is_read_while_no_file_changes(source, tmp_path, monkeypatch):
    write_steps(tmp_path, 1)
    first = source.snapshot()
    monkeypatch.setattr(Path, "open", None)
    monkeypatch.setattr(JobDir, "is_running", lambda _: False)

    assert source.snapshot().loss == first.loss


@pytest.mark.parametrize("is_reset_first", [True, False])
def test_what_a_reset_took_is_known_by_its_parts(is_reset_first):
    first_two = [
        recorded("generation", 9.9375, generation=2, is_formed=True, seconds=0.3125),
        recorded(
            "reset", 10.0, generation=2, old_size=2, new_size=1, seconds=0.5, join_seconds=0.375
        ),
    ]
    if is_reset_first:
        first_two.reverse()

    (reset,) = snapshot_of(*first_two, step(7, size=1)._replace(time=10.125)).resets
    assert reset.parts == {
        "notice": (9.5, 9.625),
        "rendezvous": (9.625, 9.875),
        "sync": (9.875, 10.0),
        "first step": (10.0, 10.125),
    }


@pytest.mark.parametrize(
    ("between", "second", "resets"),
    [((), 2, [2]), ((recorded("job", state="finished"),), 1, [])],
    ids=["after a loss of all ranks", "of another job in the same log"],
)
def test_the_first_ring_of_a_job_is_no_reset(between, second, resets):
    # Each time the leader is a process without a ring.
    rings = [recorded("reset", generation=n, old_size=0, new_size=2) for n in (1, second)]

    snapshot = snapshot_of(rings[0], *between, rings[1])
    assert [reset.event.generation for reset in snapshot.resets] == resets
    assert snapshot.state.num_resets == len(resets)


def reset_at_ten(**fields):
    return recorded("reset", 10.0, generation=2, old_size=2, new_size=3, seconds=0.5, **fields)


def test_a_ring_that_trained_on_while_the_next_one_was_decided_had_nothing_to_notice():
    ring = recorded("generation", 10.5, generation=2, is_formed=True, seconds=5.0)

    (reset,) = snapshot_of(ring, reset_at_ten(join_seconds=0.25)).resets
    assert reset.parts == {"notice": (9.5, 9.5), "rendezvous": (9.5, 9.75), "sync": (9.75, 10.0)}


@pytest.mark.parametrize(
    ("fields", "parts"),
    [
        ({"join_seconds": 0.25}, {"rendezvous": (9.5, 9.75), "sync": (9.75, 10.0)}),
        ({}, {}),  # An earlier version wrote it.
    ],
)
def test_without_a_coordinator_the_leader_tells_the_parts(fields, parts):
    # The launcher of a static ring writes its members once the ring works.
    ring = recorded("generation", 10.0625, generation=2, is_formed=True)
    first_step = step(7, size=1)._replace(time=10.125)

    (reset,) = snapshot_of(reset_at_ten(**fields), ring, first_step).resets
    assert reset.parts == {**parts, "first step": (10.0, 10.125)}


def test_a_process_is_shown_with_the_cause_of_its_end():
    def account(time, pid, **seconds):
        fields = {"pid": pid, "began": time - seconds["input"], "seconds": seconds}
        return recorded("account", time, "host:1", doing="input", **fields)

    def worker(time, state, message=""):
        return recorded("worker", time, worker="host:1", state=state, message=message)

    killed, newcomer = snapshot_of(
        account(10.0, 1, input=5.0),
        worker(11.0, "lost"),
        worker(11.5, "failed", "SIGKILL. Maybe ..."),
        account(15.0, 2, input=3.0),
    ).processes
    assert (killed.last.pid, killed.end) == (1, "failed: SIGKILL")
    assert (newcomer.last.pid, newcomer.end) == (2, "")
    # Only its connection was lost.
    blip = (account(10.0, 1, input=5.0), worker(11.0, "lost"), worker(11.0, "returned"))
    assert [process.end for process in snapshot_of(*blip).processes] == [""]


@pytest.mark.long
def test_a_job_of_a_million_events_has_a_snapshot_of_bounded_size():
    history, sizes = History(), []
    history.add(recorded("generation", size=2, is_formed=True))
    for number in range(1, 30_000):
        history.add(step(number))
        seconds = {"input": float(number)}
        history.add(
            recorded("account", number, pid=1, seconds=seconds, steps=number, doing="input")
        )
        history.add(recorded("evaluation", step=number, metrics={f"m{number}": 1.0, "auc": 0.5}))
        if number in (10_000, 29_999):
            sizes.append(len(pickle.dumps(history)))

    assert sizes[1] < sizes[0] + 10_000
    shown = history.snapshot(history.state)
    assert len(shown.loss) + len(shown.speed) <= 2 * 401
    assert len(shown.processes[0].moments) <= 400
    assert len(shown.metrics) <= 12


@pytest.mark.long
def test_the_accounts_of_a_job_with_many_processes_are_bounded():
    def size(num_processes):
        shown = snapshot_of(
            *(
                recorded("account", pid + n, pid=pid, seconds={"input": float(n)}, doing="input")
                for pid in range(num_processes)
                for n in range(1, 21)
            )
        ).processes
        assert len(shown) == num_processes
        assert len(shown[-1].moments) > 2
        return sum(len(process.moments) for process in shown)

    assert size(50) == 50 * 20
    assert size(1000) <= 4000


def write_ended_job(job_dir, num_events):
    """A job that has finished, with an account and a stop of each step."""
    make_job(job_dir)
    events = []
    for number in range(1, num_events + 1):
        seconds = {"computing": float(number), "input": 1.0}
        events += [step(number).event, event("account", pid=1, seconds=seconds, doing="")]
    events.append(event("evaluation", step=num_events, metrics={"auc": 0.75}))
    append(job_dir, "launcher", *events, event("job", state="finished", steps=num_events))


def folder_with(tmp_path, *names):
    return Folder("f", lambda: names, lambda name: DirectorySource(JobDir(tmp_path / name)))


@pytest.fixture
def folder(tmp_path):
    """A folder with a job that has ended."""
    write_ended_job(tmp_path / "job", 20)
    return folder_with(tmp_path, "job")


@pytest.mark.long
def test_a_list_of_jobs_that_are_over_keeps_little_of_each(tmp_path):
    names = [f"job{number}" for number in range(10)]
    for name in names:
        write_ended_job(tmp_path / name, 400)
    folder = folder_with(tmp_path, *names)
    tracemalloc.start()
    try:
        folder.snapshot()
        gc.collect()
        num_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert num_bytes < len(names) * 50_000


def test_a_job_that_is_over_is_listed_with_how_it_ended(folder):
    for _ in range(2):
        ((_, listed),) = folder.snapshot().jobs
        assert (listed.is_over, listed.state.state, listed.state.step) == (True, "finished", 20)
        assert listed.state.metrics == {"auc": 0.75}
        assert listed.state.account.goodput == 20 / 21
        assert listed.ended >= listed.began


def test_the_page_of_a_job_that_was_only_listed_has_all_of_it(folder):
    folder.snapshot()

    shown = folder.source("job").snapshot()

    assert steps_of(shown) == list(range(1, 21))
    assert len(shown.processes) == 1
    assert folder.source("job").snapshot().loss == shown.loss


def test_a_listed_job_that_goes_on_is_read_again(folder, tmp_path):
    folder.snapshot()
    append(tmp_path / "job", "launcher", step(21).event, event("job", state="suspended"))

    ((_, listed),) = folder.snapshot().jobs

    assert (listed.state.state, listed.state.step) == ("suspended", 21)
    assert listed.state.metrics == {"auc": 0.75}


def test_a_page_that_is_open_is_not_read_again_because_of_the_list(folder, monkeypatch):
    shown = folder.source("job").snapshot()
    folder.snapshot()
    monkeypatch.setattr(Path, "open", None)
    monkeypatch.setattr(JobDir, "is_running", lambda _: False)

    assert folder.source("job").snapshot().loss == shown.loss


def folder_of_sweep(tmp_path, *names):
    """A folder with two jobs of a sweep, each with a secret of its own."""
    for name, rate in zip(names, (0.1, 0.01), strict=True):
        write_job_of_sweep(tmp_path / name, rate, secret=name)
        write_steps(tmp_path / name, 1, 2)
    return folder_with(tmp_path, *names)


def write_job_of_sweep(job_dir, rate, *, secret=""):
    settings = {"params": {"rate": rate}, "kubernetes": KubernetesConfig(env={"TOKEN": secret})}
    make_job(job_dir, output=str(job_dir.with_suffix(".out")), **settings)


def list_page(folder):
    return page(list_view("f", folder.snapshot(), now=time.time())).decode()


def compared(shown):
    """The cells of the table of settings."""
    section = shown.partition('<section id="settings">')[2].partition("</section>")[0]
    return re.findall(r"<t[hd][^>]*>([^<]*)</t[hd]>", section)


def test_the_jobs_of_one_folder_are_listed_with_the_settings_in_which_they_differ(tmp_path):
    folder = folder_of_sweep(tmp_path, "a.job", "b.job")

    first = list_page(folder)
    assert compared(first) == ["job", "params.rate", "a.job", "0.1", "b.job", "0.01"]
    assert first.count("data-chart") == 1
    write_job_of_sweep(tmp_path / "b.job", 0.1)
    assert compared(list_page(folder)) == []


def test_jobs_of_several_folders_are_not_compared(tmp_path):
    shown = list_page(folder_of_sweep(tmp_path, "x/a.job", "y/b.job"))

    assert compared(shown) == []
    assert "data-chart" not in shown
