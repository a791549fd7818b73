"""Records per second of a PyTorch training: the real job against loops by hand."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.common import Comparison, Numbers, Workspace, compare_rates, interleave

__all__ = ["lower_bound", "measure"]

PEER = "benchmarks.peers.torch_step"
PAIRS_PER_REPETITION = 2
"""Ten pairs of a full run."""
CONFIDENCE = 0.9


@dataclass(frozen=True, kw_only=True)
class _Model:
    """What is trained, on one thread a rank."""

    title: str
    name: str
    spec: str
    shape: tuple[int, int, int]
    num_records: int
    step_share: float
    """Steps, as a share of those of the settings."""
    least_of_loop: float
    """Target on one rank."""


MODELS = (
    _Model(
        title="MLP",
        name="mlp",
        spec="torch_specs.MlpSpec",
        shape=(1, 6, 6),
        num_records=200 * 128,
        step_share=4.0,
        least_of_loop=0.8,
    ),
    _Model(
        title="3 convolutions",
        name="middle",
        spec="torch_specs.MiddleSpec",
        shape=(3, 32, 32),
        num_records=20 * 128,
        step_share=0.05,
        least_of_loop=0.97,
    ),
)


def measure(space: Workspace) -> list[Comparison]:
    """Compare trainings of the same models, records and global batch, with one thread a rank.

    Args:
        space: Of the run; each model has a folder in it.

    Raises:
        SideFailed: A training failed.
    """
    return [line for model in MODELS for line in _measure(space, model)]


def lower_bound(values: Sequence[float]) -> float:
    """What the median is not below, at 90 %, whatever the values' distribution (the sign test)."""
    num_below, share, total = 0, 0, 2 ** len(values)
    while (share := share + math.comb(len(values), num_below)) <= (1 - CONFIDENCE) * total:
        num_below += 1
    return sorted(values)[max(0, num_below - 1)]


def _measure(space: Workspace, model: _Model) -> list[Comparison]:
    settings = space.settings
    own = space.subfolder(f"torch-{model.name}", step_share=model.step_share)
    own.write_arrays(model.num_records, model.shape)
    rates = interleave(_sides(own, model), PAIRS_PER_REPETITION * settings.repetitions)

    def against(name: str, ours: str, theirs: str, target: float) -> Comparison:
        title = f"PyTorch, {model.title}, {name}"
        line = compare_rates(title, rates[ours], rates[theirs], target=target)
        bound = f"not below {lower_bound(line.values):.2f} at 90 %"
        return dataclasses.replace(line, detail=f"{line.detail}; {bound}")

    return [
        against("1 rank / plain loop", "one rank", "loop", model.least_of_loop),
        against("2 ranks / DDP", "two ranks", "DDP", 1.0),
        against("2 ranks / Horovod's optimizer", "two ranks", "Horovod", 1.0),
    ]


def _sides(space: Workspace, model: _Model) -> dict[str, Callable[[], float]]:
    def ours(num_ranks: int) -> float:
        what = ("--framework=torch", f"--spec={model.spec}")
        return space.rate(space.run_job(num_ranks, *what, "--set", "launch.threads_per_rank=1"))

    def peer(kind: str) -> float:
        numbers: Numbers = space.run_side(
            PEER,
            f"--model={model.name}",
            f"--kind={kind}",
            num_ranks=1 if kind == "loop" else 2,
            under_horovodrun=kind == "horovod",
        )
        return space.rate(numbers)

    return {
        "one rank": lambda: ours(1),
        "loop": lambda: peer("loop"),
        "two ranks": lambda: ours(2),
        "DDP": lambda: peer("ddp"),
        "Horovod": lambda: peer("horovod"),
    }
