"""The verbs as Python calls; the command line is a thin skin over them."""

import os
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from edl_horovod.config import params as params_text
from edl_horovod.config.fields import settings
from edl_horovod.errors import ConfigError

if TYPE_CHECKING:
    from edl_horovod.config.schema import JobConfig, PrepareConfig
    from edl_horovod.data.prepare import PrepareResult
    from edl_horovod.launch import JobResult

__all__ = [
    "OnEvents",
    "OnProgress",
    "evaluate",
    "predict",
    "prepare",
    "run",
    "run_prepare",
    "train",
]

OnEvents = Callable[[list[dict[str, Any]]], None]
"""Called with the job's new events (`edl_horovod.events`), again and again while it runs."""
OnProgress = Callable[[int, int], None]
"""Called with what is done and what there is to do."""


def train(*, on_events: OnEvents | None = None, **keywords: Any) -> "JobResult":
    """Train a model of a model zoo.

    Args:
        on_events: Called with the job's new events while it runs.
        keywords: Settings, as in `edl train`: `model_def="mnist"`; `params="hidden_units=[10]"` or
            a dict; `train={"epochs": 3}` or `**{"train.epochs": 3}`. Values may be strings.

    Raises:
        EdlError: A subclass says what went wrong.
    """
    return _run_job("train", keywords, on_events)


def evaluate(*, on_events: OnEvents | None = None, **keywords: Any) -> "JobResult":
    """Evaluate a trained model: `trained_model=..., data=...`.

    Args:
        on_events: Called with the job's new events while it runs.
        keywords: Settings, as in `edl evaluate`.

    Raises:
        EdlError: A subclass says what went wrong.
    """
    return _run_job("evaluate", keywords, on_events)


def predict(*, on_events: OnEvents | None = None, **keywords: Any) -> "JobResult":
    """Predict with a trained model: `trained_model=..., data=..., output=...`.

    Args:
        on_events: Called with the job's new events while it runs.
        keywords: Settings, as in `edl predict`.

    Raises:
        EdlError: A subclass says what went wrong.
    """
    return _run_job("predict", keywords, on_events)


def prepare(*, on_progress: OnProgress | None = None, **keywords: Any) -> "PrepareResult":
    """Turn input files into RecordIO files: `data=..., output=..., model_def=...`.

    Args:
        on_progress: Called with the number of input files that are done, and of all.
        keywords: Settings, as in `edl prepare`.

    Raises:
        EdlError: A subclass says what went wrong.
    """
    from edl_horovod.config.compose import compose_prepare
    from edl_horovod.config.schema import PrepareConfig

    config = compose_prepare(_overrides(keywords, PrepareConfig))
    return run_prepare(config, on_progress=on_progress)


def run(config: "JobConfig", *, on_events: OnEvents | None = None) -> "JobResult":
    """Run a job whose settings are composed already.

    Args:
        config: All settings.
        on_events: Called with the job's new events while it runs.

    Raises:
        EdlError: A subclass says what went wrong.
    """
    from edl_horovod import launch

    return launch.run(config, on_events=on_events)


def run_prepare(
    config: "PrepareConfig", *, on_progress: OnProgress | None = None
) -> "PrepareResult":
    """Prepare with settings that are composed already.

    Args:
        config: All settings.
        on_progress: Called with the number of input files that are done, and of all.

    Raises:
        EdlError: A subclass says what went wrong.
    """
    from edl_horovod.data import prepare as data_prepare

    return data_prepare.run(config, on_progress)


def _run_job(task: str, keywords: dict[str, Any], on_events: OnEvents | None) -> "JobResult":
    from edl_horovod.config.compose import compose
    from edl_horovod.config.schema import JobConfig

    return run(compose(task, _overrides(keywords, JobConfig)), on_events=on_events)


def _overrides(keywords: dict[str, Any], config_class: type) -> list[str]:
    """The settings as a user would have typed them in a command."""
    texts = {setting.key for setting in settings(config_class) if setting.annotation is str}
    return [f"{key}={_typed(key, value, key in texts)}" for key, value in _flat(keywords, "")]


def _flat(keywords: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in keywords.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping) and key.partition(".")[0] != "params":
            yield from _flat(value, f"{key}.")
        else:
            yield key, value


def _typed(key: str, value: Any, is_text: bool) -> str:
    if key == "params" and isinstance(value, Mapping):
        return params_text.format(dict(value))
    if key.startswith("params."):
        return params_text.format({key.rpartition(".")[2]: value}).partition("=")[2]
    if isinstance(value, str | os.PathLike):
        return os.fspath(value)
    if isinstance(value, int | float):
        return str(value)
    if value is None and not is_text:
        return "null"
    raise ConfigError(
        f"{key} must be {'text' if is_text else 'text, a number, True, False, None or a dict'}. "
        f"Received: {key}={value!r} ({type(value).__name__})."
    )
