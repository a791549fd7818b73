"""What the elastic parts cost a step of two ranks.

The target is held against the direct measure: a clock around those parts inside the real job. It
is exact to microseconds where the difference of two whole runs, the second line, drowns one percent
of a step in the noise of the machine.
"""

from collections.abc import Callable

from benchmarks.common import Comparison, Numbers, Workspace, interleave, median_of

__all__ = ["measure"]

NUM_RANKS = 2
MOST_SHARE = 0.01


def measure(space: Workspace) -> list[Comparison]:
    """Run the real job with clocks in it, and its step in a bare loop.

    Args:
        space: Holds the records.

    Raises:
        SideFailed: One of them failed.
    """
    sides: dict[str, Callable[[], Numbers]] = {
        "job with clocks": lambda: space.run_job(NUM_RANKS, "--timed"),
        "bare loop": lambda: space.run_side(
            "benchmarks.ours.bare_ring", num_ranks=NUM_RANKS, under_horovodrun=True
        ),
    }
    found = interleave(sides, space.settings.repetitions)
    jobs, bare = found["job with clocks"], found["bare loop"]
    step = median_of(jobs, "step_seconds")
    bare_step = median_of(bare, "step_seconds")
    elastic = median_of(jobs, "elastic_microseconds")
    return [
        Comparison(
            name="Elastic parts, share of a step (clocks in the job)",
            values=tuple(numbers["elastic_share"] for numbers in jobs),
            target=MOST_SHARE,
            is_share=True,
            detail=f"{elastic:.0f} us of {1e3 * step:.1f} ms",
        ),
        Comparison(
            name="Elastic parts, share of a step (job less bare loop)",
            values=tuple(
                1 - without["step_seconds"] / job["step_seconds"]
                for job, without in zip(jobs, bare, strict=True)
            ),
            target=None,
            is_share=True,
            detail=f"{1e3 * step:.2f} ms less {1e3 * bare_step:.2f} ms",
        ),
    ]
