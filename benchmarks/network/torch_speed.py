"""Speed and memory of a training in PyTorch, beside DDP, Horovod's optimizer and torchft."""

import json
import statistics
from collections.abc import Mapping, Sequence
from functools import partial

from benchmarks.common import interleave
from benchmarks.elastic.settings import OURS
from benchmarks.elastic.table import Line
from benchmarks.network.memory import MEBIBYTE
from benchmarks.network.overlap import TORCH_DDP, ratio_line
from benchmarks.network.results import Failure, Found, guarded
from benchmarks.network.settings import MODELS, NO_LIMIT, Model, Run
from benchmarks.network.sides import (
    Seconds,
    Train,
    timed,
    torch_ddp,
    torch_ft,
    torch_horovod,
    torch_ours,
    watched,
)

__all__ = ["measure", "measure_memory"]

HOROVOD = "Horovod's optimizer"
TORCHFT = "torchft"
FASTEST = "the fastest peer"
LEAST = 1.0
NUM_STEPS = 5
MOST_RATIO = 1.05


def measure(run: Run) -> Found:
    """Train each model on all sides in turn.

    Args:
        run: Says which models and rates.
    """
    lines: list[Line] = []
    figures = {}
    for name in run.models:
        model = MODELS[name]
        trains: dict[str, Train] = {
            OURS: torch_ours(run, model),
            HOROVOD: torch_horovod(run, model),
        }
        if run.torch_python.exists():
            trains |= {TORCH_DDP: torch_ddp(run, model), TORCHFT: torch_ft(run, model)}
        sides = {
            side: guarded(partial(timed, run, model, run.rates, train))
            for side, train in trains.items()
        }
        found = interleave(sides, run.settings.repetitions)
        peers = [side for side in sides if side != OURS]
        for rate in run.rates:
            event = f"{model.title}, {rate.name}"
            best = _fastest(rate.name, {side: found[side] for side in peers})
            least = LEAST if rate in (NO_LIMIT, run.rates[-1]) else None
            lines += [
                ratio_line(event, rate.name, found[OURS], best, beside=FASTEST, least=least),
                *(
                    ratio_line(event, rate.name, found[OURS], found[side], beside=side, least=None)
                    for side in peers
                ),
            ]
        figures[name] = {
            side: [seconds for seconds in each if not isinstance(seconds, Failure)]
            for side, each in found.items()
        }
    return Found(lines=lines, figures=figures)


def measure_memory(run: Run) -> Found:
    """Train for a few steps on ours and on DDP, and read what their ranks used.

    Args:
        run: Says which models.
    """
    lines = []
    for name in run.models:
        model = MODELS[name]
        trains = {OURS: torch_ours(run, model), TORCH_DDP: torch_ddp(run, model)}
        found = interleave(
            {side: guarded(partial(_peak, run, model, train)) for side, train in trains.items()},
            run.settings.repetitions,
        )
        pairs = [
            (mine, theirs)
            for mine, theirs in zip(found[OURS], found[TORCH_DDP], strict=True)
            if not isinstance(mine, Failure) and not isinstance(theirs, Failure)
        ]
        failures = [
            one.reason for each in found.values() for one in each if isinstance(one, Failure)
        ]
        medians = [statistics.median(side) / MEBIBYTE for side in zip(*pairs, strict=True)]
        lines.append(
            Line(
                event=f"{model.title}: peak of a rank (VmHWM)",
                side=f"{OURS} / {TORCH_DDP}",
                values=tuple(mine / theirs for mine, theirs in pairs),
                unit="r",
                most_median=MOST_RATIO,
                detail="; ".join([" / ".join(f"{one:,.0f} MiB" for one in medians), *failures]),
            )
        )
    return Found(lines=lines)


def _fastest(
    rate: str, peers: Mapping[str, Sequence[Seconds | Failure]]
) -> list[Seconds | Failure]:
    """Of each repetition, the side whose step at a rate was the shortest."""
    found: list[Seconds | Failure] = []
    for sides in zip(*peers.values(), strict=True):
        ran = [side for side in sides if not isinstance(side, Failure)]
        found.append(min(ran, key=lambda seconds: seconds[rate]) if ran else sides[0])
    return found


def _peak(run: Run, model: Model, train: Train) -> float:
    # Steps are told once a second, and two of them are looked for.
    total = model.warmup_steps + max(NUM_STEPS, model.timed_steps)
    folder = watched(run, model, NO_LIMIT, train, total_steps=total)
    return float(
        max(json.loads(path.read_text())["peak_bytes"] for path in folder.glob("memory.*.json"))
    )
