"""Speed of training at each rate, beside plain Horovod's."""

import statistics
from collections.abc import Sequence
from functools import partial

from benchmarks.common import interleave
from benchmarks.elastic.settings import OURS, PLAIN
from benchmarks.elastic.table import Line
from benchmarks.network.results import Failure, Found, guarded
from benchmarks.network.settings import MODELS, NO_LIMIT, Run
from benchmarks.network.sides import Seconds, ours, plain, timed, torch_ddp

__all__ = ["TORCH_DDP", "measure", "ratio_line"]

LEAST_LIMITED = 1.05
LEAST_UNLIMITED = 1.0
LEAST_SMALL = 1.2
"""Of the small model, without a limit; it has nothing to overlap with."""
RELEASED = "Horovod as released"
TORCH_DDP = "torch DDP"


def measure(run: Run) -> Found:
    """Train each model on all sides in turn, and once without any reduction.

    Args:
        run: Says which models and rates.
    """
    lines: list[Line] = []
    figures = {}
    for name in run.models:
        model = MODELS[name]
        sides = {
            OURS: guarded(partial(timed, run, model, run.rates, ours(model))),
            PLAIN: guarded(partial(timed, run, model, run.rates, plain(model))),
        }
        if run.released_horovod.exists():
            released = plain(model, packages=run.released_horovod)
            sides[RELEASED] = guarded(partial(timed, run, model, run.rates, released))
        if name != "small" and run.torch_python.exists():
            sides[TORCH_DDP] = guarded(partial(timed, run, model, run.rates, torch_ddp(run, model)))
        found = interleave(sides, run.settings.repetitions)
        alone = plain(model, "--no-reduction")
        floor = guarded(partial(timed, run, model, (NO_LIMIT,), alone))()
        for rate in run.rates:
            line = ratio_line(
                f"{model.title}, {rate.name}",
                rate.name,
                found[OURS],
                found[PLAIN],
                least=_least(name, is_limited=rate != NO_LIMIT),
                more=f"; no reduction {_shown(floor)}",
            )
            lines.append(line)
            for peer in sorted({RELEASED, TORCH_DDP} & found.keys()):
                lines.append(
                    ratio_line(
                        line.event,
                        rate.name,
                        found[OURS],
                        found[peer],
                        beside=peer,
                        least=None,
                    )
                )
        figures[name] = {
            side: [seconds for seconds in each if not isinstance(seconds, Failure)]
            for side, each in found.items()
        }
    return Found(lines=lines, figures=figures)


def ratio_line(
    event: str,
    rate: str,
    one: Sequence[Seconds | Failure],
    other: Sequence[Seconds | Failure],
    *,
    beside: str = PLAIN,
    least: float | None,
    more: str = "",
) -> Line:
    """Our speed over the other side's, one ratio of each repetition in which both ran.

    Args:
        event: Of the line.
        rate: Name of the rate.
        one: Median steps of our side, by rate, of each repetition.
        other: The other side's.
        beside: Name of the other side.
        least: The target of the median; None where there is none.
        more: Put behind the two sides' seconds.
    """
    pairs = [
        (mine[rate], theirs[rate])
        for mine, theirs in zip(one, other, strict=True)
        if not isinstance(mine, Failure) and not isinstance(theirs, Failure)
    ]
    failures = [side.reason for side in (*one, *other) if isinstance(side, Failure)]
    detail = "; ".join(dict.fromkeys(failures))
    if pairs:
        medians = (statistics.median(side) for side in zip(*pairs, strict=True))
        shown = " / ".join(f"{seconds:.3f} s" for seconds in medians) + more
        detail = f"{shown}; {detail}" if detail else shown
    return Line(
        event=event,
        side=f"{OURS} / {beside}",
        values=tuple(theirs / mine for mine, theirs in pairs),
        unit="r",
        least_median=least,
        detail=detail,
    )


def _least(name: str, *, is_limited: bool) -> float | None:
    if name == "small":
        return None if is_limited else LEAST_SMALL
    return LEAST_LIMITED if is_limited else LEAST_UNLIMITED


def _shown(floor: Seconds | Failure) -> str:
    return floor.reason if isinstance(floor, Failure) else f"{floor[NO_LIMIT.name]:.3f} s"
