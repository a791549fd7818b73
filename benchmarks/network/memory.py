"""Peak memory of a rank in training, beside plain Horovod's."""

import json
import statistics
from functools import partial

from benchmarks.common import interleave
from benchmarks.elastic.settings import OURS, PLAIN
from benchmarks.elastic.table import Line
from benchmarks.network.results import Failure, Found, guarded
from benchmarks.network.settings import MODELS, NO_LIMIT, Run
from benchmarks.network.sides import Train, ours, plain, watched

__all__ = ["measure"]

MODEL = MODELS["dense"]
NUM_STEPS = 5
MOST_RATIO = 1.05
MEBIBYTE = 2**20

Bytes = dict[str, float]


def measure(run: Run) -> Found:
    """Train the 45 M model for a few steps, and read what its ranks used.

    Args:
        run: Holds the records.
    """
    trains = {OURS: ours(MODEL), PLAIN: plain(MODEL)}
    sides = {side: guarded(partial(_used, run, train)) for side, train in trains.items()}
    found = interleave(sides, run.settings.repetitions)
    pairs = [
        (mine, theirs)
        for mine, theirs in zip(found[OURS], found[PLAIN], strict=True)
        if not isinstance(mine, Failure) and not isinstance(theirs, Failure)
    ]
    failures = [one.reason for each in found.values() for one in each if isinstance(one, Failure)]

    def detail(name: str) -> str:
        sides = zip(*pairs, strict=True)
        shown = [statistics.median(one[name] for one in side) / MEBIBYTE for side in sides]
        medians = [" / ".join(f"{one:,.0f} MiB" for one in shown)] if pairs else []
        return "; ".join([*medians, *failures])

    return Found(
        lines=[
            Line(
                event=f"{MODEL.title}: {what}",
                side=f"{OURS} / {PLAIN}",
                values=tuple(mine[name] / theirs[name] for mine, theirs in pairs),
                unit="r",
                most_median=most,
                detail=detail(name),
            )
            for name, what, most in (
                ("peak_bytes", "peak of a rank (VmHWM)", MOST_RATIO),
                ("proportional_bytes", "a rank after the last step (PSS)", None),
            )
        ]
    )


def _used(run: Run, train: Train) -> Bytes:
    """What the rank that used most has used."""
    folder = watched(run, MODEL, NO_LIMIT, train, total_steps=NUM_STEPS)
    ranks = [json.loads(path.read_text()) for path in folder.glob("memory.*.json")]
    return {name: max(rank[name] for rank in ranks) for name in ranks[0]}
