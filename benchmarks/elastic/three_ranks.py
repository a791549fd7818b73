"""A ring of three that loses a worker and regains one, on both sides: the picture of the README."""

import signal
import time
from collections.abc import Callable
from dataclasses import replace

from benchmarks import stamps
from benchmarks.elastic import events
from benchmarks.elastic.events import JOIN, KILL, LOCALHOST, Setup, driven_job, stamps_of
from benchmarks.elastic.goodput import draw
from benchmarks.report import Line, Results
from benchmarks.run import OURS, PLAIN, RELEASED, Run, side_command, wait_for
from benchmarks.stamps import Stamp
from edl_horovod.job.directory import JobDir
from edl_horovod.ledger import read_losses

NUM_RANKS, BATCH_SIZE = 3, 96
"""All sizes of the ring divide the batch."""
KILL_SECONDS, REPLACEMENT_SECONDS, END_SECONDS = 8.0, 14.0, 30.0
SPAN_SECONDS = 0.25
CAPTION = (
    "Training on three ranks of one machine: a worker is killed (`kill -9`) after 8 s, and a "
    "replacement may start after 14 s. Where no step ended within a quarter of a second, no rank "
    "trains."
)


def measure(run: Run, setup: Setup) -> Results:
    """Train on digits with both sides in turn, and let the same happen to both."""
    setup = replace(setup, work=replace(setup.work, data=run.data("digits"), batch_size=BATCH_SIZE))
    peer = RELEASED if run.released_horovod.exists() else PLAIN
    sides = {OURS: _train_ours, peer: _train_horovod}
    spans = {KILL: (KILL_SECONDS, REPLACEMENT_SECONDS), JOIN: (REPLACEMENT_SECONDS, END_SECONDS)}
    jobs, lines = [], []
    for side, train in sides.items():
        began, steps, losses = train(run, setup)
        end = losses[-1].at - SPAN_SECONDS
        jobs.append(stamps.loss_over_time(losses, began, end, every=SPAN_SECONDS))
        for event, (since, until) in spans.items():
            stall = stamps.stall(steps, began + since, began + until)
            # A standstill from the kill until the replacement trains is both.
            detail = "the same standstill" if lines and tuple(lines[-1].values) == (stall,) else ""
            lines.append(Line(f"ring of {NUM_RANKS}: {event}", side, (stall,), detail=detail))
    marks = {"a worker is killed": KILL_SECONDS, "a replacement may start": REPLACEMENT_SECONDS}
    options = {"labels": (*sides,), "value": "loss", "scale": "log", "marks": marks}
    return Results(lines=lines, notes=draw(run, "three-ranks", CAPTION, {"": jobs}, **options))


def _train_ours(run: Run, setup: Setup) -> tuple[float, list[Stamp], list[Stamp]]:
    """When it began, the steps of the rank that stays, and steps with their losses."""
    with driven_job(run, setup, "three-ranks", slots=NUM_RANKS, ledger=True) as job:
        job.wait_for_ring(NUM_RANKS)

        last = NUM_RANKS - 1
        began = _play(
            lambda: job.stamps(events.SURVIVOR),
            lambda: (job.send(last, signal.SIGKILL), job.want(last)),
            lambda: job.want(NUM_RANKS),
        )
        losses = {step.step + 1: step.loss for step in read_losses(JobDir(job.job_dir).ledger)}
        steps = job.stamps(events.SURVIVOR)
    return began, steps, [replace(s, loss=losses[s.step]) for s in steps if s.step in losses]


def _train_horovod(run: Run, setup: Setup) -> tuple[float, list[Stamp], list[Stamp]]:
    place = run.place("three-ranks-horovodrun")
    folder, names = place / "stamps", [events.another_name(number) for number in range(NUM_RANKS)]
    launcher = events.elastic_horovodrun(place, *names[:-1])
    argv = side_command(place, "peers.horovod.train_elastic", setup.work, launcher, reads=True)
    packages = run.released_horovod if run.released_horovod.exists() else None

    def steps() -> list[Stamp]:
        return stamps_of(folder, LOCALHOST)

    with run.process(place, argv, packages=packages) as child:
        wait_for(lambda: _has_size(steps()), f"a ring of {NUM_RANKS}", child)
        began = _play(
            steps,
            lambda: events.kill_last(folder, "127*"),
            # Horovod leaves out the host of the killed one, which stays on the list.
            lambda: events.want_hosts(place, *names),
        )
        return began, steps(), stamps_of(folder, "*")


def _play(steps: Callable[[], list[Stamp]], kill: Callable, replace_it: Callable) -> float:
    """Train, kill a worker, let another one come, and train on; returns the begin."""
    began = time.monotonic()
    time.sleep(KILL_SECONDS)
    kill()
    time.sleep(REPLACEMENT_SECONDS - KILL_SECONDS)
    replaced_at = time.monotonic()
    replace_it()
    wait_for(lambda: _has_size(steps(), replaced_at), f"a ring of {NUM_RANKS} again")
    time.sleep(max(KILL_SECONDS, began + END_SECONDS - time.monotonic()))
    return began


def _has_size(steps: list[Stamp], since: float = 0.0) -> bool | None:
    return any(step.size == NUM_RANKS and step.at > since for step in steps) or None
