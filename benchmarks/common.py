"""What all benchmarks share: settings, interleaved repetitions, comparisons, side processes.

A side is one process that measures one thing and writes a few numbers as JSON. The process that
compares them imports no TensorFlow, so it does not disturb what it measures.
"""

import argparse
import importlib
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from benchmarks import torch_ft
from edl_horovod.errors import EdlError
from edl_horovod.files.whole_file import write_json
from edl_horovod.supervisor.plan import Command, locate, thread_variables
from edl_horovod.supervisor.processes import Child, end_all

__all__ = [
    "FULL",
    "QUICK",
    "Comparison",
    "Settings",
    "SideFailed",
    "StepClock",
    "Workspace",
    "compare_rates",
    "data_with",
    "interleave",
    "median_of",
    "side_parser",
    "spec_of",
    "write_numbers",
]

ROOT = Path(__file__).resolve().parent.parent
MODELS = Path(__file__).resolve().parent / "models"
RECORDIO_PATTERN = "*.recordio"
TFRECORD_PATTERN = "*.tfrecord"
NUMBERS_FILE = "numbers.json"
WARMUP_VARIABLE = "BENCHMARK_WARMUP_STEPS"
COST_FOLDER_VARIABLE = "BENCHMARK_COST_FOLDER"
FOLDER_VARIABLE = "BENCHMARK_FOLDER"
"""Folder of the stamps of `benchmarks.ours.stamping_worker`."""
FRAMEWORK_VARIABLE = "BENCHMARK_FRAMEWORK"
"""The framework of its job."""

Numbers = dict[str, Any]
SideT = TypeVar("SideT")


class SideFailed(EdlError):
    """A side process failed or took too long; the message holds the end of its log."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How long everything runs."""

    name: str
    repetitions: int
    num_records: int
    """Records in the files; a multiple of the batch size, so that all steps are whole."""
    num_generator_records: int
    """Records that the slow one-record-a-call side reads in a pass."""
    num_pictures: int
    """PNG files to prepare."""
    warmup_steps: int
    """Steps before the clock starts."""
    timed_steps: int
    batch_size: int = 128
    """The global batch."""
    timeout_seconds: float = 300.0
    """Longest life of one side process."""

    @property
    def total_steps(self) -> int:
        """Steps of a training side, warm-up included."""
        return self.warmup_steps + self.timed_steps


FULL = Settings(
    name="full",
    repetitions=5,
    num_records=960 * 128,  # Half as much again as a reader's cache holds.
    num_generator_records=80 * 128,
    num_pictures=4000,
    warmup_steps=200,
    timed_steps=1200,
)
QUICK = Settings(
    name="quick",
    repetitions=2,
    num_records=64 * 128,
    num_generator_records=16 * 128,
    num_pictures=1000,
    warmup_steps=40,
    timed_steps=160,
)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One line of the report."""

    name: str
    values: tuple[float, ...]
    """One of each repetition: our speed over the other side's, or a share of the step."""
    target: float | None
    """None where there is no target and the line is for information."""
    is_share: bool = False
    """The values are shares of a step, to be at most the target; else ratios, at least it."""
    is_seconds: bool = False
    """The values are seconds, to be at most the target."""
    detail: str = ""
    """The absolute numbers behind the values, for people."""

    @property
    def median(self) -> float:
        """The value that counts."""
        return statistics.median(self.values)

    @property
    def is_reached(self) -> bool | None:
        """Whether the median keeps the target; None where there is none."""
        if self.target is None:
            return None
        if self.is_share or self.is_seconds:
            return self.median <= self.target
        return self.median >= self.target


def interleave(
    sides: Mapping[str, Callable[[], SideT]], repetitions: int
) -> dict[str, list[SideT]]:
    """Run all sides once a repetition, in turn, so that noise and drift hit all of them.

    Args:
        sides: What to run, by name. Every second repetition goes through them backwards.
        repetitions: How often.
    """
    found: dict[str, list[SideT]] = {name: [] for name in sides}
    for repetition in range(repetitions):
        names = list(sides) if repetition % 2 == 0 else list(sides)[::-1]
        for name in names:
            found[name].append(sides[name]())
            print(f"[{repetition + 1}/{repetitions}] {name}: {found[name][-1]}", file=sys.stderr)
    return found


def compare_rates(
    name: str, ours: Sequence[float], theirs: Sequence[float], *, target: float | None
) -> Comparison:
    """Our records per second over the other side's of the same repetition.

    Args:
        name: Of the line in the report.
        ours: Records per second of our side, one of each repetition.
        theirs: The other side's.
        target: The least ratio; None where there is no target.
    """
    values = tuple(one / other for one, other in zip(ours, theirs, strict=True))
    detail = f"{statistics.median(ours):,.0f} / {statistics.median(theirs):,.0f} records/s"
    return Comparison(name=name, values=values, target=target, detail=detail)


def median_of(side: Sequence[Numbers], name: str) -> float:
    """The median of one number over a side's repetitions.

    Args:
        side: What its processes measured.
        name: Of the number.
    """
    return float(statistics.median(numbers[name] for numbers in side))


class Workspace:
    """A temporary folder and the side processes that run in it."""

    def __init__(self, folder: Path, settings: Settings) -> None:
        """Take an empty folder that somebody else removes.

        Args:
            folder: Takes records, logs and jobs.
            settings: Of the whole run.
        """
        self.settings = settings
        self.folder = folder
        self.data = folder / "data"
        self._num_sides = 0

    def subfolder(self, name: str, *, step_share: float) -> "Workspace":
        """A workspace in a folder of this one, with a share of its numbers of steps."""
        folder = self.folder / name
        folder.mkdir()
        steps = (self.settings.warmup_steps, self.settings.timed_steps)
        warmup, timed = (round(step_share * each) for each in steps)
        return Workspace(folder, replace(self.settings, warmup_steps=warmup, timed_steps=timed))

    def run_side(
        self,
        module: str,
        *arguments: str,
        num_ranks: int = 1,
        under_horovodrun: bool = False,
        packages: Path | None = None,
    ) -> Numbers:
        """Run one side to its end and return what it measured.

        Args:
            module: Run by `python -m`; it takes `side_parser`'s arguments.
            *arguments: Further ones.
            num_ranks: The machine's cores are shared among so many ranks.
            under_horovodrun: Start `num_ranks` of it by a static `horovodrun` with Gloo.
            packages: Folder whose packages come before those of this environment.

        Raises:
            SideFailed: It ended with an error, or not in time.
        """
        place = self._next_place(module)
        launcher: tuple[str, ...] = ()
        if under_horovodrun:
            launcher = _horovodrun(num_ranks)
        argv = (*launcher, sys.executable, "-m", module, *self._shared(place), *arguments)
        self._run(argv, place, module, num_ranks, packages)
        numbers: Numbers = json.loads((place / NUMBERS_FILE).read_text())
        return numbers

    def run_under_horovodrun(self, module: str, *arguments: str, num_ranks: int) -> None:
        """Run ranks of a module that hands back no numbers, by a static `horovodrun` with Gloo.

        Args:
            module: Run by `python -m`.
            *arguments: The module's.
            num_ranks: The machine's cores are shared among so many ranks.

        Raises:
            SideFailed: It ended with an error, or not in time.
        """
        argv = (*_horovodrun(num_ranks), sys.executable, "-m", module, *arguments)
        self._run(argv, self._next_place(module), module, num_ranks)

    def run_under_torchrun(
        self, python: Path, module: str, *arguments: str, num_ranks: int
    ) -> None:
        """Run one side with another interpreter, which has torch, to its end.

        Args:
            python: The interpreter.
            module: Run by `torchrun` as each rank.
            *arguments: The module's.
            num_ranks: The machine's cores are shared among so many ranks.

        Raises:
            SideFailed: It ended with an error, or not in time.
        """
        launcher = (str(python), "-m", "torch.distributed.run", "--standalone")
        argv = (*launcher, f"--nproc-per-node={num_ranks}", "-m", module, *arguments)
        self._run(argv, self._next_place(module), module, num_ranks)

    def run_under_torchft(self, python: Path, *arguments: str, num_ranks: int) -> None:
        """Run `benchmarks.peers.torch_ft` to its end, with as many replicas and their lighthouse.

        Args:
            python: An interpreter that has torchft.
            *arguments: Of each replica.
            num_ranks: Replicas, which share the machine's cores.

        Raises:
            SideFailed: One ended with an error, or not in time.
        """
        place = self._next_place(torch_ft.REPLICA)
        lighthouse, url = torch_ft.lighthouse(python, num_replicas=num_ranks)
        flags = (f"--replicas={num_ranks}", *arguments)
        commands = [torch_ft.replica(python, url, str(n), *flags) for n in range(num_ranks)]
        environment = {**_environment(num_ranks, None), **torch_ft.VARIABLES}

        def start(argv: tuple[str, ...], name: str) -> Child:
            return Child(Command(argv=argv, environment=environment), place / name)

        children = [start(lighthouse, "lighthouse")]
        try:
            children += [start(argv, f"log.{n}") for n, argv in enumerate(commands)]
            until = time.monotonic() + self.settings.timeout_seconds
            for child in children[1:]:
                if not child.wait(max(0.0, until - time.monotonic())) or child.exit_code != 0:
                    raise SideFailed(f"{torch_ft.REPLICA} failed. Its log ends:\n{child.tail(40)}")
        finally:
            end_all(children)

    def write_arrays(self, num_records: int, shape: Sequence[int]) -> None:
        """Write what the sides with PyTorch train on into this workspace's folder of data.

        Args:
            num_records: Pictures.
            shape: Of a picture.

        Raises:
            SideFailed: They could not be written.
        """
        sizes = ("--shape", *map(str, shape))
        self.run_side("benchmarks.arrays", f"--num-records={num_records}", *sizes)

    def run_job(self, num_ranks: int, *arguments: str) -> Numbers:
        """Run the real job to its end and return what it measured.

        Args:
            num_ranks: Of its ring.
            *arguments: Further ones of `benchmarks.ours.job`.

        Raises:
            SideFailed: It ended with an error, or not in time.
        """
        return self.run_side(
            "benchmarks.ours.job", f"--np={num_ranks}", *arguments, num_ranks=num_ranks
        )

    def rate(self, numbers: Numbers) -> float:
        """Records per second of a side that measured its steps."""
        return float(self.settings.batch_size / numbers["step_seconds"])

    def _next_place(self, module: str) -> Path:
        self._num_sides += 1
        place = self.folder / f"{self._num_sides:03d}-{module.rpartition('.')[2]}"
        place.mkdir()
        return place

    def _run(
        self,
        argv: Sequence[str],
        place: Path,
        module: str,
        num_ranks: int,
        packages: Path | None = None,
    ) -> None:
        environment = _environment(num_ranks, packages)
        child = Child(Command(argv=tuple(argv), environment=environment), place / "log")
        try:
            is_over = child.wait(self.settings.timeout_seconds)
            code = child.exit_code
        finally:
            end_all([child])
        if not is_over or code != 0:
            ending = f"ended with {code}" if is_over else "took too long"
            raise SideFailed(f"{module} {ending}. Its log ends:\n{child.tail(40)}")

    def _shared(self, place: Path) -> tuple[str, ...]:
        numbers = {
            "batch-size": self.settings.batch_size,
            "warmup-steps": self.settings.warmup_steps,
            "total-steps": self.settings.total_steps,
        }
        flags = [part for name, n in numbers.items() for part in (f"--{name}", str(n))]
        return ("--data", str(self.data), "--place", str(place), *flags)


def _horovodrun(num_ranks: int) -> tuple[str, ...]:
    return (locate("horovodrun"), "-np", str(num_ranks), "--gloo")


def _environment(num_ranks: int, packages: Path | None) -> dict[str, str]:
    threads = max(1, len(os.sched_getaffinity(0)) // num_ranks)
    folders = (packages, ROOT, os.environ.get("PYTHONPATH"))
    path = os.pathsep.join(str(folder) for folder in folders if folder)
    return {
        # As a job gives them to its ranks, so that all sides have the same.
        **thread_variables(threads),
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "HOROVOD_LOG_LEVEL": "error",
        "PYTHONPATH": path,
    }


def side_parser(description: str) -> argparse.ArgumentParser:
    """The arguments that every side takes.

    Args:
        description: Of the side.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--data", type=Path, required=True, help="folder of the records")
    parser.add_argument("--place", type=Path, required=True, help="folder of this side's files")
    parser.add_argument("--batch-size", type=int, required=True, help="the global batch, records")
    parser.add_argument("--warmup-steps", type=int, required=True, help="steps that do not count")
    parser.add_argument("--total-steps", type=int, required=True, help="warm-up included")
    return parser


def spec_of(name: str) -> Any:
    """One of the specs of `benchmarks/models`, made.

    Args:
        name: Its module and its class, as in `cnn.CnnSpec`.
    """
    module, _, symbol = name.partition(".")
    return getattr(importlib.import_module(f"benchmarks.models.{module}"), symbol)()


def write_numbers(place: Path, numbers: Numbers) -> None:
    """Hand a side's result to whoever started it."""
    write_json(place / NUMBERS_FILE, numbers)


def data_with(codec: str, data: Path) -> Path:
    """The folder of the files that are compressed otherwise than those which all sides read.

    Args:
        codec: Its name in small letters.
        data: The folder that all sides are given.
    """
    return data.with_name(f"{data.name}-{codec}")


class StepClock:
    """Wall time of a step, the warm-up left out."""

    def __init__(self, warmup_steps: int) -> None:
        """Wait for the warm-up's end.

        Args:
            warmup_steps: Steps that do not count.
        """
        self._warmup_steps = warmup_steps
        self._num_steps = 0
        self._began = self._ended = 0.0

    def tick(self) -> None:
        """One more step is done."""
        self._num_steps += 1
        self._ended = time.perf_counter()
        if self._num_steps == self._warmup_steps:
            self._began = self._ended

    @property
    def num_timed_steps(self) -> int:
        """Steps since the warm-up; negative during it."""
        return self._num_steps - self._warmup_steps

    @property
    def step_seconds(self) -> float:
        """Mean over the steps after the warm-up."""
        assert self.num_timed_steps > 0, (self._num_steps, self._warmup_steps)
        return (self._ended - self._began) / self.num_timed_steps
