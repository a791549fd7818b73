"""Defaults of TRAIN for the length of a training and the size of its steps."""

from collections.abc import Collection
from dataclasses import fields, is_dataclass, replace
from typing import Any

from edl_horovod.config.compose import compose
from edl_horovod.config.schema import EarlyStoppingConfig, JobConfig, TrainConfig
from edl_horovod.supervisor.run import JobResult

__all__ = ["LEAST_ROWS", "bound_in_words", "default_values", "schedule_in_words"]

LEAST_ROWS = 30
"""With fewer rows, a tenth of them would say nothing, so none are held back."""
GROUP = "until_best"
"""The option of the config group `train` that statements start from."""
STEPS_WITHOUT_VALIDATION = 300
STEPS_OF_EPOCH = 500
"""The maximum number of steps per epoch: larger tables get larger batches, so that evaluations
stay cheap in comparison."""
LARGEST_BATCH = 8_192
_BOUNDS = ("epochs", "max_steps", "max_seconds")
_CLASS_DEFAULTS = TrainConfig()


def default_values(
    config: JobConfig, set_keys: Collection[str], *, num_rows: int, has_validation: bool
) -> dict[str, Any]:
    """The defaults of statements where they differ from those of `edl train`.

    Args:
        config: The composed settings.
        set_keys: Keys that the statement or the command line sets. Values that differ from the
            defaults of `edl train` also count as set, so that a user's files are respected.
        num_rows: The number of rows to learn from; 0 if it is not known yet.
        has_validation: Whether there are rows for the validation.

    Returns:
        Values by keys with dots.
    """
    train, defaults = config.train, _statement_defaults()
    if not has_validation:
        defaults = replace(
            defaults,
            early_stopping=EarlyStoppingConfig(),
            evaluate_steps=0,
            max_seconds=0.0,
            max_steps=STEPS_WITHOUT_VALIDATION,
        )
    if any(_is_set(train, name, set_keys) for name in _BOUNDS):
        # A bound that the user sets is the only one.
        defaults = replace(defaults, max_steps=0, max_seconds=0.0)
    ranks = max(config.launch.np, config.elastic.max_np or 1)
    defaults = replace(defaults, batch_size=_batch_size(defaults.batch_size, num_rows, ranks))
    return _unset_values(train, defaults, "train", set_keys)


def schedule_in_words(config: JobConfig, num_rows: int) -> str:
    """A sentence about the steps of a training and its maximum length.

    Args:
        config: The settings of the training.
        num_rows: The number of rows to learn from.
    """
    train, defaults = config.train, _statement_defaults()
    bounds = [f"{train.epochs:,} epochs"] if train.epochs != defaults.epochs else []
    bounds += [f"{train.max_steps:,} steps"] if train.max_steps else []
    bounds += [f"{train.max_seconds:,.0f} s"] if train.max_seconds else []
    bound = " or ".join(bounds)
    steps = f"{num_rows:,} rows are learned from, {train.batch_size:,} in each step"
    stopping = train.early_stopping
    if not stopping.metric:
        return f"{steps}, for {bound}."
    interval = (
        f"every {train.evaluate_steps:,} steps" if train.evaluate_steps else "after each epoch"
    )
    return (
        f"{steps}, until the {stopping.metric} on the rows held back, measured {interval}, has not"
        f" improved {stopping.patience} times in a row; for {bound} at most."
    )


def bound_in_words(config: JobConfig, result: JobResult) -> str:
    """A sentence if a training ended at a bound while it still improved; else empty."""
    train = config.train
    if not train.early_stopping.metric:
        return ""
    if train.max_steps and result.steps >= train.max_steps:
        key, bound = "train.max_steps", f"{train.max_steps:,} steps"
    elif train.max_seconds and result.seconds >= train.max_seconds:
        key, bound = "train.max_seconds", f"{train.max_seconds:,.0f} s"
    else:
        return ""
    return f"The training ended after {bound}, while it still improved: raise {key} to go on."


def _statement_defaults() -> TrainConfig:
    """The section `train` that statements start from, as conf/ defines it."""
    required = {"data": "rows", "validation_data": "rows", "output": "model", "model_def": "some"}
    return compose("train", [f"train={GROUP}"], values=required).train


def _batch_size(smallest: int, num_rows: int, num_ranks: int) -> int:
    size = smallest
    while size < num_ranks or (size < LARGEST_BATCH and num_rows > size * STEPS_OF_EPOCH):
        size *= 2
    return size


def _is_set(train: TrainConfig, name: str, set_keys: Collection[str]) -> bool:
    return f"train.{name}" in set_keys or getattr(train, name) != getattr(_CLASS_DEFAULTS, name)


def _unset_values(
    section: Any, defaults: Any, prefix: str, set_keys: Collection[str]
) -> dict[str, Any]:
    """The values of `defaults` for fields of a section that the user has not set, by keys."""
    values: dict[str, Any] = {}
    for field in fields(section):
        key, value = f"{prefix}.{field.name}", getattr(section, field.name)
        if is_dataclass(value):
            values |= _unset_values(value, getattr(defaults, field.name), key, set_keys)
        elif value == field.default != getattr(defaults, field.name) and key not in set_keys:
            values[key] = getattr(defaults, field.name)
    return values
