"""Whether the loopback is held to each rate, by a plain TCP transfer."""

from benchmarks.common import SideFailed
from benchmarks.elastic.table import Line
from benchmarks.network.namespace import Rate, measure_rate, set_rate
from benchmarks.network.results import Found
from benchmarks.network.settings import NO_LIMIT, Run

__all__ = ["measure"]

LEAST_SHARE = 0.9
MOST_SHARE = 1.05
NUM_TRANSFERS = 3


def measure(run: Run) -> Found:
    """Transfer bytes at each rate.

    Args:
        run: Says which rates.
    """
    try:
        return Found(lines=[_line(rate) for rate in run.rates])
    except (TimeoutError, ConnectionError) as error:
        raise SideFailed(f"no transfer over the limited loopback: {error}") from error
    finally:
        set_rate(NO_LIMIT)


def _line(rate: Rate) -> Line:
    set_rate(rate)
    limit = rate.bits_per_second / 1e9
    return Line(
        event=f"a TCP transfer, {rate.name}",
        side="loopback",
        values=tuple(measure_rate() / 1e9 for _ in range(NUM_TRANSFERS)),
        unit="G",
        least_median=LEAST_SHARE * limit if limit else None,
        most=MOST_SHARE * limit if limit else None,
    )
