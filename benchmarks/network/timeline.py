"""What Horovod does within a step, read from the timeline that it writes itself.

A timeline is a list of trace events: each tensor is a "process" whose phases begin (`B`) and end
(`E`). All tensors of a fused operation go through its phases at once, and Horovod runs one
operation after the other, so phases that overlap are one operation.
"""

import itertools
import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.elastic import stamps
from benchmarks.elastic.settings import OURS, PLAIN
from benchmarks.elastic.table import row
from benchmarks.network.phases import first_rank
from benchmarks.network.results import Failure, Found, guarded
from benchmarks.network.settings import MODELS, RATES, Model, Run
from benchmarks.network.sides import Train, ours, plain, watched
from benchmarks.watched import TIMELINE_FILE

__all__ = ["StepOperations", "Timeline", "measure", "operations_of_steps", "read"]

MICROSECONDS = 1e6
NEGOTIATION = "NEGOTIATE_"
REDUCTION = "GLOO_ALLREDUCE"
NUM_STEPS = 6
TIMELINE_MODELS = ("conv", "resnet")
HEADERS = (
    "Model, rate",
    "Side",
    "Tensors",
    "Operations",
    "First begins",
    "Last ends",
    "Operations take",
    "Step",
    "Cycle",
)


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """The parts of a timeline that count here; times in seconds since the epoch."""

    negotiated: list[float]
    """When the negotiation of a tensor began."""
    operations: list[tuple[float, float]]
    """Begin and end of each, fused tensors together."""
    cycles: list[float]
    """When Horovod's loop looked for what there is to do."""


@dataclass(frozen=True, kw_only=True)
class StepOperations:
    """What happened within one step."""

    seconds: float
    num_tensors: int
    num_operations: int
    first_begins: float
    """Seconds after the begin of the step."""
    last_ends: float
    busy_seconds: float
    """Of all operations together."""


def read(text: str) -> Timeline:
    """Read a timeline, also one whose end is missing.

    Args:
        text: The file.

    Raises:
        ValueError: It is no timeline.
    """
    body = text.rstrip().rstrip(",")
    events: list[dict[str, Any]] = json.loads(body if body.endswith("]") else body + "]")
    began = next(
        event["args"]["start_time_since_epoch_in_micros"]
        for event in events
        if "start_time_since_epoch_in_micros" in event.get("args", {})
    )

    def at(event: dict[str, Any]) -> float:
        return float(began + event["ts"]) / MICROSECONDS

    negotiated, phases, cycles = [], [], []
    under_way: dict[int, list[tuple[str, float]]] = {}
    for event in events:
        if event["ph"] == "B":
            under_way.setdefault(event["pid"], []).append((event["name"], at(event)))
            if event["name"].startswith(NEGOTIATION):
                negotiated.append(at(event))
        elif event["ph"] == "E" and under_way.get(event["pid"]):
            name, since = under_way[event["pid"]].pop()
            if name == REDUCTION:
                phases.append((since, at(event)))
        elif event.get("name") == "CYCLE_START":
            cycles.append(at(event))
    return Timeline(negotiated=negotiated, operations=_joined(phases), cycles=cycles)


def operations_of_steps(timeline: Timeline, ends: Sequence[float]) -> list[StepOperations]:
    """What happened in each step that has an operation.

    Args:
        timeline: Of rank 0.
        ends: When its steps ended, in seconds since the epoch, in order.
    """
    found = []
    for begin, end in itertools.pairwise(ends):
        within = [each for each in timeline.operations if begin <= each[0] < end]
        if within:
            found.append(
                StepOperations(
                    seconds=end - begin,
                    num_tensors=sum(begin <= at < end for at in timeline.negotiated),
                    num_operations=len(within),
                    first_begins=within[0][0] - begin,
                    last_ends=within[-1][1] - begin,
                    busy_seconds=sum(until - since for since, until in within),
                )
            )
    return found


def measure(run: Run) -> Found:
    """Write and read a timeline of both sides, at the slowest rate.

    Args:
        run: Says which models.
    """
    rows = [row(HEADERS), row(["---"] * len(HEADERS))]
    for name in TIMELINE_MODELS:
        if name not in run.models:
            continue
        model = MODELS[name]
        flag = f"--timeline-step={model.warmup_steps}"
        sides: dict[str, Train] = {OURS: ours(model, flag), PLAIN: plain(model, flag)}
        for side, train in sides.items():
            cells = guarded(partial(_cells, run, model, train))()
            shown = (f"failed: {cells.reason}",) if isinstance(cells, Failure) else cells
            missing = ("",) * (len(HEADERS) - 2 - len(shown))
            rows.append(row((f"{model.title}, {RATES[-1].name}", side, *shown, *missing)))
    return Found(lines=[], notes=["\n".join(rows)])


def _cells(run: Run, model: Model, train: Train) -> tuple[str, ...]:
    total = model.warmup_steps + NUM_STEPS + 1
    folder = watched(run, model, RATES[-1], train, total_steps=total)
    return _summary(folder, first_rank(folder))


def _summary(folder: Path, steps: Sequence[stamps.Stamp]) -> tuple[str, ...]:
    since_epoch = time.time() - time.monotonic()
    timeline = read((folder / TIMELINE_FILE).read_text())
    # The timeline begins within a step, and that step is not whole in it.
    found = operations_of_steps(timeline, [stamp.at + since_epoch for stamp in steps])[1:]

    def median(name: str) -> float:
        return statistics.median(getattr(step, name) for step in found)

    gaps = [later - one for one, later in itertools.pairwise(timeline.cycles)]
    return (
        f"{median('num_tensors'):.0f}",
        f"{median('num_operations'):.0f}",
        *(f"{median(name):.3f} s" for name in ("first_begins", "last_ends", "busy_seconds")),
        f"{median('seconds'):.3f} s",
        f"{1e3 * statistics.median(gaps):.1f} ms",
    )


def _joined(phases: list[tuple[float, float]]) -> list[tuple[float, float]]:
    joined: list[tuple[float, float]] = []
    for since, until in sorted(phases):
        if joined and since < joined[-1][1]:
            joined[-1] = (joined[-1][0], max(until, joined[-1][1]))
        else:
            joined.append((since, until))
    return joined
