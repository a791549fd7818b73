"""A job of ours as its driver sees it: hosts file, events, the stamps of each worker."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.elastic import stamps
from benchmarks.elastic.settings import Run, python
from benchmarks.elastic.stamps import Stamp
from edl_horovod.job import hosts
from edl_horovod.job.events import Recorded, follow
from edl_horovod.supervisor.plan import LOCAL_HOST
from edl_horovod.supervisor.processes import Child

__all__ = ["DrivenJob", "driven_job"]


class DrivenJob:
    """One running job."""

    def __init__(self, run: Run, job_dir: Path, child: Child) -> None:
        """Watch it.

        Args:
            run: Waits.
            job_dir: Of the job.
            child: Its launcher.
        """
        self.job_dir = job_dir
        self.child = child
        self._run = run
        self._new_events = follow(job_dir / "events.jsonl")
        self._events: list[Recorded] = []

    def events(self, kind: str) -> list[Recorded]:
        """All events of a kind until now."""
        self._events += next(self._new_events)
        return [recorded for recorded in self._events if recorded.event.kind == kind]

    def want(self, slots: int) -> None:
        """Change what host discovery finds."""
        hosts.write(self.job_dir / "hosts", {LOCAL_HOST: slots})

    def generation(self) -> int:
        """The last one."""
        return max((recorded.event.generation for recorded in self.events("generation")), default=0)

    def members(self) -> list[int]:
        """Slots of the ring now."""
        formed = [recorded for recorded in self.events("generation") if recorded.event.is_formed]
        return [int(label.rpartition(":")[2]) for label in formed[-1].event.members]

    def num_warm(self) -> int:
        """How often a worker has become warm."""
        return sum(recorded.event.state == "warm" for recorded in self.events("worker"))

    def wait_for_ring(self, size: int, *, after: int) -> None:
        """Wait until a ring of that size was formed, newer than a generation."""
        self.wait_for(
            lambda: any(
                recorded.event.is_formed
                and recorded.event.size == size
                and recorded.event.generation > after
                for recorded in self.events("generation")
            ),
            f"a ring of {size} after generation {after}",
        )

    def wait_for(self, is_there: Any, what: str, seconds: float = 90.0) -> None:
        """Wait until a condition holds."""
        self._run.wait_for(lambda: is_there() or None, what, self.child, seconds=seconds)

    def pid(self, slot: int) -> int:
        """Of the process that has a slot now."""
        name = f"{LOCAL_HOST}:{slot}"
        started = [
            recorded
            for recorded in self.events("worker")
            if recorded.event.worker == name and recorded.event.state == "started"
        ]
        return int(started[-1].event.message.split()[1])

    def send(self, slot: int, number: signal.Signals) -> None:
        """Send a worker a signal."""
        os.kill(self.pid(slot), number)

    def order(self, slot: int, number: signal.Signals, delay: float) -> None:
        """Have the next process of a slot do this to itself in its next forming."""
        (self.job_dir / "stamps" / f"order.{slot}").write_text(f"{int(number)} {delay}")

    def obeyed(self, slot: int) -> float | None:
        """When a worker began to obey; None if it has not. Forgets it."""
        path = self.job_dir / "stamps" / f"obeyed.{slot}"
        if not path.exists() or not path.read_text().endswith("\n"):
            return None
        at = float(path.read_text().split()[0])
        path.unlink()
        return at

    def stamps(self, slot: int) -> list[Stamp]:
        """Of the process that has a slot now."""
        return stamps.read(self.job_dir / "stamps" / f"{slot}.{self.pid(slot)}")

    def all_stamps(self) -> list[Stamp]:
        """Of all processes that ever were."""
        paths = sorted((self.job_dir / "stamps").glob("[0-9]*.[0-9]*"))
        return [stamp for path in paths for stamp in stamps.read(path)]


@contextmanager
def driven_job(
    run: Run,
    name: str,
    *,
    slots: int,
    max_ranks: int = 0,
    max_steps: int = 0,
    backoff_seconds: float | None = None,
    device_seconds: float = 0.0,
    spares: int = 0,
    stall_seconds: float | None = None,
) -> Iterator[DrivenJob]:
    """Start a job; it ends with the block.

    Args:
        run: Holds the records.
        name: For its folder.
        slots: To start with.
        max_ranks: Of its rings; 0 for as many as there are slots.
        max_steps: After which it ends by itself; 0 for never.
        backoff_seconds: Wait before the second restart of a slot; None for nearly none.
        device_seconds: What a step of one rank alone waits, as for a device.
        spares: Warm workers beyond the slots.
        stall_seconds: After which a rank that hangs is ended; None for the default.
    """
    place = run.place(name)
    job_dir = place / "job"
    arguments: list[object] = ["--data", run.data, "--job-dir", job_dir, "--np", slots]
    arguments += ["--max-steps", max_steps, "--spares", spares]
    arguments += ["--spec", run.spec, "--framework", run.framework, "--batch-size", run.batch_size]
    if max_ranks:
        arguments += ["--max-np", max_ranks]
    if backoff_seconds is not None:
        arguments += ["--backoff", backoff_seconds]
    if stall_seconds is not None:
        arguments += ["--stall-seconds", stall_seconds]
    argv = python("benchmarks.ours.elastic_job", *arguments)
    variables = {"BENCHMARK_DEVICE_SECONDS": str(device_seconds)}
    with run.process(place, argv, environment=variables) as child:
        yield DrivenJob(run, job_dir, child)
