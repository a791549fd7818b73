"""How many lanes a job has and which of them a rank owns (DESIGN D3, D4).

Apart from the plan, which needs NumPy: a launcher and a coordinator would import it for this alone.
"""

from edl_horovod.errors import ConfigError

__all__ = ["choose_num_lanes", "lanes_of_rank"]

_DEFAULT_MOST = 32


def choose_num_lanes(global_batch: int, wanted: int) -> int:
    """The number of lanes of a job.

    Args:
        global_batch: Records of one step over the whole ring.
        wanted: What the user asked for; 0 takes the largest divisor of the global batch up to 32.

    Raises:
        ConfigError: `wanted` does not divide the global batch.
    """
    if wanted == 0:
        return max(n for n in range(1, _DEFAULT_MOST + 1) if global_batch % n == 0)
    if global_batch % wanted:
        near = [n for n in range(1, global_batch + 1) if global_batch % n == 0]
        raise ConfigError(
            "data_plan.lanes must divide train.batch_size, so that a step takes equally many"
            " records of every lane.",
            received={"data_plan.lanes": wanted, "train.batch_size": global_batch},
            cure=f"Use one of {', '.join(map(str, near[-12:]))}, or another batch size.",
        )
    return wanted


def lanes_of_rank(rank: int, size: int, num_lanes: int) -> range:
    """The contiguous lanes that a rank owns; groups differ by one lane at most.

    A ring has at most as many ranks as there are lanes.
    """
    assert 0 <= rank < size <= num_lanes, (rank, size, num_lanes)
    return range(rank * num_lanes // size, (rank + 1) * num_lanes // size)
