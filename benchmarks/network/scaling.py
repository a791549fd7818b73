"""What larger rings would give: a model fitted to 1, 2 and 4 ranks at three rates."""

import dataclasses
import math

from benchmarks.common import SideFailed
from benchmarks.elastic.table import row
from benchmarks.network.alpha_beta import AlphaBeta, Measured, fit
from benchmarks.network.results import Found
from benchmarks.network.settings import MODELS, NO_LIMIT, NUM_RANKS, Run
from benchmarks.network.sides import ours, plain, timed

__all__ = ["measure"]

MODEL = MODELS["resnet"]
SMALL_SUMS = "benchmarks.peers.small_sums"
ROUNDS_OF_TWO = 2
RECORDS_OF_RANK = 8
SIZES = (1, 2, 4)
TIMED_STEPS = 5
LARGE_SIZES = (8, 64, 512)
LINKS = (10, 25, 100)
"""Gbit/s of each rank."""
ACCELERATED_SECONDS = 0.1
FLOAT_BYTES = 4


def measure(run: Run) -> Found:
    """Train ResNet-50 on rings of several sizes, each with and without reduction.

    Args:
        run: Says which rates.

    Raises:
        SideFailed: A training failed; without it there is nothing to fit.
    """
    measured: list[Measured] = []
    for size in SIZES:
        model = dataclasses.replace(
            MODEL, batch_size=size * RECORDS_OF_RANK, timed_steps=TIMED_STEPS
        )
        alone = plain(model, "--no-reduction", num_ranks=size)
        compute = timed(run, model, (NO_LIMIT,), alone)[NO_LIMIT.name]
        # One rank reduces nothing, whatever the rate is.
        rates = run.rates if size > 1 else (NO_LIMIT,)
        steps = timed(run, model, rates, ours(model, num_ranks=size))
        measured += [
            Measured(
                num_ranks=size,
                compute_seconds=compute,
                bits_per_second=rate.bits_per_second or math.inf,
                step_seconds=steps[rate.name],
            )
            for rate in rates
        ]
    if len({one.bits_per_second for one in measured}) < 2:
        raise SideFailed("a fit needs two rates at least")
    space = run.space(MODEL, total_steps=MODEL.warmup_steps)
    sums = space.run_side(SMALL_SUMS, num_ranks=NUM_RANKS, under_horovodrun=True)
    alpha = sums["seconds"] / ROUNDS_OF_TWO
    return found_in(measured, FLOAT_BYTES * MODEL.num_parameters, alpha)


def found_in(measured: list[Measured], num_bytes: float, alpha_seconds: float) -> Found:
    """The fit, its residuals, and what it says of larger rings.

    Args:
        measured: Of all sizes and rates.
        num_bytes: That are reduced in a step.
        alpha_seconds: Of each round of a ring.
    """
    model = fit([one for one in measured if one.num_ranks > 1], num_bytes, alpha_seconds)
    alone = next(one.compute_seconds for one in measured if one.num_ranks == 1)
    speed = f" ({1 / model.seconds_per_byte / 1e9:.1f} GB/s)" if model.seconds_per_byte else ""
    parameters = (
        f"Measured: alpha {1e3 * model.alpha_seconds:.2f} ms a round. Fitted: "
        f"{1e9 * model.seconds_per_byte:.2f} ns of a processor for each byte that a rank sends"
        f"{speed}, overlap {100 * model.overlap:.0f} %."
    )
    return Found(
        lines=[],
        notes=[
            parameters,
            _residuals(model, measured),
            f"**A model, not a measurement**: seconds of a step, and the share of it that is "
            f"computing, where a rank computes for {alone:.2f} s as one core of this machine does "
            f"({RECORDS_OF_RANK} pictures).",
            _predicted(model, alone),
            f"The same for ranks that compute ten and more times as fast, "
            f"{ACCELERATED_SECONDS} s; their sums are still made by a processor like this one.",
            _predicted(model, ACCELERATED_SECONDS),
        ],
    )


def _residuals(model: AlphaBeta, measured: list[Measured]) -> str:
    rows = [
        row(("Ranks", "Rate", "Without reduction", "Measured", "Model", "Off by")),
        row(["---"] * 6),
    ]
    for one in measured:
        predicted = model.shared_step_seconds(one)
        is_limited = math.isfinite(one.bits_per_second)
        rate = f"{one.bits_per_second / 1e9:g} Gbit/s" if is_limited else NO_LIMIT.name
        seconds = (one.compute_seconds, one.step_seconds, predicted)
        shown = (f"{each:.3f} s" for each in seconds)
        off = f"{100 * (predicted / one.step_seconds - 1):+.1f} %"
        rows.append(row((str(one.num_ranks), rate, *shown, off)))
    return "\n".join(rows)


def _predicted(model: AlphaBeta, compute_seconds: float) -> str:
    rows = [
        row(("Ranks", *(f"{link} Gbit/s" for link in LINKS))),
        row(["---"] * (1 + len(LINKS))),
    ]
    for size in LARGE_SIZES:
        cells = []
        for link in LINKS:
            seconds = model.step_seconds(size, compute_seconds, link * 1e9)
            cells.append(f"{seconds:.3f} s, {100 * compute_seconds / seconds:.0f} %")
        rows.append(row((str(size), *cells)))
    return "\n".join(rows)
