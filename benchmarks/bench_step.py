"""Records per second of training: the real job against `model.fit` and against plain Horovod."""

from collections.abc import Callable

from benchmarks.common import Comparison, Numbers, Workspace, compare_rates, interleave

__all__ = ["measure"]

FIT = "benchmarks.peers.keras_fit"
PLAIN_HOROVOD = "benchmarks.peers.plain_horovod"


def measure(space: Workspace) -> list[Comparison]:
    """Compare trainings of the same model, records, global batch and threads.

    Args:
        space: Holds the records.

    Raises:
        SideFailed: A training failed.
    """
    rates = interleave(_sides(space), space.settings.repetitions)

    def against(name: str, ours: str, theirs: str, target: float | None) -> Comparison:
        return compare_rates(name, rates[ours], rates[theirs], target=target)

    return [
        against("Training, 1 rank / model.fit (default)", "one rank", "fit", 0.97),
        against("Training, 1 rank / model.fit (jit_compile=True)", "one rank", "fit, XLA", None),
        against("Training, 2 ranks / plain Horovod", "two ranks", "plain Horovod", 1.1),
    ]


def _sides(space: Workspace) -> dict[str, Callable[[], float]]:
    def plain_horovod() -> Numbers:
        return space.run_side(PLAIN_HOROVOD, num_ranks=2, under_horovodrun=True)

    return {
        "one rank": lambda: space.rate(space.run_job(1)),
        "fit": lambda: space.rate(space.run_side(FIT)),
        "fit, XLA": lambda: space.rate(space.run_side(FIT, "--jit")),
        "two ranks": lambda: space.rate(space.run_job(2)),
        "plain Horovod": lambda: space.rate(plain_horovod()),
    }
