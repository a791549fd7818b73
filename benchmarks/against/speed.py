"""Steps, starts and changes of a ring, timed on both sides in turn."""

import os
import resource
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise

import numpy as np
from rich.table import Table

from benchmarks.against.checkout import MOST_SECONDS, OUR_MODELS, Checkout, Event

STEPS = {"cnn.CnnSpec": (50, 350), "smooth": (200, 2200)}
"""Models whose steps are timed: steps before the clock starts, and all steps."""
NUM_CHANGES = 3
"""Planned leaves and kills of a round; there are twice as many joins."""
SETTLE_SECONDS = 1.0
DATA = ("data=digits/train", "train.epochs=1000000")

Seconds = dict[str, list[float]]


def measure(base: Checkout, here: Checkout, num_rounds: int) -> tuple[Seconds, Seconds]:
    """Measure both sides in turn, so that whatever else the machine does hits both."""
    measures: list[Callable[[Checkout, int], Seconds]] = [_changes]
    measures += [partial(_steps, model=model, size=size) for model in STEPS for size in (1, 2)]
    results: tuple[Seconds, Seconds] = defaultdict(list), defaultdict(list)
    for number in range(num_rounds):
        for measure_side in measures:
            pairs = list(zip((base, here), results, strict=True))
            for side, times in pairs if number % 2 == 0 else pairs[::-1]:
                for name, seconds in measure_side(side, number).items():
                    times[name] += seconds
                    print(f"[{number + 1}/{num_rounds}] {side.root}: {name}", file=sys.stderr)
    return results


def compare(base: Mapping[str, Sequence[float]], here: Mapping[str, Sequence[float]]) -> Table:
    """Medians, and the fastest tenths, which whatever else the machine does touches least.

    The first step counts from the command; `processors` is what a whole job used of them.
    """
    headers = ("ms, ranks", *("base", "here", "ratio") * 2)
    table = Table(*headers, title="Medians, and fastest tenths")
    for name, times in base.items():
        cells = []
        for share in (0.5, 0.1):
            before, after = (1e3 * np.quantile(side, share) for side in (times, here[name]))
            cells += [f"{before:.5g}", f"{after:.5g}", f"{after / before:.3f}"]
        table.add_row(name, *cells)
    return table


def _steps(side: Checkout, number: int, *, model: str, size: int) -> Seconds:
    warmup, total = STEPS[model]
    settings = (OUR_MODELS, f"model_def={model}", *DATA, f"train.max_steps={total}")
    began, used = time.time(), resource.getrusage(resource.RUSAGE_CHILDREN)
    events = side.train(f"{model}-{size}-{number}", size, *settings)
    now_used = resource.getrusage(resource.RUSAGE_CHILDREN)
    processor = now_used.ru_utime - used.ru_utime + now_used.ru_stime - used.ru_stime
    first = next(event for event in events if event["kind"] == "step")
    model = model.partition(".")[0]
    return {
        f"first step, {size}": [first["time"] - began],
        f"step, {model}, {size}": step_seconds(events, warmup),
        # On a busy machine this says more than any clock.
        f"processors, {model}, {size}": [processor],
    }


def step_seconds(events: Sequence[Event], warmup: int) -> list[float]:
    """Seconds of a step, as a mean between each two events of steps; the warm-up does not count."""
    steps = [event for event in events if event["kind"] == "step" and event["step"] >= warmup]
    return [(b["time"] - a["time"]) / (b["step"] - a["step"]) for a, b in pairwise(steps)]


def _changes(side: Checkout, number: int) -> Seconds:
    """Let a second rank join, be killed, come back by itself and leave, again and again."""
    output, times = f"changes-{number}", defaultdict(list)
    ring = ("launch.np=1", "elastic.max_np=2", "elastic.restart_backoff_seconds=0.01")
    settings = (OUR_MODELS, "model_def=smooth", *DATA, "launch.threads_per_rank=1", *ring)
    with side.started("train", f"output={output}", *settings) as job:

        def wait(size: int, since: float, *, killed: bool = False) -> float:
            deadline = time.monotonic() + MOST_SECONDS
            while (seconds := stall(side.events(output), size, since, killed=killed)) is None:
                if job.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit(f"{side.root}: the ring of {output} never had {size} ranks")
                time.sleep(0.05)
            time.sleep(SETTLE_SECONDS)
            return seconds

        def scale(size: int) -> float:
            since = time.time()
            side.edl("scale", f"{output}.job", f"--np={size}")
            return wait(size, since)

        wait(1, since=0.0)
        for _ in range(NUM_CHANGES):
            times["stall, join"].append(scale(2))
            started = [e for e in side.events(output) if e.get("state") == "started"]
            since = time.time()
            os.kill(started[-1]["pid"], signal.SIGKILL)
            times["stall, kill -9"].append(wait(1, since, killed=True))
            times["stall, join"].append(wait(2, since))
            times["stall, leave"].append(scale(1))
    return times


def stall(events: Sequence[Event], size: int, since: float, *, killed: bool) -> float | None:
    """Seconds from the end of a rank's last whole step to its first one in a new ring; None before.

    A planned change begins when its reset does. That of a kill begins at `since`: the reset's own
    begin is when the kill is noticed.
    """
    reset: Event | None = None
    for event in events:
        if event["time"] > since and event["kind"] == "reset":
            reset = event if event["new_size"] == size else None
        elif event["kind"] == "step" and reset is not None:
            began = since if killed else reset["time"] - reset["seconds"]
            return float(event["time"] - began)
    return None
