"""The tables of elasticity and goodput once more, with 45 M parameters and Adam."""

import dataclasses

from benchmarks.common import SideFailed
from benchmarks.elastic import goodput, ring_events
from benchmarks.elastic.settings import OURS
from benchmarks.elastic.table import Line
from benchmarks.network.join import BATCH_SIZE, MODEL, elastic_run
from benchmarks.network.results import Found, reason_of
from benchmarks.network.settings import Run

__all__ = ["measure", "without_targets"]

NUM_EVENTS = 3
SETTLE_SECONDS = 8.0
"""For some steps before and after each event."""
GOODPUT_SECONDS = 120.0


def measure(run: Run) -> Found:
    """Drive one job through joins, kills and removals, and another for its goodput.

    Args:
        run: Holds the records.
    """
    elastic = elastic_run(run, MODEL, BATCH_SIZE)
    elastic.settings = dataclasses.replace(
        elastic.settings,
        num_events=min(NUM_EVENTS, run.settings.repetitions),
        settle_seconds=SETTLE_SECONDS,
        num_goodput_jobs=1,
        undisturbed_seconds=15.0,
        goodput_seconds=GOODPUT_SECONDS * run.settings.step_share,
    )
    lines: list[Line] = []
    for name, part in (
        ("joins, kills and removals", ring_events.measure),
        ("goodput", lambda each: goodput.measure(each)[0]),
    ):
        try:
            # The targets are those of 0.7 M parameters; here they are for information.
            lines += [without_targets(line) for line in part(elastic)]
        except (SideFailed, ValueError) as error:
            lines.append(Line(event=name, side=OURS, detail=reason_of(error)))
    return Found(lines=lines)


def without_targets(line: Line) -> Line:
    """The line for information alone."""
    return dataclasses.replace(line, most=None, most_median=None, least_median=None)
