"""What commit and membership check cost a step, by clocks inside the real job."""

import dataclasses

from benchmarks import common
from benchmarks.common import Workspace
from benchmarks.elastic.settings import OURS, Run
from benchmarks.elastic.table import Line

__all__ = ["measure"]

WARMUP_STEPS = 50
MOST_PERCENT = 1.0
MOST_RUNS = 3
"""Each is a mean over many steps."""
NUM_RANKS = 2


def measure(run: Run) -> list[Line]:
    """Run the timed job several times.

    Args:
        run: Holds the records.

    Raises:
        SideFailed: A job failed.
    """
    settings = dataclasses.replace(
        common.QUICK, warmup_steps=WARMUP_STEPS, timed_steps=run.settings.cost_steps
    )
    space = Workspace(run.place("cost"), settings)
    space.data = run.data
    found = [
        space.run_side("benchmarks.ours.job", f"--np={NUM_RANKS}", "--timed", num_ranks=NUM_RANKS)
        for _ in range(min(run.settings.num_events, MOST_RUNS))
    ]
    microseconds = sorted(numbers["elastic_microseconds"] for numbers in found)
    steps = sorted(1e3 * numbers["step_seconds"] for numbers in found)
    middle = len(found) // 2
    return [
        Line(
            event="commit, membership check and activity markers, of a step",
            side=OURS,
            unit="%",
            values=tuple(100 * numbers["elastic_share"] for numbers in found),
            most_median=MOST_PERCENT,
            detail=f"{microseconds[middle]:.0f} us of {steps[middle]:.1f} ms, on 2 ranks",
        )
    ]
