"""What changes of a ring cost a training in PyTorch, beside TorchElastic and torchft."""

import dataclasses
from collections.abc import Callable

from benchmarks.common import SideFailed
from benchmarks.elastic import ring_events, torch_events, torchft_events
from benchmarks.elastic import settings as elastic
from benchmarks.elastic.settings import OURS, TORCH, TORCHFT
from benchmarks.elastic.table import Line
from benchmarks.network.elastic import without_targets
from benchmarks.network.join import elastic_run
from benchmarks.network.results import Found, reason_of
from benchmarks.network.settings import MODELS, Run

__all__ = ["measure"]

MODEL = MODELS["small"]


def measure(run: Run) -> Found:
    """Drive a training of each side through joins, kills, removals and a hang.

    Args:
        run: Knows an interpreter that has torch and torchft.
    """
    each = elastic_run(run, MODEL, MODEL.batch_size).in_torch()
    each.torch_python = run.torch_python
    each.settings = dataclasses.replace(each.settings, num_events=run.settings.repetitions)
    parts: dict[str, Callable[[elastic.Run], list[Line]]] = {
        OURS: lambda run: [*ring_events.measure(run), ring_events.measure_hang(run)],
        TORCH: torch_events.measure,
        TORCHFT: torchft_events.measure,
    }
    lines: list[Line] = []
    for side, part in parts.items():
        try:
            # The targets are those of the page of elasticity.
            lines += [without_targets(line) for line in part(each)]
        except (SideFailed, ValueError) as error:
            lines.append(Line(event="all events", side=side, detail=reason_of(error)))
    events = [line.event for line in lines]
    return Found(lines=sorted(lines, key=lambda line: events.index(line.event)))
