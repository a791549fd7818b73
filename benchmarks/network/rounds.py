"""Local rounds over slow networks, beside those of torchft: the share of time spent computing."""

import itertools
from dataclasses import replace
from functools import partial

from benchmarks.network.namespace import NO_LIMIT, Rate
from benchmarks.network.speed import (
    CONV,
    NUM_RANKS,
    Model,
    NetworkRun,
    Sides,
    Train,
    in_turn,
    measured,
    train_by_torchft,
    train_in_torch,
)
from benchmarks.report import Results, ratio
from benchmarks.run import OURS, TORCHFT, Failure, values_of

RATES = (
    NO_LIMIT,
    Rate(name="1 Gbit/s", bits_per_second=1e9),
    Rate(name="200 Mbit/s", bits_per_second=2e8),
    Rate(name="50 Mbit/s", bits_per_second=5e7),
)
LOCAL_STEPS = (1, 8, 32, 128)
FEW, MANY = LOCAL_STEPS[1], LOCAL_STEPS[-1]
INT8 = f"{OURS} with int8"
LEAST_SHARES = 2.0
"""Our share of time over that of torchft in the longest rounds on the slowest network."""
TRANSFORMER = Model(
    "transformer",
    "1.6 M, 2 blocks of a transformer",
    "torch_specs.TransformerSpec",
    batch_size=8,
    num_parameters=1_649_930,
    timed_steps=3,
    warmup_steps=1,
)
# Their steps are rounds.
MODELS = (TRANSFORMER, replace(CONV, batch_size=2, timed_steps=3, warmup_steps=1))


def measure(run: NetworkRun) -> Results:
    """Train by DiLoCo in rounds of several lengths on all sides in turn."""
    lines, figures = [], {}
    for model in MODELS:
        results = {
            local_steps: in_turn(run, model, RATES, _sides(run, model, local_steps), 1)
            for local_steps in LOCAL_STEPS
        }
        figures |= {f"{model.name}, {key}": measured(it) for key, it in results.items()}
        for rate, local_steps in itertools.product(RATES[1:], LOCAL_STEPS):
            least = LEAST_SHARES if (rate, local_steps) == (RATES[-1], MANY) else None
            title = f"{model.title}, {local_steps} local steps, {rate.name}"
            options = {"shown": "{:.0%} / {:.0%} of the time", "least_median": least}
            for side in (OURS, INT8):
                shares = (_shares(results, it, local_steps, rate) for it in (side, TORCHFT))
                lines.append(ratio(title, *shares, f"{side} / {TORCHFT}", **options))
    return Results(lines=lines, figures=figures)


def _sides(run: NetworkRun, model: Model, local_steps: int) -> dict[str, Train]:
    local = {"steps": local_steps, "replicas": NUM_RANKS, "method": "diloco"}
    local["inner_state"] = "reset"
    ours = partial(train_in_torch, run, model)
    return {
        OURS: partial(ours, settings={"train.local": local}),
        INT8: partial(ours, settings={"train.local": local, "train.compression": "int8"}),
        TORCHFT: partial(train_by_torchft, run, model, local_steps=local_steps),
    }


def _shares(
    results: dict[int, Sides], side: str, local_steps: int, rate: Rate
) -> list[float | Failure]:
    """The time that local steps need alone on the quickest side, over that of a side's round.

    A local step alone is by what a long round without a limit is longer than a short one.
    """
    name, long, short = NO_LIMIT.name, results[MANY], results[FEW]
    steps = [
        (most[name] - least[name]) / (MANY - FEW)
        for it in long
        for most, least in zip(long[it], short[it], strict=True)
        if not isinstance(most, Failure) and not isinstance(least, Failure)
    ]
    alone = local_steps * min(steps, default=float("nan"))
    rounds = values_of(results[local_steps][side], rate.name)
    return [it if isinstance(it, Failure) else alone / it for it in rounds]
