"""The number of lanes of a job, and which of them each rank owns (DESIGN D3, D4).

Separate from the plan, so that the launcher and the coordinator need not import NumPy.
"""

import math

from edl_horovod.errors import ConfigError

__all__ = ["choose_growing_lanes", "choose_num_lanes", "interleaved_lanes", "lanes_of_rank"]

_DEFAULT_MAX_LANES = 32
_LANES_PER_RANK = 4
"""With one lane per rank, a ring that loses one rank would need twice as long for a step."""

_EVENLY_DIVIDED_BY = 12


def choose_num_lanes(global_batch: int, requested: int, *, num_ranks: int, most_ranks: int) -> int:
    """Choose the number of lanes of a job, a divisor of the global batch.

    The default is the largest divisor that does not exceed the maximum of 32, four lanes per rank,
    and `most_ranks`; or, if that divisor is smaller than the number of ranks, the smallest divisor
    that is not. A ring never has more ranks than the global batch has records.

    Args:
        global_batch: Records of one step over the whole ring.
        requested: The user's setting; 0 for the default.
        num_ranks: Ranks that the job starts with.
        most_ranks: The largest number of ranks later in the job; 0 if it is unlimited.

    Raises:
        ConfigError: `requested` does not divide the global batch.
    """
    divisors = _divisors(global_batch)
    if requested == 0:
        max_lanes = max(_DEFAULT_MAX_LANES, _LANES_PER_RANK * num_ranks, most_ranks)
        sufficient = [divisor for divisor in divisors if divisor >= max(num_ranks, most_ranks)] or [
            global_batch
        ]
        return max(
            (divisor for divisor in sufficient if divisor <= max_lanes), default=sufficient[0]
        )
    if global_batch % requested:
        raise ConfigError(
            "data_plan.lanes must divide train.batch_size, so that a step takes the same number of"
            " records from every lane.",
            received={"data_plan.lanes": requested, "train.batch_size": global_batch},
            hint=f"Use one of {', '.join(map(str, divisors[-12:]))}, or another batch size.",
        )
    return requested


def choose_growing_lanes(requested: int, *, num_ranks: int, most_ranks: int) -> int:
    """Choose the number of lanes of a job whose global batch grows with its ring.

    Any number is allowed. If the size of the ring divides it, each rank gets the same number of
    records in each full step. The default is divisible by `num_ranks` and by 1, 2, 3, 4, 6 and 12.

    Args:
        requested: The user's setting; 0 for the default.
        num_ranks: Ranks that the job starts with.
        most_ranks: The largest number of ranks later in the job; 0 if it is unlimited.
    """
    min_lanes = max(_DEFAULT_MAX_LANES, _LANES_PER_RANK * num_ranks, most_ranks)
    unit = math.lcm(num_ranks, _EVENLY_DIVIDED_BY)
    return requested or -(-min_lanes // unit) * unit


def interleaved_lanes(rank: int, size: int, num_lanes: int) -> range:
    """Return the lanes of a rank in a job whose steps may take less than one record per lane.

    Lanes are dealt out in turn, so any run of consecutive records is shared almost equally.
    """
    assert 0 <= rank < size <= num_lanes, (rank, size, num_lanes)
    return range(rank, num_lanes, size)


def _divisors(number: int) -> list[int]:
    small_divisors = [
        divisor for divisor in range(1, math.isqrt(number) + 1) if number % divisor == 0
    ]
    return sorted({*small_divisors, *(number // divisor for divisor in small_divisors)})


def lanes_of_rank(rank: int, size: int, num_lanes: int) -> range:
    """Return the contiguous lanes of a rank; ranks differ by at most one lane.

    Args:
        rank: The rank, below `size`.
        size: Ranks of the ring, at most `num_lanes`.
        num_lanes: Lanes of the job.
    """
    assert 0 <= rank < size <= num_lanes, (rank, size, num_lanes)
    return range(rank * num_lanes // size, (rank + 1) * num_lanes // size)
