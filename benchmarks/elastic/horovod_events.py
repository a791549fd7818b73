"""The same events under plain `horovodrun` with a discovery script."""

import os
import signal
import time
from pathlib import Path

from benchmarks.elastic import stamps
from benchmarks.elastic.settings import PLAIN, Run, python
from benchmarks.elastic.stamps import Stamp
from benchmarks.elastic.table import Line
from edl_horovod.files.whole_file import write_text
from edl_horovod.supervisor.plan import locate
from edl_horovod.supervisor.processes import Child

__all__ = ["SURVIVOR", "another_name", "horovodrun", "measure"]

SURVIVOR = "localhost"
BEFORE_SECONDS = 1.0
AFTER_SECONDS = 2.0


def measure(run: Run) -> list[Line]:
    """Let hosts come, be killed and be withdrawn.

    Args:
        run: Starts the processes.

    Raises:
        SideFailed: The job ended, or an event did not show in time.
    """
    joins, leaves, kills, redone = [], [], [], []
    place = run.place("horovodrun")
    with run.process(place, _command(place)) as child:
        job = _Job(run, place, child)
        job.wait_for_steps()
        for number in range(run.settings.num_events):
            joins.append(job.join(another_name(2 * number)))
            before = stamps.num_redone(job.survivor())
            kills.append(job.kill())
            redone.append(stamps.num_redone(job.survivor()) - before)
            joins.append(job.join(another_name(2 * number + 1)))
            leaves.append(job.leave())
    return [
        Line(event="a worker joins: survivor's stall", side=PLAIN, values=tuple(joins)),
        Line(event="kill -9 of a worker: survivor's stall", side=PLAIN, values=tuple(kills)),
        Line(
            event="completed steps redone after a kill",
            side=PLAIN,
            unit="n",
            values=tuple(float(number) for number in redone),
            detail="a commit every 10 steps",
        ),
        Line(event="planned removal: survivor's stall", side=PLAIN, values=tuple(leaves)),
    ]


def another_name(number: int) -> str:
    """A name of this machine that was not used before: Horovod bans those that failed."""
    return f"127.0.0.{'0' * number}1"


def horovodrun(place: Path, *worker: str) -> tuple[str, ...]:
    """A command of horovodrun that begins with one host, and looks into `place / "hosts"`.

    Args:
        place: Takes the discovery script.
        *worker: What it launches.
    """
    discover = place / "discover.sh"
    discover.write_text(f"#!/bin/sh\ncat {place}/hosts\n")
    discover.chmod(0o755)
    write_text(place / "hosts", f"{SURVIVOR}:1\n")
    ring = ("-np", "1", "--min-np", "1", "--max-np", "2", "--gloo", "--network-interfaces", "lo")
    return (locate("horovodrun"), *ring, "--host-discovery-script", str(discover), *worker)


def _command(place: Path) -> tuple[str, ...]:
    (place / "stamps").mkdir()
    return horovodrun(
        place, *python("benchmarks.peers.elastic_horovod", "--stamps", place / "stamps")
    )


class _Job:
    """The running job; one host stays, and another comes and goes."""

    def __init__(self, run: Run, place: Path, child: Child) -> None:
        self._run = run
        self._place = place
        self._child = child
        self._survivor_path: Path | None = None

    def wait_for_steps(self) -> None:
        """Wait until the one rank trains."""

        def path() -> Path | None:
            found = list((self._place / "stamps").glob(f"{SURVIVOR}.*"))
            return found[0] if found and len(stamps.read(found[0])) > 2 else None

        self._survivor_path = self._run.wait_for(path, "the first steps", self._child)
        time.sleep(self._run.settings.settle_seconds)

    def survivor(self) -> list[Stamp]:
        """Stamps of the rank that stays."""
        assert self._survivor_path is not None
        return stamps.read(self._survivor_path)

    def join(self, host: str) -> float:
        """A host comes; the survivor's stall."""
        return self._change(2, f"{SURVIVOR}:1\n{host}:1\n")

    def leave(self) -> float:
        """The host is withdrawn."""
        return self._change(1, f"{SURVIVOR}:1\n")

    def kill(self) -> float:
        """The host's worker dies, and the host goes."""
        others = [path for path in (self._place / "stamps").iterdir() if SURVIVOR not in path.name]
        newest = max(others, key=lambda path: path.stat().st_mtime_ns)
        since = time.monotonic()
        os.kill(int(newest.suffix[1:]), signal.SIGKILL)
        return self._stall(1, since)

    def _change(self, size: int, hosts: str) -> float:
        since = time.monotonic()
        write_text(self._place / "hosts", hosts)
        return self._stall(size, since)

    def _stall(self, size: int, since: float) -> float:
        at = self._run.wait_for(
            lambda: stamps.change_of_size(self.survivor(), size, since),
            f"a ring of {size}",
            self._child,
        )
        time.sleep(self._run.settings.settle_seconds)
        return stamps.stall(self.survivor(), max(since, at - BEFORE_SECONDS), at + AFTER_SECONDS)
