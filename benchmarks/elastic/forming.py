"""Rings that form: with members that die or hang, with many ranks, and with hundreds."""

import os
import secrets
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from benchmarks import stamps
from benchmarks.elastic.events import SURVIVOR, DrivenJob, Setup, driven_job
from benchmarks.report import Line
from benchmarks.run import OURS, PLAIN, Run, python_command, wait_for
from benchmarks.side import Work
from edl_horovod.config import resolved, schema
from edl_horovod.job import hosts
from edl_horovod.supervisor.processes import Child

DELAYS = (0.0, 0.002, 0.005, 0.01, 0.02)
"""Seconds into the forming: before, within and after Gloo's connecting."""
BEFORE_SECONDS = 0.5
DEATH_SECONDS, HANG_SECONDS = 3.0, 12.0
"""Longest waits for the survivor."""
NEWCOMER = 1
PATCHED = "with the Horovod that we build it raises; as released all survivors abort"
RING_TARGETS = {8: 0.5, 12: 1.0}
"""Seconds by the number of ranks."""
RENDEZVOUS_TARGETS = {256: 3.0}
SLOTS = 8
"""Simulated ranks of a host."""


def measure_failures(run: Run, setup: Setup) -> list[Line]:
    """Let newcomer after newcomer fail in its forming, then members that wait outside hang."""
    deaths, hangs = [], []
    with driven_job(run, setup, "forming", slots=1) as job:
        job.wait_for_ring(1)
        time.sleep(setup.settle_seconds)
        for number in range(setup.num_events):
            delay = DELAYS[number % len(DELAYS)]
            deaths.append(_strike(job, signal.SIGKILL, delay, DEATH_SECONDS))
        for _ in range(setup.num_events):
            hangs.append(_strike(job, signal.SIGSTOP, 0.0, HANG_SECONDS))
            job.send(NEWCOMER, signal.SIGKILL)
        lost = f"{stamps.num_redone(job.stamps(SURVIVOR))} completed steps lost"
    stopped = "a warm worker is stopped, another killed; to reach: 1 s for a sign of life"
    event, before = "a member {} while the ring forms", "a member hangs before the forming"
    hanging, bound = event.format("hangs (SIGSTOP)"), "elastic.forming_seconds=5"
    outside = _hangs_before(run, setup)
    return [
        Line(event.format("dies"), OURS, deaths, most_median=0.4, most=1.0, detail=lost),
        Line(hanging, OURS, hangs, most=6.0, detail=bound),
        Line(before, OURS, outside, most_median=1.1, detail=stopped),
        Line(event.format("dies or hangs"), PLAIN, detail=PATCHED),
    ]


def _strike(job: DrivenJob, number: signal.Signals, delay: float, seconds: float) -> float:
    """A newcomer does this to itself in its forming; how long the survivor stood still."""
    job.order(NEWCOMER, number, delay)
    job.want(2)
    at = wait_for(lambda: job.obeyed(NEWCOMER), "a newcomer that forms a ring", job.child)

    def is_back() -> bool:
        """Whether the survivor trains alone again; a newcomer may be in its ring before."""
        steps = [stamp for stamp in job.stamps(SURVIVOR) if stamp.at > at + delay]
        return len(steps) > 2 and steps[-1].size == 1

    time.sleep(delay)
    job.wait_for(is_back, "the survivor's next step", seconds)
    return stamps.stall(job.stamps(SURVIVOR), at - BEFORE_SECONDS, time.monotonic())


def _hangs_before(run: Run, setup: Setup) -> list[float]:
    """A worker that waits warm outside the ring is stopped when its place becomes free."""
    stalls = []
    with driven_job(run, setup, "not-invited", slots=2, spares=1) as job:
        job.wait_for_ring(2)
        job.wait_for(lambda: job.num_warm() >= 3, "three warm workers")
        for number in range(setup.num_events):
            job.wait_for(
                lambda number=number: job.num_warm() >= 3 + number and len(job.members()) == 2,
                "a ring of two and a warm worker outside",
            )
            time.sleep(setup.settle_seconds)
            (member,) = set(job.members()) - {SURVIVOR}
            (outside,) = {0, 1, 2} - set(job.members())
            stopped = job.pid(outside)
            since, generation = time.monotonic(), job.generation()
            os.kill(stopped, signal.SIGSTOP)
            job.send(member, signal.SIGKILL)
            stalls.append(_stall_of_change(job, since, after=generation))
            os.kill(stopped, signal.SIGCONT)
    return stalls


def _stall_of_change(job: DrivenJob, since: float, *, after: int) -> float:
    """The survivor's stall until the next ring trains, whatever its size is.

    A slot that was killed may be warm again before a stopped worker is given up.
    """
    job.wait_for(lambda: bool(job.rings(after=after)), f"a ring after generation {after}")
    formed_at = time.monotonic()
    job.wait_for(
        lambda: sum(stamp.at > formed_at for stamp in job.stamps(SURVIVOR)) > 2,
        "the survivor's next steps",
    )
    return stamps.stall(job.stamps(SURVIVOR), since - BEFORE_SECONDS, time.monotonic())


def measure_rings(run: Run) -> list[Line]:
    """Form rings of each size several times, with our rendezvous and with Horovod's."""
    lines = []
    for num_ranks in run.amount((8, 12), (4,)):
        work, repetitions = Work(data=run.folder), run.amount(5, 1)
        options = {"size": num_ranks, "repetitions": repetitions}
        seconds = run.side("ours.forming_ranks.form", work, **options)
        event, target = f"forming a ring of {num_ranks} ranks (hvd.init alone)", RING_TARGETS
        lines.append(Line(event, OURS, seconds["ours"], most_median=target.get(num_ranks)))
        lines.append(Line(event, PLAIN, seconds["plain"]))
    return lines


def measure_many_ranks(run: Run) -> list[Line]:
    """Form a ring of simulated ranks, each time under a new coordinator, until the time is over."""
    num_ranks, bound = run.amount(256, 32), run.amount(45.0, 20.0)
    num_hosts, num_requests = num_ranks // SLOTS, 0
    names = {f"host-{number}": SLOTS for number in range(num_hosts)}
    times: list[float] = []
    until, is_in_time = time.monotonic() + bound, True
    while is_in_time and len(times) < run.amount(5, 1):
        place = run.place("simulated")
        elastic = schema.ElasticConfig(min_np=num_ranks, forming_seconds=2 * bound)
        with coordinator(run, place, num_ranks, elastic, names):
            options = {"job_dir": place / "job", "size": num_ranks, "slots": SLOTS}
            options |= {"seconds": bound + 20, "longest": bound}
            numbers = run.side("ours.simulated.form", Work(data=place), **options)
        seconds, num_requests = numbers["seconds"], int(numbers["num_requests"])
        is_in_time = seconds is not None and time.monotonic() < until
        times += [] if seconds is None else [seconds]
    detail = f"{num_hosts} hosts of {SLOTS}; {num_requests:,} requests of Gloo's clients"
    if not times:
        detail = f"not within {bound:.0f} s: {detail} by then"
    event, target = f"rendezvous of {num_ranks} simulated ranks", RENDEZVOUS_TARGETS.get(num_ranks)
    return [Line(event, OURS, times, most_median=target, detail=detail)]


@contextmanager
def coordinator(
    run: Run, place: Path, num_ranks: int, elastic: schema.ElasticConfig, names: Mapping[str, int]
) -> Iterator[Child]:
    """The coordinator of a job in `place/job` without a launcher, with some slots of each host."""
    job_dir = place / "job"
    job_dir.mkdir()
    ring = {"launch": schema.LaunchConfig(np=num_ranks), "elastic": elastic}
    ring["train"] = schema.TrainConfig(batch_size=num_ranks)
    ring["data_plan"] = schema.DataConfig(lanes=num_ranks)
    paths = {"output": str(place / "out"), "job_dir": str(job_dir)}
    config = schema.JobConfig(task="train", data="none", model_def="none", **paths, **ring)
    resolved.dump(config, job_dir / "config.yaml")
    (job_dir / "secret").write_bytes(secrets.token_bytes(32))
    hosts.write(job_dir / "hosts", dict(names))
    argv = python_command("edl_horovod.coordinator", "--job-dir", job_dir)
    with run.process(place, argv, log="coordinator.log") as child:
        address = job_dir / "coordinator.json"
        wait_for(lambda: address.exists() or None, "the coordinator", child)
        yield child
