"""Records per second of a Keras training: the real job against `model.fit` and plain Horovod."""

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.common import Comparison, Numbers, Workspace, compare_rates, interleave

__all__ = ["measure"]

FIT = "benchmarks.peers.keras_fit"
PLAIN_HOROVOD = "benchmarks.peers.plain_horovod"


@dataclass(frozen=True, kw_only=True)
class _Model:
    """What is trained."""

    title: str
    spec: str
    step_share: float
    """Steps, as a share of those of the settings."""
    least_of_fit: float
    """Target on one rank."""
    least_of_horovod: float
    """Target on two ranks."""
    with_xla: bool = False


MODELS = (
    _Model(
        title="",
        spec="cnn.CnnSpec",
        step_share=1.0,
        least_of_fit=0.97,
        least_of_horovod=1.1,
        with_xla=True,
    ),
    _Model(
        title="MLP, ", spec="cnn.MlpSpec", step_share=4.0, least_of_fit=0.8, least_of_horovod=1.0
    ),
    _Model(
        title="3 convolutions, ",
        spec="cnn.MiddleSpec",
        step_share=0.2,
        least_of_fit=0.97,
        least_of_horovod=1.0,
    ),
)


def measure(space: Workspace) -> list[Comparison]:
    """Compare trainings of the same models, records, global batch and threads.

    Args:
        space: Holds the records.

    Raises:
        SideFailed: A training failed.
    """
    return [line for model in MODELS for line in _measure(space, model)]


def _measure(space: Workspace, model: _Model) -> list[Comparison]:
    own = space.subfolder(model.spec, step_share=model.step_share)
    own.data = space.data
    rates = interleave(_sides(own, model), space.settings.repetitions)

    def against(name: str, ours: str, theirs: str, target: float | None) -> Comparison:
        title = f"Training, {model.title}{name}"
        return compare_rates(title, rates[ours], rates[theirs], target=target)

    lines = [
        against("1 rank / model.fit (default)", "one rank", "fit", model.least_of_fit),
        against("2 ranks / plain Horovod", "two ranks", "Horovod", model.least_of_horovod),
    ]
    if model.with_xla:
        lines.append(against("1 rank / model.fit (jit_compile=True)", "one rank", "fit, XLA", None))
    return lines


def _sides(space: Workspace, model: _Model) -> dict[str, Callable[[], float]]:
    spec = f"--spec={model.spec}"

    def plain_horovod() -> Numbers:
        return space.run_side(PLAIN_HOROVOD, spec, num_ranks=2, under_horovodrun=True)

    sides = {
        "one rank": lambda: space.rate(space.run_job(1, spec)),
        "fit": lambda: space.rate(space.run_side(FIT, spec)),
        "two ranks": lambda: space.rate(space.run_job(2, spec)),
        "Horovod": lambda: space.rate(plain_horovod()),
    }
    if model.with_xla:
        sides["fit, XLA"] = lambda: space.rate(space.run_side(FIT, spec, "--jit"))
    return sides
