"""Speed and memory of trainings at several rates, beside the peers.

A start costs as much as many steps, so a training goes through all rates: while it runs, the steps
that its first rank writes down are watched, and the rate is changed between them.
"""

import itertools
import json
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import stamps
from benchmarks.elastic.events import NO_TORCH, train_replicas
from benchmarks.network.namespace import NO_LIMIT, Rate, set_rate
from benchmarks.report import Line, Results, markdown_table, ratio
from benchmarks.run import (
    OURS,
    PLAIN,
    RELEASED,
    SIDE_SECONDS,
    TORCHFT,
    Failure,
    Run,
    SideFailed,
    guarded,
    horovodrun,
    interleave,
    torchrun,
    values_of,
)
from benchmarks.side import Work
from benchmarks.stamps import Stamp

RATES = (
    NO_LIMIT,
    Rate(name="4 Gbit/s", bits_per_second=4e9),
    Rate(name="1 Gbit/s", bits_per_second=1e9),
)
SLOWEST = RATES[-1]
NUM_RANKS = 2
LOOK_SECONDS = 0.01
NUM_LEFT_OUT = 1
"""Whole steps after a change of the rate that do not count."""
LEAST_LIMITED, LEAST_UNLIMITED = 1.05, 1.0
LEAST_SMALL = 1.2
"""The target of the small model without a limit; it has nothing to overlap with."""
TORCH_DDP = "torch DDP"
TORCH_HOROVOD = "Horovod's optimizer"
FASTEST = "the fastest peer"
COMPRESSED = "fp16 of Horovod"
KINDS = ("bf16", "fp16")
"""Our compressions."""
LEAST_COMPRESSED = {PLAIN: 1.3, COMPRESSED: 1.0}
BUCKET_MEBIBYTES = (0.25, 1, 4, 16, 64)
NUM_MEMORY_STEPS = 5
MOST_MEMORY_RATIO = 1.05
MEBIBYTE = 2**20

Seconds = dict[str, float]
"""The median step, by the rate's name."""
Phase = tuple[Rate, float]
"""A rate, and when its span began by the machine's monotonic clock."""
Train = Callable[[Work, Path], Any]
"""Trains to the end, and writes the ranks' steps into a folder."""
Sides = Mapping[str, Sequence[Seconds | Failure]]


@dataclass(frozen=True)
class Model:
    """What is trained."""

    name: str
    """The name in `benchmarks.models.torch_network`."""
    title: str
    spec: str
    """Module and class in `benchmarks/models`; `torch_specs` has the same class."""
    _: KW_ONLY
    batch_size: int
    """The global batch, in records."""
    num_parameters: int
    timed_steps: int
    """Steps that count, at each rate."""
    warmup_steps: int = 3
    """Steps at the first rate that do not count: sides trace and allocate in their first steps."""

    @property
    def torch_spec(self) -> str:
        """The spec in PyTorch."""
        return f"torch_specs.{self.spec.partition('.')[2]}"

    @property
    def picture_shape(self) -> tuple[int, int, int]:
        """The shape of PyTorch's records."""
        return (1, 28, 28) if self.name == "small" else (3, 64, 64)


_CONV = {"batch_size": 64, "num_parameters": 11_657_936, "timed_steps": 6}
_RESNET = {"batch_size": 16, "num_parameters": 23_608_202, "timed_steps": 5}
_DENSE = {"batch_size": 512, "num_parameters": 45_170_506, "timed_steps": 4}
_SMALL = {"batch_size": 128, "num_parameters": 690_874, "timed_steps": 100, "warmup_steps": 40}
CONV = Model("conv", "11.7 M, 8 convolutions and 2 dense", "network.ConvSpec", **_CONV)
RESNET = Model("resnet", "ResNet-50, pictures of 64x64", "network.ResNetSpec", **_RESNET)
DENSE = Model("dense", "45 M dense, Adam", "network.DenseSpec", **_DENSE)
SMALL = Model("small", "0.7 M, 2 convolutions and 2 dense", "cnn.CnnSpec", **_SMALL)
MODELS = {model.name: model for model in (CONV, RESNET, DENSE, SMALL)}


class NetworkRun(Run):
    """A run with the models and rates that were asked for."""

    def __init__(
        self,
        folder: Path,
        *,
        models: tuple[str, ...],
        rates: tuple[Rate, ...] = RATES,
        repetitions: int | None = None,
        **options: Any,
    ) -> None:
        """Take the names of models, and rates in the order in which trainings go through them."""
        super().__init__(folder, **options)
        self.models = [MODELS[name] for name in models]
        self.rates = rates
        self.repetitions = repetitions or self.amount(3, 1)

    def chosen(self, *models: Model) -> list[Model]:
        """Those of some models that were asked for."""
        return [model for model in models if model in self.models]

    def work(self, model: Model, total_steps: int = 0, *, in_torch: bool = False) -> Work:
        """The records of a model and its steps; arrays where the framework is PyTorch."""
        writer = "numbers" if model is SMALL else "pictures"
        options: dict[str, Any] = {"num_records": self.amount(4096, 1024)}
        if in_torch:
            writer, options["shape"] = "arrays", model.picture_shape
        return Work(
            data=self.data(writer, **options),
            batch_size=model.batch_size,
            warmup_steps=model.warmup_steps,
            timed_steps=total_steps - model.warmup_steps,
        )

    def timed_steps(self, model: Model) -> int:
        """Steps that count, at each rate."""
        return max(3, round(model.timed_steps * self.amount(1.0, 0.5)))


def ours(run: NetworkRun, model: Model, num_ranks: int = NUM_RANKS, **options: Any) -> Train:
    """The real job; `ours.job.train` takes the options."""
    options |= {"spec": model.spec}
    return lambda work, folder: run.job(work, num_ranks, stamps=folder, **options)


def plain(run: NetworkRun, model: Model, num_ranks: int = NUM_RANKS, **options: Any) -> Train:
    """Plain Horovod, under a static `horovodrun`; `peers.horovod.train` takes the options."""
    options |= {"spec": model.spec, "launcher": horovodrun(num_ranks), "num_ranks": num_ranks}
    return lambda work, folder: run.side("peers.horovod.train", work, stamps=folder, **options)


def train_in_torch(run: NetworkRun, model: Model, work: Work, folder: Path, **options: Any) -> None:
    """Run the real job in PyTorch; `ours.job.train` takes the options."""
    options |= {"framework": "torch", "spec": model.torch_spec, "stamps": folder}
    run.job(_on_arrays(run, model, work), NUM_RANKS, **options)


def train_by_torchft(
    run: NetworkRun, model: Model, work: Work, folder: Path, **options: Any
) -> None:
    """Run replicas of torchft; `peers.torch.replica` takes the options."""
    options |= {"stamps": folder, "model": model.name}
    train_replicas(run, _on_arrays(run, model, work), NUM_RANKS, SIDE_SECONDS, **options)


def _on_arrays(run: NetworkRun, model: Model, work: Work) -> Work:
    return replace(work, data=run.work(model, in_torch=True).data)


def torch_sides(run: NetworkRun, model: Model) -> dict[str, Train]:
    """The real job, Horovod's optimizer, DDP and torchft, all in PyTorch on the same arrays."""

    def static(kind: str, launcher: Sequence[str]) -> Train:
        options = {"model": model.name, "kind": kind, "launcher": launcher, "num_ranks": NUM_RANKS}
        side = partial(run.side, "peers.torch.train", **options)
        return lambda work, folder: side(_on_arrays(run, model, work), stamps=folder)

    job: Train = partial(train_in_torch, run, model)
    sides: dict[str, Train] = {OURS: job, TORCH_HOROVOD: static("horovod", horovodrun(NUM_RANKS))}
    if run.torch_python.exists():
        ddp = static("ddp", torchrun(run.torch_python, NUM_RANKS))
        sides |= {TORCH_DDP: ddp, TORCHFT: partial(train_by_torchft, run, model)}
    return sides


def timed(run: NetworkRun, model: Model, rates: Sequence[Rate], train: Train) -> Seconds:
    """Train through several rates."""
    num_timed = run.timed_steps(model)
    work = run.work(model, num_steps(num_timed, model.warmup_steps, len(rates)))
    folder = run.place("stamps")
    with changing_rates(
        folder, rates, num_timed=num_timed, num_warmup=model.warmup_steps
    ) as phases:
        train(work, folder)
    if len(phases) < len(rates):
        raise SideFailed(f"it ended at rate {len(phases)} of {len(rates)}")
    return step_seconds(first_rank(folder), phases)


def watched(run: NetworkRun, model: Model, rate: Rate, train: Train, total_steps: int) -> Path:
    """Train at one rate; the folder with what its ranks left behind."""
    work, folder = run.work(model, total_steps), run.place("stamps")
    set_rate(rate)
    try:
        train(work, folder)
    finally:
        set_rate(NO_LIMIT)
    return folder


def num_steps(num_timed: int, num_warmup: int, num_rates: int) -> int:
    """Steps of a training through all rates, with so many that count at each."""
    # The step in which the rate is changed belongs to neither.
    return num_warmup + num_rates * (num_timed + NUM_LEFT_OUT + 1)


@contextmanager
def changing_rates(
    folder: Path, rates: Sequence[Rate], *, num_timed: int, num_warmup: int
) -> Iterator[list[Phase]]:
    """Change the rate while a training runs in the block; afterwards there is no limit.

    Yields the phases, complete when the training has ended, of which `folder` has the steps.
    """
    phases: list[Phase] = []
    is_over = threading.Event()

    def num_done() -> int:
        steps = first_rank(folder)
        return steps[-1].step if steps else 0

    def watch() -> None:
        done = num_warmup
        for rate in rates:
            while num_done() < done:
                if is_over.wait(LOOK_SECONDS):
                    return
            set_rate(rate)
            phases.append((rate, time.monotonic()))
            done = num_done() + num_timed + NUM_LEFT_OUT + 1

    set_rate(rates[0])
    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield phases
    finally:
        is_over.set()
        watcher.join()
        set_rate(NO_LIMIT)


def first_rank(folder: Path) -> list[Stamp]:
    """Steps of the rank in the first slot, of a folder with a file `SLOT.PID` of each rank."""
    paths = sorted(folder.glob("0.*"))
    return stamps.read(paths[0]) if paths else []


def step_seconds(steps: Sequence[Stamp], phases: Sequence[Phase]) -> Seconds:
    """The median step of a rank at each rate.

    Raises:
        SideFailed: There are no whole steps at one of the rates.
    """
    ends = [began for _, began in phases[1:]] + [float("inf")]
    medians = {}
    for (rate, began), end in zip(phases, ends, strict=True):
        gaps = [
            step.at - before.at
            for before, step in itertools.pairwise(steps)
            if before.at >= began and step.at <= end
        ][NUM_LEFT_OUT:]
        if not gaps:
            raise SideFailed(f"no whole step at {rate.name}")
        medians[rate.name] = statistics.median(gaps)
    return medians


def in_turn(
    run: NetworkRun,
    model: Model,
    rates: Sequence[Rate],
    trains: Mapping[str, Train],
    repetitions: int,
) -> dict[str, list[Seconds | Failure]]:
    """Median steps of each side, of each repetition."""
    sides = {side: guarded(timed, run, model, rates, train) for side, train in trains.items()}
    return interleave(sides, min(repetitions, run.repetitions))


def speed_line(
    model: Model, rate: Rate, mine: Sequence[Any], peers: Sequence[Any], side: str, **options: Any
) -> Line:
    """Our speed over the other side's, a ratio for each repetition in which both ran."""
    both = (values_of(results, rate.name) for results in (mine, peers))
    options |= {"shown": "{:.3f} s / {:.3f} s", "is_inverse": True}
    return ratio(f"{model.title}, {rate.name}", *both, side, **options)


def measured(sides: Sides) -> dict[str, list[Seconds]]:
    """What those that ran measured, kept beside the page."""
    return {
        side: [seconds for seconds in results if not isinstance(seconds, Failure)]
        for side, results in sides.items()
    }


def measure_keras(run: NetworkRun) -> Results:
    """Train each model on all sides in turn, and once without any reduction."""
    lines, figures = [], {}
    for model in run.models:
        trains = {OURS: ours(run, model), PLAIN: plain(run, model)}
        if run.released_horovod.exists():
            trains[RELEASED] = plain(run, model, packages=run.released_horovod)
        if model is not SMALL and run.torch_python.exists():
            trains[TORCH_DDP] = torch_sides(run, model)[TORCH_DDP]
        results = in_turn(run, model, run.rates, trains, run.repetitions)
        alone = plain(run, model, reduces=False)
        floor = values_of([guarded(timed, run, model, [NO_LIMIT], alone)()], NO_LIMIT.name)[0]
        shown = floor.reason if isinstance(floor, Failure) else f"{floor:.3f} s"
        for rate in run.rates:
            least: float | None = LEAST_UNLIMITED if rate == NO_LIMIT else LEAST_LIMITED
            if model is SMALL:
                least = LEAST_SMALL if rate == NO_LIMIT else None
            options: dict[str, Any] = {"least_median": least, "detail": f"no reduction {shown}"}
            for peer in (PLAIN, *sorted({RELEASED, TORCH_DDP} & results.keys())):
                lines.append(speed_line(model, rate, results[OURS], results[peer], peer, **options))
                options = {}
        figures[model.name] = measured(results)
    return Results(lines=lines, figures=figures)


def measure_torch(run: NetworkRun) -> Results:
    """Train each model on all sides with PyTorch in turn."""
    lines, figures = [], {}
    for model in run.models:
        results = in_turn(run, model, run.rates, torch_sides(run, model), run.repetitions)
        peers = {side: seconds for side, seconds in results.items() if side != OURS}
        for rate in run.rates:
            fastest = [_fastest(rate, seconds) for seconds in zip(*peers.values(), strict=True)]
            least = 1.0 if rate in (NO_LIMIT, run.rates[-1]) else None
            mine = results[OURS]
            lines.append(speed_line(model, rate, mine, fastest, FASTEST, least_median=least))
            lines += [speed_line(model, rate, mine, peers[peer], peer) for peer in peers]
        figures[model.name] = measured(results)
    return Results(lines=lines, figures=figures)


def _fastest(rate: Rate, sides: Sequence[Seconds | Failure]) -> Seconds | Failure:
    """The side of a repetition whose step at a rate was the shortest."""
    ran = [side for side in sides if not isinstance(side, Failure)]
    return min(ran, key=lambda seconds: seconds[rate.name]) if ran else sides[0]


def measure_buckets(run: NetworkRun) -> Results:
    """Train with buckets of several sizes, at the limited rates."""
    rates = [rate for rate in run.rates if rate in RATES[1:]]
    sizes = {f"{size:g} MiB": round(size * MEBIBYTE) for size in BUCKET_MEBIBYTES}
    rows = []
    for model in run.chosen(CONV, RESNET) if rates else ():
        settings = {size: {"train.bucket_bytes": number} for size, number in sizes.items()}
        trains = {size: ours(run, model, settings=chosen) for size, chosen in settings.items()}
        results = in_turn(run, model, rates, trains, 1)
        for rate in rates:
            steps = (values_of(results[size], rate.name)[0] for size in sizes)
            cells = (s.reason if isinstance(s, Failure) else f"{s:.3f} s" for s in steps)
            rows.append((f"{model.title}, {rate.name}", *cells))
    return Results(notes=[markdown_table(("Model, rate", *sizes), rows)])


def measure_compression(run: NetworkRun) -> list[Line]:
    """Train with what each side can compress, at the slowest rate."""
    lines: list[Line] = []
    for model in run.chosen(CONV, RESNET):
        trains = {PLAIN: plain(run, model), COMPRESSED: plain(run, model, compression="fp16")}
        for kind in KINDS:
            trains[kind] = ours(run, model, settings={"train.compression": kind})
        results = in_turn(run, model, [SLOWEST], trains, 2)
        for kind, (peer, least) in itertools.product(KINDS, LEAST_COMPRESSED.items()):
            titled, both = replace(model, title=f"{model.title}, {kind}"), (kind, peer)
            sides = (results[side] for side in both)
            lines.append(speed_line(titled, SLOWEST, *sides, peer, least_median=least))
    return lines


def measure_memory(run: NetworkRun) -> list[Line]:
    """Train the 45 M model for a few steps, and read what the rank that used most has used."""
    trains = {OURS: ours(run, DENSE), PLAIN: plain(run, DENSE)}
    sides = {s: guarded(_used, run, DENSE, t, NUM_MEMORY_STEPS) for s, t in trains.items()}
    results = interleave(sides, run.repetitions)
    peak = _memory_line(DENSE, results, PLAIN, most_median=MOST_MEMORY_RATIO)
    last = ("a rank after the last step (PSS)", "proportional_bytes")
    return [peak, _memory_line(DENSE, results, PLAIN, *last)]


def measure_torch_memory(run: NetworkRun) -> list[Line]:
    """Train each model for a few steps on ours and on DDP, and read what their ranks used."""
    lines = []
    for model in run.models:
        trains = torch_sides(run, model)
        # Steps are told once a second, and two of them are looked for.
        total = model.warmup_steps + max(NUM_MEMORY_STEPS, model.timed_steps)
        chosen = [side for side in (OURS, TORCH_DDP) if side in trains]
        sides = {side: guarded(_used, run, model, trains[side], total) for side in chosen}
        results = interleave(sides, run.repetitions)
        results.setdefault(TORCH_DDP, [Failure(reason=NO_TORCH)] * run.repetitions)
        lines.append(_memory_line(model, results, TORCH_DDP, most_median=MOST_MEMORY_RATIO))
    return lines


def _used(run: NetworkRun, model: Model, train: Train, total_steps: int) -> dict[str, float]:
    folder = watched(run, model, NO_LIMIT, train, total_steps)
    ranks = [json.loads(path.read_text()) for path in folder.glob("memory.*.json")]
    return {name: max(rank[name] for rank in ranks) / MEBIBYTE for name in ranks[0]}


def _memory_line(
    model: Model,
    results: Mapping[str, Sequence[Any]],
    peer: str,
    title: str = "peak of a rank (VmHWM)",
    name: str = "peak_bytes",
    **targets: float,
) -> Line:
    both = (values_of(results[side], name) for side in (OURS, peer))
    shown = "{:,.0f} MiB / {:,.0f} MiB"
    return ratio(f"{model.title}: {title}", *both, peer, shown=shown, **targets)
