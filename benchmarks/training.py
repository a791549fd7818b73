"""Speed of trainings without events, and what elastic parts and checkpoints cost them."""

import math
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from benchmarks.report import Line, ratio
from benchmarks.run import OURS, PLAIN, Run, horovodrun, interleave, rate, torchrun, values_of
from benchmarks.side import Work

CHECKPOINT_SHARE_PERCENT = 5.0
ELASTIC_SHARE_PERCENT = 1.0
PAIRS_PER_REPETITION = 2
"""Ten pairs of a full run."""
CONFIDENCE = 0.9
OF_TWO_RANKS = ("Horovod", "DDP", "Horovod's optimizer")


@dataclass(frozen=True)
class _Model:
    """What is trained."""

    title: str
    spec: str
    step_share: float
    """Steps, as a share of those of the whole run."""
    least_of_one: float
    """The target on one rank: over `model.fit`, or over a plain loop."""
    least_of_two: float = 1.0
    """The target on two ranks, over each peer."""


KERAS_MODELS = (
    _Model("", "cnn.CnnSpec", 1.0, least_of_one=0.97, least_of_two=1.1),
    _Model("MLP, ", "cnn.MlpSpec", 4.0, least_of_one=0.8),
    _Model("3 convolutions, ", "cnn.MiddleSpec", 0.2, least_of_one=0.97),
)
MLP = _Model("MLP", "torch_specs.MlpSpec", 4.0, least_of_one=0.8)
MIDDLE = _Model("3 convolutions", "torch_specs.MiddleSpec", 0.05, least_of_one=0.97)
TORCH_MODELS = {"mlp": (MLP, 200 * 128, (1, 6, 6)), "middle": (MIDDLE, 20 * 128, (3, 32, 32))}
"""Models, and number and shape of their records, by names in `benchmarks.models.torch_network`."""


def num_repetitions(run: Run) -> int:
    """How often each side runs."""
    return run.amount(5, 2)


def whole_work(run: Run) -> Work:
    """The records and steps of a whole run; all steps are whole."""
    # Half as many records again as a reader's cache holds.
    data = run.data("numbers", num_records=run.amount(960, 64) * 128)
    return Work(data=data, warmup_steps=run.amount(200, 40), timed_steps=run.amount(1200, 160))


def measure_keras(run: Run) -> list[Line]:
    """Compare trainings of the same models, records, global batch and threads."""
    lines: list[Line] = []
    for model in KERAS_MODELS:
        work = whole_work(run).scaled(model.step_share)

        def timed(function: str, num_ranks: int, work: Work, **arguments: object) -> float:
            return rate(work, run.side(function, work, num_ranks=num_ranks, **arguments))

        train = partial(timed, work=work, spec=model.spec)
        sides: dict[str, Callable[[], float]] = {
            "1 rank": partial(train, "ours.job.train", 1, np=1),
            "fit": partial(train, "peers.keras.fit", 1),
            "2 ranks": partial(train, "ours.job.train", 2, np=2),
            "Horovod": partial(train, "peers.horovod.train", 2, launcher=horovodrun(2)),
        }
        if model.title == "":
            sides["XLA"] = partial(train, "peers.keras.fit", 1, jit=True)
        rates = interleave(sides, num_repetitions(run))
        least = {"fit": model.least_of_one, "Horovod": model.least_of_two}
        titles = {"fit": "model.fit (default)", "XLA": "model.fit (jit_compile=True)"}
        lines += _lines(f"Training, {model.title}", rates, least, titles | {"Horovod": PLAIN})
    return lines


def _lines(
    event: str,
    rates: Mapping[str, Sequence[float]],
    least: Mapping[str, float],
    titles: Mapping[str, str],
) -> list[Line]:
    """Our speed on one rank or two over each peer's, with the targets by the peer's name."""
    lines = []
    for peer, title in titles.items():
        if peer in rates:
            ranks = "2 ranks" if peer in OF_TWO_RANKS else "1 rank"
            pairs = zip(rates[ranks], rates[peer], strict=True)
            ratios = [ours / others for ours, others in pairs]
            detail = f"not below {lower_bound(ratios):.2f} at 90 %"
            options = {"least_median": least.get(peer), "detail": detail}
            lines.append(ratio(f"{event}{ranks}", rates[ranks], rates[peer], title, **options))
    return lines


def measure_torch(run: Run) -> list[Line]:
    """Compare trainings of the same models, records and global batch, with one thread a rank."""
    lines: list[Line] = []
    for name, (model, num_records, shape) in TORCH_MODELS.items():
        data = run.data("arrays", num_records=num_records, shape=shape)
        work = replace(whole_work(run).scaled(model.step_share), data=data)
        sides = _torch_sides(run, work, model, name)
        rates = interleave(sides, PAIRS_PER_REPETITION * num_repetitions(run))
        least = dict.fromkeys(OF_TWO_RANKS, model.least_of_two)
        titles = {peer: peer for peer in ("a plain loop", "DDP", "Horovod's optimizer")}
        least["a plain loop"] = model.least_of_one
        lines += _lines(f"PyTorch, {model.title}, ", rates, least, titles)
    return lines


def lower_bound(values: Sequence[float]) -> float:
    """What the median is not below, at 90 %, whatever the values' distribution (the sign test)."""
    num_below, share, total = 0, 0, 2 ** len(values)
    while (share := share + math.comb(len(values), num_below)) <= (1 - CONFIDENCE) * total:
        num_below += 1
    return sorted(values)[max(0, num_below - 1)]


def _torch_sides(run: Run, work: Work, model: _Model, name: str) -> dict[str, Callable[[], float]]:
    def ours(num_ranks: int) -> float:
        settings = {"launch.threads_per_rank": 1}
        options = {"framework": "torch", "spec": model.spec, "settings": settings}
        return rate(work, run.job(work, num_ranks, **options))

    def peer(kind: str, num_ranks: int, **options: object) -> float:
        options |= {"model": name, "kind": kind, "threads": 1, "num_ranks": num_ranks}
        return rate(work, run.side("peers.torch.train", work, **options))

    return {
        "1 rank": lambda: ours(1),
        "a plain loop": lambda: peer("loop", 1),
        "2 ranks": lambda: ours(2),
        "DDP": lambda: peer("ddp", 2, launcher=torchrun(Path(sys.executable), 2)),
        "Horovod's optimizer": lambda: peer("horovod", 2, launcher=horovodrun(2)),
    }


def measure_elastic_cost(run: Run) -> list[Line]:
    """Run the real job with clocks in it, and its step in a bare loop.

    The target is held against the clocks: they are exact to microseconds where the difference of
    two whole runs drowns a percent of a step in the noise of the machine.
    """
    work = whole_work(run)
    bare_loop = partial(run.side, "ours.stream.step_in_bare_loop", work, num_ranks=2)
    sides = {
        "job": lambda: run.job(work, 2, is_timed=True),
        "bare loop": lambda: bare_loop(launcher=horovodrun(2)),
    }
    results = interleave(sides, num_repetitions(run))
    jobs, event = results["job"], "Elastic parts, share of a step"
    steps, bare_steps = (values_of(side, "step_seconds") for side in results.values())
    shares = [100 * share for share in values_of(jobs, "elastic_share")]
    less = [100 * (1 - bare / step) for step, bare in zip(steps, bare_steps, strict=True)]
    step, bare = (1e3 * statistics.median(seconds) for seconds in (steps, bare_steps))
    clocks = f"{statistics.median(values_of(jobs, 'elastic_microseconds')):.0f} us of {step:.1f} ms"
    target = {"most_median": ELASTIC_SHARE_PERCENT, "detail": clocks}
    return [
        Line(event, "clocks in the job", shares, unit="%", **target),
        Line(
            event, "job less bare loop", less, unit="%", detail=f"{step:.2f} ms less {bare:.2f} ms"
        ),
    ]


def measure_checkpoint(run: Run) -> list[Line]:
    """Run the real job with checkpoints and without.

    The target is a share of the step: the time between two steps that goes into checkpoints
    (whether one is due, the copy of the variables, the start of the thread), averaged over all
    steps. The speed of the job includes what the writing thread takes where cores are short.
    """
    work, interval = whole_work(run), run.amount(100, 20)
    sides = {
        "with checkpoints": lambda: run.job(work, 2, is_timed=True, checkpoint_steps=interval),
        "without": lambda: run.job(work, 2, is_timed=True),
    }
    results = interleave(sides, num_repetitions(run))
    saving = results["with checkpoints"]
    step = statistics.median(values_of(saving, "step_seconds"))
    stop = interval * statistics.median(values_of(saving, "checkpoint_microseconds"))
    writing = statistics.median(values_of(saving, "write_seconds"))
    event = f"Checkpoint every {interval} steps"
    with_them, without = ([rate(work, numbers) for numbers in side] for side in results.values())
    shares = [100 * share for share in values_of(saving, "checkpoint_share")]
    detail = f"{stop / 1e3:.2f} ms in {interval} steps of {1e3 * step:.1f} ms; "
    detail += f"{saving[0]['checkpoint_bytes'] / 1e6:.1f} MB written in {1e3 * writing:.0f} ms "
    options = {"most_median": CHECKPOINT_SHARE_PERCENT, "detail": f"{detail}beside them"}
    stops = f"{event}, share of a step that training stops"
    return [
        Line(stops, OURS, shares, unit="%", **options),
        ratio(f"{event}, speed of the job", with_them, without, "with / without"),
    ]
