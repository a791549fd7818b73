"""The settings of a search by Optuna: `hydra.sweeper` with `hydra/sweeper=optuna`."""

from dataclasses import dataclass, field

from edl_horovod.config.checks import check_choice, check_given, check_least

__all__ = ["SAMPLERS", "SamplerConfig", "SearchConfig"]

SAMPLERS = ("tpe", "random")


@dataclass(frozen=True, kw_only=True)
class SamplerConfig:
    """How the next values are chosen."""

    name: str = "tpe"
    """`tpe` learns from earlier jobs; `random` does not."""
    seed: int | None = None
    """Seed of the choice; null makes every search different."""

    def __post_init__(self) -> None:
        check_choice("hydra/sweeper/sampler", self.name, SAMPLERS)


@dataclass(frozen=True, kw_only=True)
class SearchConfig:
    """The objective of a search, and its number of jobs."""

    metric: str = "loss"
    """The number of the last evaluation on validation_data to optimize: `loss` or a metric."""
    direction: str = "minimize"
    """`minimize` or `maximize`."""
    n_trials: int = 20
    """Total number of jobs in the study, including jobs of earlier commands."""
    sampler: SamplerConfig = field(default_factory=SamplerConfig)

    def __post_init__(self) -> None:
        check_given("hydra.sweeper.metric", self.metric, "a number of the evaluations")
        check_choice("hydra.sweeper.direction", self.direction, ("minimize", "maximize"))
        check_least("hydra.sweeper", self, n_trials=1)
