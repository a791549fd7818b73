"""The sides that train: each is started once and goes through one rate or all of them."""

from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.common import SideFailed, Workspace
from benchmarks.network.namespace import Rate, set_rate
from benchmarks.network.phases import changing_rates, first_rank, num_steps, step_seconds
from benchmarks.network.settings import NO_LIMIT, NUM_RANKS, Model, Run, name_of

__all__ = [
    "Seconds",
    "Train",
    "ours",
    "plain",
    "timed",
    "torch_ddp",
    "torch_ft",
    "torch_horovod",
    "torch_ours",
    "watched",
]

PLAIN_HOROVOD = "benchmarks.peers.plain_horovod"
TORCH_DDP = "benchmarks.peers.torch_ddp"
TORCH_HOROVOD = "benchmarks.peers.torch_horovod"

Seconds = dict[str, float]
"""The median step, by the rate's name."""
Train = Callable[[Workspace, Path], None]
"""Trains to the end, and writes the ranks' steps into a folder."""


def ours(model: Model, *flags: str, num_ranks: int = NUM_RANKS) -> Train:
    """The real job.

    Args:
        model: What is trained.
        *flags: Further ones of `benchmarks.ours.job`: `--set`, then `GROUP.NAME=VALUE`.
        num_ranks: Of its ring.
    """

    def train(space: Workspace, stamps: Path) -> None:
        space.run_job(num_ranks, f"--spec={model.spec}", f"--stamps={stamps}", *flags)

    return train


def plain(
    model: Model, *flags: str, num_ranks: int = NUM_RANKS, packages: Path | None = None
) -> Train:
    """Plain Horovod, under a static horovodrun.

    Args:
        model: What is trained.
        *flags: Further ones of `benchmarks.peers.plain_horovod`.
        num_ranks: Of its ring.
        packages: Folder with another Horovod than that of this environment.
    """

    def train(space: Workspace, stamps: Path) -> None:
        arguments = (f"--spec={model.spec}", f"--stamps={stamps}", *flags)
        space.run_side(
            PLAIN_HOROVOD,
            *arguments,
            num_ranks=num_ranks,
            under_horovodrun=True,
            packages=packages,
        )

    return train


def torch_ours(run: Run, model: Model) -> Train:
    """The real job, in PyTorch.

    Args:
        run: Holds the records.
        model: What is trained.
    """
    data, flags = run.arrays(model), ("--framework=torch", f"--spec={model.torch_spec}")

    def train(space: Workspace, stamps: Path) -> None:
        space.data = data
        space.run_job(NUM_RANKS, *flags, f"--stamps={stamps}")

    return train


def torch_ddp(run: Run, model: Model) -> Train:
    """PyTorch's DDP on Gloo, under a static torchrun.

    Args:
        run: Holds the records, and knows an interpreter that has torch.
        model: What is trained.
    """

    def launch(space: Workspace, flags: Sequence[str]) -> None:
        space.run_under_torchrun(run.torch_python, TORCH_DDP, *flags, num_ranks=NUM_RANKS)

    return _torch_peer(run, model, launch)


def torch_horovod(run: Run, model: Model) -> Train:
    """Horovod's own optimizer for PyTorch, under a static horovodrun.

    Args:
        run: Holds the records.
        model: What is trained.
    """

    def launch(space: Workspace, flags: Sequence[str]) -> None:
        space.run_under_horovodrun(TORCH_HOROVOD, *flags, num_ranks=NUM_RANKS)

    return _torch_peer(run, model, launch)


def torch_ft(run: Run, model: Model) -> Train:
    """Replicas of torchft, and their lighthouse.

    Args:
        run: Holds the records, and knows an interpreter that has torchft.
        model: What is trained.
    """

    def launch(space: Workspace, flags: Sequence[str]) -> None:
        space.run_under_torchft(run.torch_python, *flags, num_ranks=NUM_RANKS)

    return _torch_peer(run, model, launch)


def _torch_peer(
    run: Run, model: Model, launch: Callable[[Workspace, Sequence[str]], None]
) -> Train:
    fixed = (f"--data={run.arrays(model)}", f"--model={name_of(model)}")

    def train(space: Workspace, stamps: Path) -> None:
        settings = space.settings
        numbers = {"batch-size": settings.batch_size, "total-steps": settings.total_steps}
        flags = (f"--{flag}={number}" for flag, number in numbers.items())
        launch(space, (*fixed, *flags, f"--stamps={stamps}"))

    return train


def timed(run: Run, model: Model, rates: Sequence[Rate], train: Train) -> Seconds:
    """Train through several rates.

    Args:
        run: Holds the records.
        model: What is trained.
        rates: In order.
        train: The side.

    Raises:
        SideFailed: It failed, or did not come to all rates.
    """
    num_timed = run.timed_steps(model)
    total = num_steps(num_timed, model.warmup_steps, len(rates))
    space = run.space(model, total_steps=total)
    stamps = space.folder / "stamps"
    with changing_rates(
        stamps, rates, num_timed=num_timed, num_warmup=model.warmup_steps
    ) as phases:
        train(space, stamps)
    if len(phases) < len(rates):
        raise SideFailed(f"it ended at rate {len(phases)} of {len(rates)}")
    return step_seconds(first_rank(stamps), phases)


def watched(run: Run, model: Model, rate: Rate, train: Train, *, total_steps: int) -> Path:
    """Train at one rate; the folder with what its ranks left behind.

    Args:
        run: Holds the records.
        model: What is trained.
        rate: From its start on.
        train: The side.
        total_steps: Warm-up included.

    Raises:
        SideFailed: It failed.
    """
    space = run.space(model, total_steps=total_steps)
    stamps = space.folder / "stamps"
    set_rate(rate)
    try:
        train(space, stamps)
    finally:
        set_rate(NO_LIMIT)
    return stamps
