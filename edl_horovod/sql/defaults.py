"""How long and in which steps a TRAIN trains, where neither it nor the command says so."""

from collections.abc import Collection
from dataclasses import fields, is_dataclass, replace
from typing import Any

from edl_horovod.config.compose import compose
from edl_horovod.config.schema import EarlyStoppingConfig, JobConfig, TrainConfig
from edl_horovod.supervisor.run import JobResult

__all__ = ["LEAST_ROWS", "bound_in_words", "default_values", "schedule_in_words"]

LEAST_ROWS = 30
"""With fewer, a tenth of the rows says nothing, and all are learned from."""
GROUP = "until_best"
"""The choice of `train` that statements start from."""
STEPS_WITHOUT_VALIDATION = 300
STEPS_OF_EPOCH = 500
"""An epoch of more steps has larger ones instead, so that evaluations stay cheap beside it."""
LARGEST_BATCH = 8_192
_BOUNDS = ("epochs", "max_steps", "max_seconds")
_TYPED = TrainConfig()


def default_values(
    config: JobConfig, given: Collection[str], *, num_rows: int, has_validation: bool
) -> dict[str, Any]:
    """What statements start from in place of the settings that the user does not give.

    Args:
        config: As it was composed.
        given: Keys that a statement or a command sets. What differs from the defaults of
            `edl train` counts, too, so that a user's own files are respected.
        num_rows: Rows to learn from; 0 where they are not known yet.
        has_validation: Whether there are rows for the validation.

    Returns:
        Values by keys with dots.
    """
    train, standard = config.train, _standard()
    if not has_validation:
        standard = replace(
            standard,
            early_stopping=EarlyStoppingConfig(),
            evaluate_steps=0,
            max_seconds=0.0,
            max_steps=STEPS_WITHOUT_VALIDATION,
        )
    if any(_is_given(train, name, given) for name in _BOUNDS):
        # What the user bounds is bounded by nothing else.
        standard = replace(standard, max_steps=0, max_seconds=0.0)
    ranks = max(config.launch.np, config.elastic.max_np or 1)
    standard = replace(standard, batch_size=_batch_size(standard.batch_size, num_rows, ranks))
    return _missing(train, standard, "train", given)


def schedule_in_words(config: JobConfig, num_rows: int) -> str:
    """A sentence about how long a training takes at most, and about its steps.

    Args:
        config: Of the training.
        num_rows: Rows to learn from.
    """
    train, standard = config.train, _standard()
    bounds = [f"{train.epochs:,} epochs"] if train.epochs != standard.epochs else []
    bounds += [f"{train.max_steps:,} steps"] if train.max_steps else []
    bounds += [f"{train.max_seconds:,.0f} s"] if train.max_seconds else []
    most = " or ".join(bounds)
    steps = f"{num_rows:,} rows are learned from, {train.batch_size:,} in each step"
    stopping = train.early_stopping
    if not stopping.metric:
        return f"{steps}, for {most}."
    every = f"every {train.evaluate_steps:,} steps" if train.evaluate_steps else "after each epoch"
    return (
        f"{steps}, until the {stopping.metric} on the rows held back, measured {every}, has not"
        f" got better {stopping.patience} times in a row; for {most} at most."
    )


def bound_in_words(config: JobConfig, result: JobResult) -> str:
    """A sentence where a training ended at a bound before it stopped getting better; else empty."""
    train = config.train
    if not train.early_stopping.metric:
        return ""
    if train.max_steps and result.steps >= train.max_steps:
        key, most = "train.max_steps", f"{train.max_steps:,} steps"
    elif train.max_seconds and result.seconds >= train.max_seconds:
        key, most = "train.max_seconds", f"{train.max_seconds:,.0f} s"
    else:
        return ""
    return f"The training ended after {most}, while it still got better: {key} may allow more."


def _standard() -> TrainConfig:
    """The group of conf/ that statements start from."""
    some = {"data": "rows", "validation_data": "rows", "output": "model", "model_def": "some"}
    return compose("train", [f"train={GROUP}"], values=some).train


def _batch_size(least: int, num_rows: int, num_ranks: int) -> int:
    size = least
    while size < num_ranks or (size < LARGEST_BATCH and num_rows > size * STEPS_OF_EPOCH):
        size *= 2
    return size


def _is_given(train: TrainConfig, name: str, given: Collection[str]) -> bool:
    return f"train.{name}" in given or getattr(train, name) != getattr(_TYPED, name)


def _missing(ours: Any, standard: Any, prefix: str, given: Collection[str]) -> dict[str, Any]:
    """The values of another section where this one has defaults that nobody gave."""
    found: dict[str, Any] = {}
    for field in fields(ours):
        key, value = f"{prefix}.{field.name}", getattr(ours, field.name)
        if is_dataclass(value):
            found |= _missing(value, getattr(standard, field.name), key, given)
        elif value == field.default != getattr(standard, field.name) and key not in given:
            found[key] = getattr(standard, field.name)
    return found
