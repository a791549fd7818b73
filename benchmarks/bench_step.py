"""Records per second of training: the real job against `model.fit` and against plain Horovod."""

from collections.abc import Callable

from benchmarks.common import Comparison, Workspace, compare_rates, interleave

__all__ = ["measure"]

JOB = "benchmarks.ours.job"
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
    def rate(module: str, *arguments: str, num_ranks: int, under_horovodrun: bool = False) -> float:
        numbers = space.run_side(
            module, *arguments, num_ranks=num_ranks, under_horovodrun=under_horovodrun
        )
        return float(space.settings.batch_size / numbers["step_seconds"])

    return {
        "one rank": lambda: rate(JOB, "--np=1", num_ranks=1),
        "fit": lambda: rate(FIT, num_ranks=1),
        "fit, XLA": lambda: rate(FIT, "--jit", num_ranks=1),
        "two ranks": lambda: rate(JOB, "--np=2", num_ranks=2),
        "plain Horovod": lambda: rate(PLAIN_HOROVOD, num_ranks=2, under_horovodrun=True),
    }
