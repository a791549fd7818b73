"""The coordinator and its rendezvous under hundreds of simulated ranks."""

import json
import secrets
import time

from benchmarks.common import NUMBERS_FILE, SideFailed
from benchmarks.elastic.settings import OURS, Run, python
from benchmarks.elastic.table import Line
from edl_horovod.config import resolved
from edl_horovod.config.schema import (
    DataConfig,
    ElasticConfig,
    JobConfig,
    LaunchConfig,
    TrainConfig,
)
from edl_horovod.job import hosts

__all__ = ["measure"]

TARGETS = {256: 3.0}
SLOTS = 8
"""Ranks of a host."""


def measure(run: Run) -> list[Line]:
    """Form the ring again and again, each time under a new coordinator, until the time is over.

    Args:
        run: Starts the processes.

    Raises:
        SideFailed: A process ended with an error.
    """
    settings, num_requests = run.settings, 0
    found: list[float] = []
    until = time.monotonic() + settings.simulated_budget_seconds
    is_in_time = True
    while is_in_time and len(found) < settings.num_events:
        seconds, num_requests = _form_once(run)
        is_in_time = seconds is not None and time.monotonic() < until
        found += [] if seconds is None else [seconds]
    num_hosts = settings.num_simulated_ranks // SLOTS
    detail = f"{num_hosts} hosts of {SLOTS}; {num_requests:,} requests of Gloo's clients"
    if not found:
        detail = f"not within {settings.simulated_budget_seconds:.0f} s: {detail} by then"
    return [
        Line(
            event=f"rendezvous of {settings.num_simulated_ranks} simulated ranks",
            side=OURS,
            values=tuple(found),
            most_median=TARGETS.get(settings.num_simulated_ranks),
            detail=detail,
        )
    ]


def _form_once(run: Run) -> tuple[float | None, int]:
    num_ranks, bound = run.settings.num_simulated_ranks, run.settings.simulated_budget_seconds
    place = run.place("simulated")
    job_dir = place / "job"
    job_dir.mkdir()
    config = JobConfig(
        task="train",
        data="none",
        output=str(place / "out"),
        job_dir=str(job_dir),
        model_def="none",
        train=TrainConfig(batch_size=num_ranks),
        data_plan=DataConfig(lanes=num_ranks),
        launch=LaunchConfig(np=num_ranks),
        elastic=ElasticConfig(min_np=num_ranks, forming_seconds=2 * bound),
    )
    resolved.dump(config, job_dir / "config.yaml")
    (job_dir / "secret").write_bytes(secrets.token_bytes(32))
    num_hosts = num_ranks // SLOTS
    hosts.write(job_dir / "hosts", {f"host-{number}": SLOTS for number in range(num_hosts)})
    coordinator = python("edl_horovod.coordinator", "--job-dir", job_dir)
    arguments = ["--place", place, "--job-dir", job_dir, "--num-ranks", num_ranks]
    arguments += ["--slots", SLOTS, "--seconds", bound]
    with run.process(place, coordinator, name="log.coordinator") as server:
        run.wait_for(lambda: (job_dir / "coordinator.json").exists() or None, "it", server)
        with run.process(place, python("benchmarks.ours.simulated_ranks", *arguments)) as child:
            if not child.wait(bound + 20) or child.exit_code != 0:
                raise SideFailed(f"simulated ranks failed. Their log ends:\n{child.tail()}")
    found = json.loads((place / NUMBERS_FILE).read_text())
    return found["seconds"], int(found["num_requests"])
