"""How long a checkpoint stops training, with one after every 100 steps.

The target: averaged over the 100 steps, less than 5 % of a step. So the time between two steps that
goes into checkpoints (whether one is due, the copy of the variables, the start of the thread) over
the time of all steps; a clock inside the real job measures it. The second line holds the speed of
the job with checkpoints against one without: that includes what the writing thread takes from
training where cores are short.
"""

from collections.abc import Callable

from benchmarks.common import (
    Comparison,
    Numbers,
    Workspace,
    compare_rates,
    interleave,
    median_of,
)

__all__ = ["measure"]

NUM_RANKS = 2
INTERVAL_STEPS = 100
QUICK_INTERVAL_STEPS = 20
MOST_SHARE = 0.05


def measure(space: Workspace) -> list[Comparison]:
    """Run the real job with checkpoints and without.

    Args:
        space: Holds the records.

    Raises:
        SideFailed: One of them failed.
    """
    settings = space.settings
    interval = INTERVAL_STEPS if settings.name == "full" else QUICK_INTERVAL_STEPS
    sides: dict[str, Callable[[], Numbers]] = {
        "with checkpoints": lambda: space.run_job(
            NUM_RANKS, "--timed", f"--checkpoint-steps={interval}"
        ),
        "without": lambda: space.run_job(NUM_RANKS, "--timed"),
    }
    found = interleave(sides, settings.repetitions)
    saving, plain = found["with checkpoints"], found["without"]
    step = median_of(saving, "step_seconds")
    stop = interval * median_of(saving, "checkpoint_microseconds")
    megabytes = saving[0]["checkpoint_bytes"] / 1e6
    writing = median_of(saving, "write_seconds")
    return [
        Comparison(
            name=f"Checkpoint every {interval} steps, share of a step that training stops",
            values=tuple(numbers["checkpoint_share"] for numbers in saving),
            target=MOST_SHARE,
            is_share=True,
            detail=f"{stop / 1e3:.2f} ms in {interval} steps of {1e3 * step:.1f} ms; "
            f"{megabytes:.1f} MB written in {1e3 * writing:.0f} ms beside them",
        ),
        compare_rates(
            f"Checkpoint every {interval} steps, speed of the job over one without",
            [space.rate(numbers) for numbers in saving],
            [space.rate(numbers) for numbers in plain],
            target=None,
        ),
    ]
