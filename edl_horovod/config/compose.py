"""Compose a checked configuration from the user's settings and files, with Hydra."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from edl_horovod.config.composer import Composer, Sweeper
from edl_horovod.config.conf_files import NO_FILES, ConfigFiles
from edl_horovod.config.image import ImageConfig
from edl_horovod.config.prepare import PrepareConfig
from edl_horovod.config.schema import JobConfig
from edl_horovod.config.session import open_hydra
from edl_horovod.errors import ConfigError
from edl_horovod.files.url_secrets import without_secrets

__all__ = [
    "compose",
    "compose_as",
    "compose_sweep",
    "describe",
    "sweeper_of",
]

ConfigT = TypeVar("ConfigT", JobConfig, PrepareConfig, ImageConfig)

_STARTS: dict[type, str] = {JobConfig: "config", PrepareConfig: "prepare", ImageConfig: "image"}
"""The file of conf/ that each class starts from."""


def compose(
    task: str,
    overrides: Sequence[str] = (),
    *,
    values: Mapping[str, Any] | None = None,
    files: ConfigFiles = NO_FILES,
) -> JobConfig:
    """The configuration of a job.

    Args:
        task: `train`, `evaluate` or `predict`.
        overrides: Settings as typed in a command: `train.epochs=3`, `launch=mpi`, `params.x=[1,2]`.
        values: Keys with dots to values, which are used as they are.
        files: The user's own files of settings.

    Raises:
        ConfigError: A setting is unknown, missing, malformed or contradicts another.
    """
    with _composer(JobConfig, task, files) as composer:
        config: JobConfig = composer.config(overrides, values or {})
        return config


def compose_sweep(
    points: Sequence[tuple[Sequence[str], Mapping[str, Any]]], files: ConfigFiles
) -> list[JobConfig]:
    """The configurations of several trainings, with the same time for `${now:...}`.

    Raises:
        ConfigError: A setting is unknown, missing, malformed or contradicts another.
    """
    with _composer(JobConfig, "train", files) as composer:
        return [composer.config(overrides, values) for overrides, values in points]


def compose_as(
    config_class: type[ConfigT],
    overrides: Sequence[str] = (),
    *,
    values: Mapping[str, Any] | None = None,
    files: ConfigFiles = NO_FILES,
) -> ConfigT:
    """The configuration of a verb that starts no job, prepare or image; see `compose`.

    Raises:
        ConfigError: A setting is unknown, missing or malformed.
    """
    # The files of conf/ that these classes start from have the names of the verbs.
    with _composer(config_class, _STARTS[config_class], files) as composer:
        config: ConfigT = composer.config(overrides, values or {})
        return config


def sweeper_of(overrides: Sequence[str], for_sweeper: Sequence[str], files: ConfigFiles) -> Sweeper:
    """The settings of Hydra's sweeper, from files and a command.

    Args:
        overrides: Settings as typed in a command.
        for_sweeper: Settings of Hydra: `hydra/sweeper=optuna`, `hydra.sweeper.n_trials=30`.
        files: The user's own files of settings.

    Raises:
        ConfigError: A setting is unknown or malformed.
    """
    with _composer(JobConfig, "train", files) as composer:
        return composer.sweeper(overrides, for_sweeper)


def describe(verb: str, overrides: Sequence[str], files: ConfigFiles) -> str:
    """The composed settings as YAML, each with the source of its value.

    Interpolations are not resolved, so no environment variable is shown. Required settings may be
    missing.

    Raises:
        ConfigError: A setting is unknown or malformed.
    """
    classes: dict[str, type] = {"prepare": PrepareConfig, "image": ImageConfig}
    with _composer(classes.get(verb, JobConfig), verb, files) as composer:
        return composer.description(overrides)


@contextmanager
def _composer(config_class: type[ConfigT], verb: str, files: ConfigFiles) -> Iterator[Composer]:
    start = _STARTS[config_class]
    try:
        with open_hydra(config_class, start, files) as loader:
            yield Composer(config_class, verb, start=start, name=files.name, loader=loader)
    except ConfigError as e:
        if without_secrets(str(e)) == str(e):
            raise
        raise e.reworded(without_secrets) from None  # Its cause shows what was typed, too.
