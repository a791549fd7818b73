"""How many lanes a job has and which of them a rank owns (DESIGN D3, D4).

Apart from the plan, which needs NumPy: a launcher and a coordinator would import it for this alone.
"""

import math

from edl_horovod.errors import ConfigError

__all__ = ["choose_growing_lanes", "choose_num_lanes", "interleaved_lanes", "lanes_of_rank"]

_USUAL_MOST = 32
_LANES_PER_RANK = 4
"""With one lane a rank, a ring that loses one rank would take twice as long for a step."""

_RINGS_WITHOUT_REST = 12


def choose_num_lanes(global_batch: int, wanted: int, *, num_ranks: int, most_ranks: int) -> int:
    """The number of lanes of a job.

    By default it suits the ring that was asked for: the largest divisor of the global batch up to
    32, four lanes a rank, or one for each of the most ranks, whichever is more; or, if that were
    too few for these ranks, the smallest divisor that is enough. No ring has more ranks than the
    global batch has records.

    Args:
        global_batch: Records of one step over the whole ring.
        wanted: What the user asked for; 0 takes the default.
        num_ranks: Ranks that the job starts with.
        most_ranks: The most ranks that it may have later; 0 where that is open.

    Raises:
        ConfigError: `wanted` does not divide the global batch.
    """
    divisors = _divisors(global_batch)
    if wanted == 0:
        most = max(_USUAL_MOST, _LANES_PER_RANK * num_ranks, most_ranks)
        enough = [n for n in divisors if n >= max(num_ranks, most_ranks)] or [global_batch]
        return max((n for n in enough if n <= most), default=enough[0])
    if global_batch % wanted:
        raise ConfigError(
            "data_plan.lanes must divide train.batch_size, so that a step takes equally many"
            " records of every lane.",
            received={"data_plan.lanes": wanted, "train.batch_size": global_batch},
            cure=f"Use one of {', '.join(map(str, divisors[-12:]))}, or another batch size.",
        )
    return wanted


def choose_growing_lanes(wanted: int, *, num_ranks: int, most_ranks: int) -> int:
    """The number of lanes of a job whose global batch grows with its ring.

    They need not divide anything. But where the ring's size divides them, each rank gets just the
    same records in each full step. By default it does so for the ring that is asked for, and for
    rings of 1, 2, 3, 4, 6 and 12 ranks.

    Args:
        wanted: What the user asked for; 0 takes the default.
        num_ranks: Ranks that the job starts with.
        most_ranks: The most ranks that it may have later; 0 where that is open.
    """
    least = max(_USUAL_MOST, _LANES_PER_RANK * num_ranks, most_ranks)
    unit = math.lcm(num_ranks, _RINGS_WITHOUT_REST)
    return wanted or -(-least // unit) * unit


def interleaved_lanes(rank: int, size: int, num_lanes: int) -> range:
    """The lanes that a rank owns where steps may take less than one record of each lane.

    Every so many-th lane: of any records in a row, each rank then has nearly the same share.
    """
    assert 0 <= rank < size <= num_lanes, (rank, size, num_lanes)
    return range(rank, num_lanes, size)


def _divisors(number: int) -> list[int]:
    small = [n for n in range(1, math.isqrt(number) + 1) if number % n == 0]
    return sorted({*small, *(number // n for n in small)})


def lanes_of_rank(rank: int, size: int, num_lanes: int) -> range:
    """The contiguous lanes that a rank owns; groups differ by one lane at most.

    A ring has at most as many ranks as there are lanes.
    """
    assert 0 <= rank < size <= num_lanes, (rank, size, num_lanes)
    return range(rank * num_lanes // size, (rank + 1) * num_lanes // size)
