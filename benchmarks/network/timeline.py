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
from pathlib import Path
from typing import Any

from benchmarks.network import speed
from benchmarks.network.speed import SLOWEST, NetworkRun, watched
from benchmarks.report import Results, markdown_table
from benchmarks.run import OURS, PLAIN, Failure, guarded
from benchmarks.stamps import TIMELINE_FILE

MICROSECONDS = 1e6
NEGOTIATION, REDUCTION = "NEGOTIATE_", "GLOO_ALLREDUCE"
NUM_STEPS = 6
HEADERS = ("Model, rate", "Side", "Tensors", "Operations", "First begins", "Last ends")
HEADERS += ("Operations take", "Step", "Cycle")


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """The parts of a timeline that count here; times in seconds since the epoch."""

    negotiated: Sequence[float]
    """When the negotiation of each tensor began."""
    operations: Sequence[tuple[float, float]]
    """Begin and end of each operation, fused tensors together."""
    cycles: Sequence[float]
    """When Horovod's loop looked for what there is to do."""


def read(text: str) -> Timeline:
    """Read a timeline, also one whose end is missing."""
    body = text.rstrip().rstrip(",")
    events: list[dict[str, Any]] = json.loads(body if body.endswith("]") else body + "]")
    start = "start_time_since_epoch_in_micros"
    began = next(event["args"][start] for event in events if start in event.get("args", {}))
    negotiated, phases, cycles = [], [], []
    under_way: dict[int, list[tuple[str, float]]] = {}
    for event in events:
        at = float(began + event.get("ts", 0.0)) / MICROSECONDS
        if event["ph"] == "B":
            under_way.setdefault(event["pid"], []).append((event["name"], at))
            if event["name"].startswith(NEGOTIATION):
                negotiated.append(at)
        elif event["ph"] == "E" and under_way.get(event["pid"]):
            name, since = under_way[event["pid"]].pop()
            if name == REDUCTION:
                phases.append((since, at))
        elif event.get("name") == "CYCLE_START":
            cycles.append(at)
    return Timeline(negotiated=negotiated, operations=_joined(phases), cycles=cycles)


def _joined(phases: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    joined: list[tuple[float, float]] = []
    for since, until in sorted(phases):
        if joined and since < joined[-1][1]:
            joined[-1] = (joined[-1][0], max(until, joined[-1][1]))
        else:
            joined.append((since, until))
    return joined


def operations_of_steps(timeline: Timeline, ends: Sequence[float]) -> list[dict[str, float]]:
    """What happened in each step that has an operation, by when the steps of rank 0 ended.

    Operations begin and end so many seconds after the begin of their step, and are busy together.
    """
    steps = []
    for begin, end in itertools.pairwise(ends):
        within = [span for span in timeline.operations if begin <= span[0] < end]
        if within:
            steps.append(
                {
                    "seconds": end - begin,
                    "num_tensors": sum(begin <= at < end for at in timeline.negotiated),
                    "num_operations": len(within),
                    "first_begins": within[0][0] - begin,
                    "last_ends": within[-1][1] - begin,
                    "busy_seconds": sum(until - since for since, until in within),
                }
            )
    return steps


def measure(run: NetworkRun) -> Results:
    """Write and read a timeline of both sides, at the slowest rate."""
    rows = []
    for model in run.chosen(speed.CONV, speed.RESNET):
        options = {"timeline_step": model.warmup_steps}
        sides = {OURS: speed.ours(run, model, **options), PLAIN: speed.plain(run, model, **options)}
        for side, train in sides.items():
            total_steps = model.warmup_steps + NUM_STEPS + 1
            folder = guarded(watched, run, model, SLOWEST, train, total_steps)()
            is_failure = isinstance(folder, Failure)
            shown = (f"failed: {folder.reason}",) if is_failure else _summary(folder)
            row = (f"{model.title}, {SLOWEST.name}", side, *shown)
            rows.append(row + ("",) * (len(HEADERS) - len(row)))
    return Results(notes=[markdown_table(HEADERS, rows)])


def _summary(folder: Path) -> tuple[str, ...]:
    since_epoch = time.time() - time.monotonic()
    timeline = read((folder / TIMELINE_FILE).read_text())
    ends = [stamp.at + since_epoch for stamp in speed.first_rank(folder)]
    # The timeline begins within a step, and that step is not whole in it.
    steps = operations_of_steps(timeline, ends)[1:]

    def median(name: str) -> float:
        return statistics.median(step[name] for step in steps)

    gaps = [later - earlier for earlier, later in itertools.pairwise(timeline.cycles)]
    counts = (f"{median(name):.0f}" for name in ("num_tensors", "num_operations"))
    names = ("first_begins", "last_ends", "busy_seconds", "seconds")
    times = (f"{median(name):.3f} s" for name in names)
    return (*counts, *times, f"{1e3 * statistics.median(gaps):.1f} ms")
