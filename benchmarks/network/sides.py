"""One training of each side, through all rates."""

from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.common import SideFailed, Workspace
from benchmarks.network.namespace import Rate
from benchmarks.network.phases import changing_rates, first_rank, num_steps, step_seconds
from benchmarks.network.settings import NUM_RANKS, Model, Run

__all__ = ["train_ours", "train_plain"]

PLAIN_HOROVOD = "benchmarks.peers.plain_horovod"

Seconds = dict[str, float]
"""The median step, by the rate's name."""


def train_ours(
    run: Run, model: Model, rates: Sequence[Rate], *settings: str, num_ranks: int = NUM_RANKS
) -> Seconds:
    """The real job.

    Args:
        run: Holds the records.
        model: What is trained.
        rates: That it goes through.
        *settings: `GROUP.NAME=VALUE` beyond the defaults.
        num_ranks: Of its ring.

    Raises:
        SideFailed: It failed.
    """

    def train(space: Workspace, stamps: Path) -> None:
        flags = ("--set", *settings) if settings else ()
        space.run_job(num_ranks, f"--spec={model.spec}", f"--stamps={stamps}", *flags)

    return _timed(run, model, rates, train)


def train_plain(
    run: Run, model: Model, rates: Sequence[Rate], *flags: str, num_ranks: int = NUM_RANKS
) -> Seconds:
    """Plain Horovod, under a static horovodrun.

    Args:
        run: Holds the records.
        model: What is trained.
        rates: That it goes through.
        *flags: Further ones of `benchmarks.peers.plain_horovod`.
        num_ranks: Of its ring.

    Raises:
        SideFailed: It failed.
    """

    def train(space: Workspace, stamps: Path) -> None:
        arguments = (f"--spec={model.spec}", f"--stamps={stamps}", *flags)
        space.run_side(PLAIN_HOROVOD, *arguments, num_ranks=num_ranks, under_horovodrun=True)

    return _timed(run, model, rates, train)


def _timed(
    run: Run,
    model: Model,
    rates: Sequence[Rate],
    train: Callable[[Workspace, Path], None],
) -> Seconds:
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
