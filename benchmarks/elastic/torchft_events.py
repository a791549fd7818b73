"""The same events under torchft: replicas that a lighthouse brings together."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks import torch_ft
from benchmarks.elastic import stamps
from benchmarks.elastic.ring_events import HANG
from benchmarks.elastic.settings import HANG_SECONDS, TORCHFT, Run
from benchmarks.elastic.stamps import Stamp
from benchmarks.elastic.table import Line
from benchmarks.elastic.torch_events import COMES, MISSING, STAYS
from edl_horovod.supervisor.processes import Child

__all__ = ["measure"]

SURVIVOR = f"{STAYS}0"
BEFORE_SECONDS = 1.0
AFTER_SECONDS = 1.0


def measure(run: Run) -> list[Line]:
    """Start one replica; let others come, die, go, and hang.

    Args:
        run: Starts the processes, and holds the arrays.

    Raises:
        SideFailed: A process ended, or an event did not show in time.
    """
    events = {
        name: f"{what}: survivor's stall"
        for name, what in (
            ("joins", "a worker joins"),
            ("kills", "kill -9 of a worker"),
            ("leaves", "planned removal"),
        )
    } | {"hangs": HANG}
    if not run.torch_python.exists():
        return [Line(event=event, side=TORCHFT, detail=MISSING) for event in events.values()]
    found: dict[str, list[float]] = {name: [] for name in events}
    with _training(run) as training:
        for number in range(run.settings.num_events):
            for name, order in (("kills", signal.SIGKILL), ("leaves", signal.SIGTERM)):
                with training.replica(f"{COMES}-{name}-{number}-1"):
                    found["joins"].append(training.stall_until(2))
                    found[name].append(training.stall_after(order))
        with training.replica(f"{COMES}-hangs-1"):
            training.stall_until(2)
            found["hangs"].append(training.stall_after(signal.SIGSTOP))
        num_redone = stamps.num_redone(training.survivor())
    details = {
        "leaves": "its process ends between two steps",
        "hangs": f"its operations end after {HANG_SECONDS:.0f} s",
    }
    return [
        *(
            Line(
                event=event,
                side=TORCHFT,
                values=tuple(found[name]),
                detail=details.get(name, ""),
            )
            for name, event in events.items()
        ),
        Line(
            event="completed steps lost or redone, all events",
            side=TORCHFT,
            unit="n",
            values=(float(num_redone),),
        ),
    ]


class _Training:
    """A replica that stays, and the one that comes and goes."""

    def __init__(self, run: Run, place: Path, url: str) -> None:
        self._run = run
        self._place = place
        self._url = url
        self._children: list[Child] = []

    @contextmanager
    def replica(self, name: str) -> Iterator[None]:
        flags = {
            "stamps": self._place / "stamps",
            "data": self._run.data,
            "batch-size": self._run.batch_size,
            "timeout": HANG_SECONDS,
        }
        options = ("--model=small", "--pure", *(f"--{each}={flags[each]}" for each in flags))
        argv = torch_ft.replica(self._run.torch_python, self._url, name, *options)
        with self._run.process(
            self._place, argv, name=f"log.{name}", environment=torch_ft.VARIABLES
        ) as child:
            self._children.append(child)
            yield
        self._children.remove(child)

    def survivor(self) -> list[Stamp]:
        paths = list((self._place / "stamps").glob(f"{SURVIVOR}.*"))
        return stamps.read(paths[0]) if paths else []

    def wait_for_steps(self) -> None:
        self._run.wait_for(
            lambda: len(self.survivor()) > 2 or None, "the first steps", *self._children
        )
        time.sleep(self._run.settings.settle_seconds)

    def stall_until(self, size: int) -> float:
        """Wait for the survivor's ring to have that size; how long it stood still."""
        return self._stall(size, time.monotonic())

    def stall_after(self, order: signal.Signals) -> float:
        """Send the newest replica a signal, and wait until the survivor is alone."""
        since = time.monotonic()
        paths = [p for p in (self._place / "stamps").glob(f"{COMES}*") if p.suffix[1:].isdigit()]
        newest = max(paths, key=lambda path: path.stat().st_mtime_ns)
        os.kill(int(newest.suffix[1:]), order)
        return self._stall(1, since)

    def _stall(self, size: int, since: float) -> float:
        # The others may have ended, as they were told.
        at = self._run.wait_for(
            lambda: stamps.change_of_size(self.survivor(), size, since),
            f"a ring of {size}",
            self._children[0],
        )
        time.sleep(self._run.settings.settle_seconds)
        return stamps.stall(self.survivor(), max(since, at - BEFORE_SECONDS), at + AFTER_SECONDS)


@contextmanager
def _training(run: Run) -> Iterator[_Training]:
    place = run.place("torchft")
    (place / "stamps").mkdir()
    lighthouse, url = torch_ft.lighthouse(run.torch_python, num_replicas=1)
    with run.process(place, lighthouse, name="log.lighthouse"):
        training = _Training(run, place, url)
        with training.replica(SURVIVOR):
            training.wait_for_steps()
            yield training
