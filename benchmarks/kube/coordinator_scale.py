"""The coordinator with many connected workers: from a change until each has its place."""

import json
import secrets
from collections.abc import Callable

import psutil

from benchmarks.common import NUMBERS_FILE, SideFailed
from benchmarks.elastic.settings import OURS, Run, python
from benchmarks.elastic.table import Line
from benchmarks.kube.settings import Scale
from edl_horovod.config import resolved
from edl_horovod.config.schema import (
    DataConfig,
    ElasticConfig,
    JobConfig,
    LaunchConfig,
    TrainConfig,
)
from edl_horovod.job import hosts
from edl_horovod.supervisor.processes import Child

__all__ = ["measure"]

TARGET_SECONDS = 1.0
LONGEST_SECONDS = 120.0
EVENTS = {
    "lost": "a worker is lost",
    "back": "a warm worker comes back",
    "less": "a host is withdrawn",
    "more": "a host is added, its worker is warm",
}


def measure(run: Run, scale: Scale) -> list[Line]:
    """Time all kinds of changes under one coordinator.

    Args:
        run: Starts the processes.
        scale: How many of everything.

    Raises:
        SideFailed: A process ended with an error.
    """
    found, cpu_seconds, mebibytes = _changes(run, scale)
    size = scale.num_workers
    target = TARGET_SECONDS if size >= 1000 else None
    num_changes = sum(len(values) for values in found.values())
    lines = [
        Line(
            event=f"{what}: the last of {size:,} workers has its place",
            side=OURS,
            values=tuple(found[kind]),
            most_median=target,
            detail="looks for a changed hosts file every 0.1 s" if kind in ("less", "more") else "",
        )
        for kind, what in EVENTS.items()
    ]
    return [
        *lines,
        Line(
            event=f"the first {size:,} workers connect and have their places",
            side=OURS,
            values=tuple(found["start"]),
        ),
        Line(
            event=f"{size:,} workers: the coordinator's CPU for one change",
            side=OURS,
            values=(cpu_seconds / num_changes,),
            detail=f"mean of {num_changes}, its start and its pings between included; "
            f"{mebibytes:.0f} MiB of memory",
        ),
    ]


def _changes(run: Run, scale: Scale) -> tuple[dict[str, list[float]], float, float]:
    size = scale.num_workers
    place = run.place("connected")
    job_dir = place / "job"
    job_dir.mkdir()
    config = JobConfig(
        task="train",
        data="none",
        output=str(place / "out"),
        job_dir=str(job_dir),
        model_def="none",
        train=TrainConfig(batch_size=size),
        data_plan=DataConfig(lanes=size),
        launch=LaunchConfig(np=size),
        elastic=ElasticConfig(min_np=1, wait_seconds=LONGEST_SECONDS),
    )
    resolved.dump(config, job_dir / "config.yaml")
    (job_dir / "secret").write_bytes(secrets.token_bytes(32))
    hosts.write(job_dir / "hosts", {})
    coordinator = python("edl_horovod.coordinator", "--job-dir", job_dir)
    arguments = ["--place", place, "--job-dir", job_dir, "--num-workers", size]
    arguments += ["--num-events", scale.num_events, "--seconds", LONGEST_SECONDS]
    with run.process(place, coordinator, name="log.coordinator") as server:
        run.wait_for(lambda: (job_dir / "coordinator.json").exists() or None, "it", server)
        process = psutil.Process(server.pid)
        with run.process(place, python("benchmarks.ours.connected_workers", *arguments)) as child:
            is_over = child.wait(scale.num_events * 10 + 2 * LONGEST_SECONDS)
            _check(child, lambda: is_over and child.exit_code == 0)
        times, memory = process.cpu_times(), process.memory_info()
    found = json.loads((place / NUMBERS_FILE).read_text())
    return found, times.user + times.system, memory.rss / 2**20


def _check(child: Child, is_well: Callable[[], bool]) -> None:
    if not is_well():
        raise SideFailed(f"connected workers failed. Their log ends:\n{child.tail()}")
