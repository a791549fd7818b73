"""How long the runs are, and what all of them share."""

import copy
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from benchmarks import common
from benchmarks.common import ROOT, SideFailed, Workspace
from edl_horovod.supervisor.plan import Command, thread_variables
from edl_horovod.supervisor.processes import Child, end_all

__all__ = [
    "FULL",
    "HANG_SECONDS",
    "OURS",
    "PLAIN",
    "QUICK",
    "TORCH",
    "TORCHFT",
    "Run",
    "Settings",
]

OURS = "edl_horovod"
PLAIN = "plain Horovod"
TORCH = "TorchElastic"
TORCHFT = "torchft"

HANG_SECONDS = 10.0
"""After which the sides with PyTorch give up a member that hangs in training."""

START_SECONDS = 90.0
"""Longest wait for a process to get going, or for an event to show; hours on no machine."""

FoundT = TypeVar("FoundT")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How much of everything."""

    num_events: int
    """Of each kind."""
    settle_seconds: float
    """Of undisturbed steps between two events."""
    num_forming_ranks: tuple[int, ...]
    num_simulated_ranks: int
    simulated_budget_seconds: float
    """No further simulated forming begins after so long."""
    num_goodput_jobs: int
    goodput_seconds: float
    """Of each of them."""
    undisturbed_seconds: float
    job_steps: int
    """Steps of each of the two jobs that share three slots."""
    cost_steps: int
    """Steps of the job that measures what a commit costs."""


FULL = Settings(
    num_events=5,
    settle_seconds=1.2,
    num_forming_ranks=(8, 12),
    num_simulated_ranks=256,
    simulated_budget_seconds=45.0,
    num_goodput_jobs=3,
    goodput_seconds=120.0,
    undisturbed_seconds=10.0,
    job_steps=300,
    cost_steps=150,
)
QUICK = Settings(
    num_events=1,
    settle_seconds=1.0,
    num_forming_ranks=(4,),
    num_simulated_ranks=32,
    simulated_budget_seconds=20.0,
    num_goodput_jobs=1,
    goodput_seconds=40.0,
    undisturbed_seconds=5.0,
    job_steps=100,
    cost_steps=100,
)


class Run:
    """One run of all: settings, records, and a folder for each process that it starts."""

    def __init__(
        self,
        folder: Path,
        settings: Settings,
        *,
        data: Path,
        torch_python: Path = Path("none"),
        spec: str = "cnn.CnnSpec",
        framework: str = "keras",
        batch_size: int = 128,
    ) -> None:
        """Take an empty folder that somebody else removes.

        Args:
            folder: For logs and jobs.
            settings: How much of everything.
            data: Folder of the records, or of the arrays where the framework is PyTorch.
            torch_python: An interpreter that has torch; it need not exist.
            spec: What our jobs train, of `benchmarks/models`.
            framework: Of the spec.
            batch_size: Their global batch.
        """
        self.settings = settings
        self.data = data
        self.spec = spec
        self.framework = framework
        self.batch_size = batch_size
        self.torch_python = torch_python
        self._folder = folder
        self._num_places = 0

    def in_torch(self) -> "Run":
        """The same run of the model in PyTorch, on arrays.

        Raises:
            SideFailed: They could not be written.
        """
        run = copy.copy(self)
        run.framework, run.spec, run.data = "torch", "torch_specs.CnnSpec", self._folder / "arrays"
        if not run.data.exists():
            space = Workspace(self.place("arrays"), common.QUICK)
            space.data = run.data
            space.write_arrays(common.QUICK.num_records, (1, 28, 28))
        return run

    def place(self, name: str) -> Path:
        """A new folder."""
        self._num_places += 1
        place = self._folder / f"{self._num_places:02d}-{name}"
        place.mkdir()
        return place

    @contextmanager
    def process(
        self,
        place: Path,
        argv: tuple[str, ...],
        *,
        name: str = "log",
        environment: Mapping[str, str] | None = None,
    ) -> Iterator[Child]:
        """A process that ends with the block, with all that it started.

        Args:
            place: Takes its log.
            argv: What to run.
            name: Of its log.
            environment: Variables beyond those of all sides.
        """
        variables = {**side_environment(), **(environment or {})}
        child = Child(Command(argv=argv, environment=variables), place / name)
        try:
            yield child
        finally:
            end_all([child])

    def wait_for(
        self,
        look: Callable[[], FoundT | None],
        what: str,
        *children: Child,
        seconds: float = START_SECONDS,
    ) -> FoundT:
        """Look again and again until there is something, and return it.

        Args:
            look: Returns None while there is nothing.
            what: For the message.
            *children: Must go on running meanwhile; the message holds the ends of their logs.
            seconds: Longest wait.

        Raises:
            SideFailed: It did not come in time, or a child ended.
        """
        deadline = time.monotonic() + seconds
        while (found := look()) is None:
            ended = [child for child in children if child.exit_code is not None]
            if ended or time.monotonic() > deadline:
                why = f"ended with {ended[0].exit_code}" if ended else f"not within {seconds:.0f} s"
                tails = "\n".join(f"{c.log_path} ends:\n{c.tail(25)}" for c in ended or children)
                raise SideFailed(f"waited for {what}: {why}.\n{tails}")
            time.sleep(0.03)
        return found


def side_environment() -> dict[str, str]:
    """Variables of every process: one thread a rank, and the way to our packages."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return {
        **thread_variables(1),
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "HOROVOD_LOG_LEVEL": "error",
        "PYTHONPATH": path,
        "PYTHONUNBUFFERED": "1",
    }


def python(module: str, *arguments: object) -> tuple[str, ...]:
    """The command of one of our modules."""
    return (sys.executable, "-m", module, *(str(argument) for argument in arguments))
