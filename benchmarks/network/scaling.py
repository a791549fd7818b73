"""What larger rings would give: a model of a step's time, fitted to 1, 2 and 4 ranks.

The page says how the model is made, which is that of R. W. Hockney ("The communication challenge
for MPP: Intel Paragon and Meiko CS-2", Parallel Computing 20(3), 1994) with the rings of P.
Patarasuk and X. Yuan ("Bandwidth optimal all-reduce algorithms for clusters of workstations", J.
Parallel Distrib. Comput. 69(2), 2009). The processor's time for a byte is copying and adding it up.

Alpha is not fitted: where several ranks share a core, they wait for it in each round, and in a few
rounds of two and four ranks that would hide behind the other two.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from benchmarks.network.speed import NO_LIMIT, NUM_RANKS, RESNET, NetworkRun, ours, plain, timed
from benchmarks.report import Results, markdown_table
from benchmarks.run import SideFailed, horovodrun

ROUNDS_OF_TWO = 2
RECORDS_OF_RANK = 8
SIZES = (1, 2, 4)
TIMED_STEPS = 5
LARGE_SIZES = (8, 64, 512)
LINKS = (10, 25, 100)
"""Gbit/s of each rank."""
ACCELERATED_SECONDS = 0.1
FLOAT_BYTES = 4
_SCALES = np.array([1e-9, 1.0])
"""Usual sizes of the two parameters, so that the fit's steps suit both."""
_START = np.array([1.0, 0.5])


@dataclass(frozen=True, kw_only=True)
class Step:
    """A measured step."""

    num_ranks: int
    compute_seconds: float
    """A step without any reduction, with so many ranks on this machine."""
    bits_per_second: float
    """The rate of the link that all ranks share; infinite where there is no limit."""
    step_seconds: float


@dataclass(frozen=True, kw_only=True)
class AlphaBeta:
    """The parameters."""

    num_bytes: float
    """Bytes that are reduced in a step."""
    alpha_seconds: float
    """The time of each round of a ring."""
    seconds_per_byte: float
    """The time of a rank's processor for a byte that it sends."""
    overlap: float
    """Share of the shorter of computing and reducing that the longer hides; 0 to 1."""

    def step_seconds(self, num_ranks: int, compute_seconds: float, bits_per_second: float) -> float:
        """A step of ranks that each have a link of their own, in each direction."""
        sent = 2.0 * self.num_bytes * (num_ranks - 1) / num_ranks
        return self._overlapped(num_ranks, compute_seconds, 8.0 * sent / bits_per_second)

    def shared_step_seconds(self, step: Step) -> float:
        """The step of ranks that all send over one link, as on a limited loopback."""
        sent = 2.0 * self.num_bytes * (step.num_ranks - 1)
        wire = 8.0 * sent / step.bits_per_second
        return self._overlapped(step.num_ranks, step.compute_seconds, wire)

    def _overlapped(self, num_ranks: int, compute: float, wire: float) -> float:
        rounds = 2 * (num_ranks - 1)
        sent = 2.0 * self.num_bytes * (num_ranks - 1) / num_ranks
        reduce = rounds * self.alpha_seconds + wire + self.seconds_per_byte * sent
        return max(compute, reduce) + (1.0 - self.overlap) * min(compute, reduce)


def fit(steps: Sequence[Step], num_bytes: float, alpha_seconds: float) -> AlphaBeta:
    """The parameters with the least relative errors, squared; rings need two sizes and rates."""
    fixed = {"num_bytes": num_bytes, "alpha_seconds": alpha_seconds}

    def model_of(scaled: NDArray[np.float64]) -> AlphaBeta:
        per_byte, overlap = (float(value) for value in scaled * _SCALES)
        return AlphaBeta(**fixed, seconds_per_byte=per_byte, overlap=overlap)

    def errors(scaled: NDArray[np.float64]) -> NDArray[np.float64]:
        model = model_of(scaled)
        return np.array([model.shared_step_seconds(step) / step.step_seconds - 1 for step in steps])

    bounds = (np.zeros(2), np.array([1e2, 1.0]))
    return model_of(least_squares(errors, _START, bounds=bounds).x)


def measure(run: NetworkRun) -> Results:
    """Train ResNet-50 on rings of several sizes, each with and without reduction."""
    steps: list[Step] = []
    for size in SIZES:
        model = replace(RESNET, batch_size=size * RECORDS_OF_RANK, timed_steps=TIMED_STEPS)
        alone = plain(run, model, size, reduces=False)
        compute = timed(run, model, [NO_LIMIT], alone)[NO_LIMIT.name]
        # One rank reduces nothing, whatever the rate is.
        rates = run.rates if size > 1 else (NO_LIMIT,)
        seconds = timed(run, model, rates, ours(run, model, size))
        for rate in rates:
            measured = {"compute_seconds": compute, "step_seconds": seconds[rate.name]}
            link = rate.bits_per_second or math.inf
            steps.append(Step(num_ranks=size, bits_per_second=link, **measured))
    if len({step.bits_per_second for step in steps}) < 2:
        raise SideFailed("a fit needs two rates at least")
    options = {"launcher": horovodrun(NUM_RANKS), "num_ranks": NUM_RANKS}
    sums = run.side("peers.horovod.sum_numbers", run.work(RESNET), **options)
    alpha = sums["seconds"] / ROUNDS_OF_TWO
    return results_of(steps, FLOAT_BYTES * RESNET.num_parameters, alpha)


def results_of(steps: Sequence[Step], num_bytes: float, alpha_seconds: float) -> Results:
    """The fit, its residuals, and what it says of larger rings."""
    model = fit([step for step in steps if step.num_ranks > 1], num_bytes, alpha_seconds)
    alone = next(step.compute_seconds for step in steps if step.num_ranks == 1)
    speed = f" ({1 / model.seconds_per_byte / 1e9:.1f} GB/s)" if model.seconds_per_byte else ""
    rows = []
    for step in steps:
        predicted = model.shared_step_seconds(step)
        is_limited = math.isfinite(step.bits_per_second)
        rate = f"{step.bits_per_second / 1e9:g} Gbit/s" if is_limited else NO_LIMIT.name
        seconds = (step.compute_seconds, step.step_seconds, predicted)
        off = f"{100 * (predicted / step.step_seconds - 1):+.1f} %"
        rows.append((str(step.num_ranks), rate, *(f"{value:.3f} s" for value in seconds), off))
    headers = ("Ranks", "Rate", "Without reduction", "Measured", "Model", "Off by")
    return Results(
        notes=[
            f"Measured: alpha {1e3 * model.alpha_seconds:.2f} ms a round. Fitted: "
            f"{1e9 * model.seconds_per_byte:.2f} ns of a processor for each byte that a rank sends"
            f"{speed}, overlap {100 * model.overlap:.0f} %.",
            markdown_table(headers, rows),
            f"**A model, not a measurement**: seconds of a step, and the share of it that is "
            f"computing, where a rank computes for {alone:.2f} s as one core of this machine does "
            f"({RECORDS_OF_RANK} pictures).",
            _predicted(model, alone),
            f"The same for ranks that compute ten and more times as fast, "
            f"{ACCELERATED_SECONDS} s; their sums are still made by a processor like this one.",
            _predicted(model, ACCELERATED_SECONDS),
        ]
    )


def _predicted(model: AlphaBeta, compute_seconds: float) -> str:
    rows = []
    for size in LARGE_SIZES:
        steps = [model.step_seconds(size, compute_seconds, link * 1e9) for link in LINKS]
        cells = (f"{step:.3f} s, {100 * compute_seconds / step:.0f} %" for step in steps)
        rows.append((str(size), *cells))
    return markdown_table(("Ranks", *(f"{link} Gbit/s" for link in LINKS)), rows)
