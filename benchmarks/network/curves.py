"""Speed over the size of a bucket, and with compression."""

import statistics
from functools import partial

from benchmarks.common import interleave
from benchmarks.elastic.settings import PLAIN
from benchmarks.elastic.table import Line, row
from benchmarks.network.overlap import ratio_line
from benchmarks.network.results import Failure, Found, guarded
from benchmarks.network.settings import MODELS, RATES, Run
from benchmarks.network.sides import ours, plain, timed

__all__ = ["measure_buckets", "measure_compression"]

BUCKET_MEBIBYTES = (0.25, 1, 4, 16, 64)
BUCKET_REPETITIONS = 1
COMPRESSION_REPETITIONS = 2
LIMITED = RATES[1:]
CURVE_MODELS = ("conv", "resnet")
LEAST_OVER_PLAIN = 1.3
LEAST_OVER_COMPRESSED = 1.0


def measure_buckets(run: Run) -> Found:
    """Train with buckets of several sizes, at the limited rates.

    Args:
        run: Says which models.
    """
    rates = [rate for rate in run.rates if rate in LIMITED]
    sizes = [f"{size:g} MiB" for size in BUCKET_MEBIBYTES]
    rows = [row(("Model, rate", *sizes)), row(["---"] * (1 + len(sizes)))]
    for name in CURVE_MODELS:
        if name not in run.models or not rates:
            continue
        model = MODELS[name]
        flags = [f"train.bucket_bytes={round(size * 2**20)}" for size in BUCKET_MEBIBYTES]
        sides = {
            size: guarded(partial(timed, run, model, rates, ours(model, "--set", flag)))
            for size, flag in zip(sizes, flags, strict=True)
        }
        found = interleave(sides, min(BUCKET_REPETITIONS, run.settings.repetitions))
        for rate in rates:
            cells = [_median_step(found[size], rate.name) for size in sizes]
            rows.append(row((f"{model.title}, {rate.name}", *cells)))
    return Found(lines=[], notes=["\n".join(rows)])


def measure_compression(run: Run) -> Found:
    """Train with what each side can compress, at the slowest rate.

    Args:
        run: Says which models.
    """
    rate = RATES[-1]
    lines: list[Line] = []
    for name in CURVE_MODELS:
        if name not in run.models:
            continue
        model = MODELS[name]
        trains = {
            "bf16": ours(model, "--set", "train.compression=bf16"),
            "fp16": ours(model, "--set", "train.compression=fp16"),
            PLAIN: plain(model),
            "fp16 of Horovod": plain(model, "--compression=fp16"),
        }
        sides = {
            side: guarded(partial(timed, run, model, (rate,), train))
            for side, train in trains.items()
        }
        found = interleave(sides, min(COMPRESSION_REPETITIONS, run.settings.repetitions))
        for mine in ("bf16", "fp16"):
            for theirs, least in (
                (PLAIN, LEAST_OVER_PLAIN),
                ("fp16 of Horovod", LEAST_OVER_COMPRESSED),
            ):
                line = ratio_line(
                    f"{model.title}, {rate.name}, {mine} / {theirs}",
                    rate.name,
                    found[mine],
                    found[theirs],
                    least=least,
                )
                lines.append(line)
    return Found(lines=lines)


def _median_step(found: list[dict[str, float] | Failure], rate: str) -> str:
    steps = [seconds[rate] for seconds in found if not isinstance(seconds, Failure)]
    if not steps:
        return next(seconds.reason for seconds in found if isinstance(seconds, Failure))
    return f"{statistics.median(steps):.3f} s"
