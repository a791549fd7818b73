"""Starts the processes of a benchmark, waits for them, and repeats the sides of a comparison.

The process that compares imports no TensorFlow, so it does not disturb what it measures.
"""

import dataclasses
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.side import ARGUMENTS_FILE, NUMBERS_FILE, Numbers, Work
from edl_horovod.errors import EdlError
from edl_horovod.supervisor.plan import Command, locate, thread_variables
from edl_horovod.supervisor.processes import Child, end_all

ROOT = Path(__file__).resolve().parents[1]
MODELS = ROOT / "benchmarks" / "models"
MISSING = Path("none")
START_SECONDS = 90.0
"""Longest wait for a process to get going, or for an event to show; hours on no machine."""
SIDE_SECONDS = 300.0
"""Longest life of a side."""
MAX_REASON = 300

OURS = "edl_horovod"
PLAIN = "plain Horovod"
RELEASED = "Horovod as released"
TORCH = "TorchElastic"
TORCHFT = "torchft"

ResultT = TypeVar("ResultT")


class SideFailed(EdlError):
    """A side process failed or took too long; the message holds the end of its log."""


@dataclass(frozen=True, kw_only=True)
class Failure:
    """The result of a side that failed."""

    reason: str


def interleave(
    sides: Mapping[str, Callable[[], ResultT]], repetitions: int
) -> dict[str, list[ResultT]]:
    """Run all sides once a repetition, every second time backwards, so that drift hits all."""
    results: dict[str, list[ResultT]] = {name: [] for name in sides}
    for repetition in range(repetitions):
        names = list(sides) if repetition % 2 == 0 else list(sides)[::-1]
        for name in names:
            results[name].append(sides[name]())
            print(f"[{repetition + 1}/{repetitions}] {name}: {results[name][-1]}", file=sys.stderr)
    return results


def guarded(side: Callable[..., ResultT], *arguments: Any) -> Callable[[], ResultT | Failure]:
    """A side whose failure is a result, too, because the others are still worth their minutes."""

    def call() -> ResultT | Failure:
        try:
            return side(*arguments)
        except SideFailed as error:
            return Failure(reason=reason_of(error))

    return call


def reason_of(error: Exception) -> str:
    """The failure in one line: what failed, and the last line that it printed."""
    lines = [" ".join(line.split()) for line in str(error).splitlines() if line.strip()]
    text = lines[0] if len(lines) == 1 else f"{lines[0]} {lines[-1]}"
    return text.replace("|", "/")[:MAX_REASON]


def horovodrun(num_ranks: int) -> tuple[str, ...]:
    """The launcher of ranks under a static `horovodrun` with Gloo."""
    return (locate("horovodrun"), "-np", str(num_ranks), "--gloo", sys.executable)


def torchrun(python: Path, num_ranks: int) -> tuple[str, ...]:
    """The launcher of ranks under a static `torchrun` of another interpreter."""
    launcher = (str(python), "-m", "torch.distributed.run", "--standalone")
    return (*launcher, f"--nproc-per-node={num_ranks}")


def python_command(module: str, *arguments: object) -> tuple[str, ...]:
    """The command that runs a module with this interpreter."""
    return (sys.executable, "-m", module, *map(str, arguments))


def side_command(
    place: Path,
    function: str,
    work: Work,
    launcher: Sequence[str] = (sys.executable,),
    **arguments: Any,
) -> tuple[str, ...]:
    """The command that runs a side in a folder, which takes its arguments."""
    text = json.dumps({"work": dataclasses.asdict(work), **arguments}, default=str)
    (place / ARGUMENTS_FILE).write_text(text)
    return (*launcher, "-m", "benchmarks.side", function, str(place))


class Run:
    """One run of a page: its lengths, its data, and a folder for each process that it starts."""

    def __init__(
        self,
        folder: Path,
        *,
        is_quick: bool = False,
        torch_python: Path = MISSING,
        released_horovod: Path = MISSING,
        pictures: Path | None = None,
    ) -> None:
        """Take an empty folder that the caller removes; what the peers need may be missing."""
        self.is_quick = is_quick
        self.torch_python = torch_python
        self.released_horovod = released_horovod
        self.pictures = pictures
        self.folder = folder
        self._num_places = 0

    def amount(self, full: ResultT, quick: ResultT) -> ResultT:
        """How much of something this run does."""
        return quick if self.is_quick else full

    def place(self, name: str) -> Path:
        """A new folder."""
        self._num_places += 1
        place = self.folder / f"{self._num_places:03d}-{name}"
        place.mkdir()
        return place

    def data(self, writer: str, **arguments: Any) -> Path:
        """The folder that a function of `benchmarks.data` fills when it is first asked for."""
        values = "-".join(str(value) for value in arguments.values())
        folder = self.folder / f"{writer}-{values}"
        if not folder.exists():
            self.side(f"data.{writer}", Work(data=folder), **arguments)
        return folder

    @contextmanager
    def process(
        self,
        place: Path,
        argv: Sequence[str],
        *,
        log: str = "log",
        threads: int = 1,
        packages: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> Iterator[Child]:
        """A process that ends with the block, and with it all that it started.

        Packages of the folder `packages` come before those of this environment.
        """
        folders = (packages, ROOT, os.environ.get("PYTHONPATH"))
        variables = {
            # As a job gives them to its ranks, so that all sides have the same.
            **thread_variables(threads),
            "TF_CPP_MIN_LOG_LEVEL": "2",
            "HOROVOD_LOG_LEVEL": "error",
            "PYTHONPATH": os.pathsep.join(str(folder) for folder in folders if folder),
            "PYTHONUNBUFFERED": "1",
            **(environment or {}),
        }
        child = Child(Command(argv=tuple(argv), environment=variables), place / log)
        try:
            yield child
        finally:
            end_all([child])

    def side(
        self,
        function: str,
        work: Work,
        *,
        launcher: Sequence[str] = (sys.executable,),
        num_ranks: int = 1,
        seconds: float = SIDE_SECONDS,
        packages: Path | None = None,
        **arguments: Any,
    ) -> Numbers:
        """Run a side, `MODULE.FUNCTION` of `benchmarks`, to its end and return what it measured.

        Its ranks, which the launcher starts, share the machine's cores. Packages of a folder come
        before those of this environment; further arguments are the function's.

        Raises:
            SideFailed: It ended with an error, or not in time.
        """
        place = self.place(function)
        argv = side_command(place, function, work, launcher, **arguments)
        threads = max(1, len(os.sched_getaffinity(0)) // num_ranks)
        with self.process(place, argv, threads=threads, packages=packages) as child:
            wait_for_end(child, function, seconds)
        numbers = place / NUMBERS_FILE
        return json.loads(numbers.read_text()) if numbers.exists() else {}

    def job(self, work: Work, num_ranks: int, **arguments: Any) -> Numbers:
        """Run the real job to its end; `ours.job.train` takes the arguments."""
        return self.side("ours.job.train", work, num_ranks=num_ranks, np=num_ranks, **arguments)


def values_of(results: Sequence[Numbers | Failure], name: str) -> list[Any]:
    """A number of each repetition; failures stay what they are."""
    return [result if isinstance(result, Failure) else result[name] for result in results]


def rate(work: Work, numbers: Numbers) -> float:
    """Records per second of a side that measured its steps."""
    return float(work.batch_size / numbers["step_seconds"])


def wait_for_end(child: Child, name: str, seconds: float) -> None:
    """Wait until a process has ended well; SideFailed if it does not in time."""
    ending = f"ended with {child.exit_code}" if child.wait(seconds) else "took too long"
    if child.exit_code != 0:
        raise SideFailed(f"{name} {ending}. Its log ends:\n{child.tail(40)}")


def wait_for(
    look: Callable[[], ResultT | None],
    description: str,
    *children: Child,
    seconds: float = START_SECONDS,
) -> ResultT:
    """Look again and again until the result is not None, and return it.

    Raises:
        SideFailed: It did not come in time, or a process ended that must go on running.
    """
    deadline = time.monotonic() + seconds
    while (result := look()) is None:
        ended = [child for child in children if child.exit_code is not None]
        if ended or time.monotonic() > deadline:
            why = f"ended with {ended[0].exit_code}" if ended else f"not within {seconds:.0f} s"
            tails = "\n".join(f"{c.log_path} ends:\n{c.tail(25)}" for c in ended or children)
            raise SideFailed(f"waited for {description}: {why}.\n{tails}")
        time.sleep(0.03)
    return result
