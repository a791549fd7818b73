"""The verbs as Python calls, on which the command line is a thin layer.

A call runs the job's processes and returns when they have ended. It works from any thread, under a
running event loop, in a notebook and inside a larger program: it does not change logging, the
working directory, Hydra's state or signal handlers.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from edl_horovod.config.keywords import from_keywords
from edl_horovod.config.schema import ImageConfig, JobConfig, PrepareConfig
from edl_horovod.displays.terminal import open_terminal
from edl_horovod.errors import Interrupted
from edl_horovod.job.events import OnEvents
from edl_horovod.launch import target

if TYPE_CHECKING:
    from edl_horovod.image import BuiltImage
    from edl_horovod.launch.target import SubmittedJob
    from edl_horovod.preparation import PrepareResult
    from edl_horovod.supervisor.forks import WarmServer
    from edl_horovod.supervisor.run import JobResult
    from edl_horovod.sweeps.run import SweepResult

FilePath = str | os.PathLike[str]
Files = FilePath | Sequence[FilePath]
"""A path, a glob, several of them with commas between, or a list of them."""
Params = str | Mapping[str, Any]
"""`"hidden_units=[10, 100], learning_rate=0.01"`, or the same as a dict."""
OnProgress = Callable[[int, int, int], None]
"""Called with the number of finished input files, of all input files, and of records so far."""


def train(
    *,
    data: Files,
    output: FilePath,
    model_def: str | None = None,
    model_zoo: FilePath | None = None,
    params: Params | None = None,
    input_fn: str | None = None,
    loss: str | None = None,
    optimizer: str | None = None,
    validation_data: Files | None = None,
    overwrite: bool | None = None,
    progress: bool = False,
    on_events: OnEvents | None = None,
    **settings: Any,
) -> "JobResult":
    """Train a model of a model zoo.

    Args:
        data: Input files.
        output: Directory that will hold the trained model.
        model_def: Which model in the zoo: `file`, `folder.file` or `file.Symbol`.
        model_zoo: Folder of model files, one file, or a Git URL; None means `model_zoo` in the
            working directory.
        params: Parameters of the model.
        input_fn: A function of the zoo that parses the records, instead of the model's own.
        loss: A function of the zoo or a loss of Keras, instead of the model's own.
        optimizer: A function of the zoo or an optimizer of Keras, instead of the model's own.
        validation_data: Files to evaluate on during training.
        overwrite: Whether an earlier result may be replaced; nothing else ever is.
        progress: Show the progress of the job on stderr.
        on_events: Called with the job's new events while it runs.
        settings: All other settings, as in `edl train`: `train={"epochs": 3}`, or
            `**{"train.epochs": 3}`. Values may be strings.

    Raises:
        EdlError: A subclass says what went wrong; `Interrupted` after Ctrl-C.
    """
    values = _without_none(
        model_def=model_def,
        data=data,
        output=output,
        model_zoo=model_zoo,
        params=params,
        input_fn=input_fn,
        loss=loss,
        optimizer=optimizer,
        validation_data=validation_data,
        overwrite=overwrite,
    )
    return _run_job("train", values | settings, on_events, progress)


def evaluate(
    *,
    trained_model: FilePath,
    data: Files,
    output: FilePath | None = None,
    overwrite: bool | None = None,
    progress: bool = False,
    on_events: OnEvents | None = None,
    **settings: Any,
) -> "JobResult":
    """Compute the metrics of a trained model.

    Args:
        trained_model: Directory that `train` wrote.
        data: Input files.
        output: Directory for `metrics.json`; None keeps the metrics in the result alone.
        overwrite: Whether an earlier result may be replaced; nothing else ever is.
        progress: Show the progress of the job on stderr.
        on_events: Called with the job's new events while it runs.
        settings: All other settings, as in `edl evaluate`.

    Raises:
        EdlError: A subclass says what went wrong; `Interrupted` after Ctrl-C.
    """
    values = _without_none(
        trained_model=trained_model, data=data, output=output, overwrite=overwrite
    )
    return _run_job("evaluate", values | settings, on_events, progress)


def predict(
    *,
    trained_model: FilePath,
    data: Files,
    output: FilePath | None = None,
    overwrite: bool | None = None,
    progress: bool = False,
    on_events: OnEvents | None = None,
    **settings: Any,
) -> "JobResult":
    """Write what a trained model predicts.

    Args:
        trained_model: Directory that `train` wrote.
        data: Input files.
        output: Directory for the predictions, or one file that ends in `.recordio`; None where the
            model's file has a `PredictionOutputsProcessor` that takes them.
        overwrite: Whether an earlier result may be replaced; nothing else ever is.
        progress: Show the progress of the job on stderr.
        on_events: Called with the job's new events while it runs.
        settings: All other settings, as in `edl predict`.

    Raises:
        EdlError: A subclass says what went wrong; `Interrupted` after Ctrl-C.
    """
    values = _without_none(
        trained_model=trained_model, data=data, output=output, overwrite=overwrite
    )
    return _run_job("predict", values | settings, on_events, progress)


def prepare(
    *,
    model_def: str,
    data: Files,
    output: FilePath,
    model_zoo: FilePath | None = None,
    overwrite: bool | None = None,
    progress: bool = False,
    on_progress: OnProgress | None = None,
    **settings: Any,
) -> "PrepareResult":
    """Turn your own files into RecordIO files.

    Args:
        model_def: Where `prepare_data_for_a_single_file` is in the zoo.
        data: Input files.
        output: Directory that will hold the RecordIO files.
        model_zoo: Folder of model files, one file, or a Git URL; None means `model_zoo` in the
            working directory.
        overwrite: Whether an earlier result may be replaced; nothing else ever is.
        progress: Show the progress on stderr.
        on_progress: Called now and then with the number of finished input files, of all input
            files, and of records so far.
        settings: All other settings, as in `edl prepare`.

    Raises:
        EdlError: A subclass says what went wrong; `Interrupted` after Ctrl-C.
    """
    from edl_horovod.config.compose import compose_as
    from edl_horovod.displays.terminal import prepare_events

    values = _without_none(
        model_def=model_def, data=data, output=output, model_zoo=model_zoo, overwrite=overwrite
    )
    overrides, values = from_keywords(values | settings, PrepareConfig)
    config = compose_as(PrepareConfig, overrides, values=values)
    with open_terminal(is_quiet=not progress, unit="files") as show:
        shown = prepare_events(show) if progress else None
        return run_prepare(config, on_progress=_combined(on_progress, shown))


def build_image(*, push: bool = False, **settings: Any) -> "BuiltImage":
    """Build the image of a model zoo.

    Args:
        push: Whether to push it to its registry; then the result has its digest.
        settings: As in `edl image`: `base_image`, `image_repository`, `model_zoo`.

    Raises:
        EdlError: A subclass says what went wrong.
    """
    from edl_horovod import image
    from edl_horovod.config.compose import compose_as

    overrides, values = from_keywords(settings, ImageConfig)
    config = compose_as(ImageConfig, overrides, values=values)
    return image.build(config, push=push)


def sweep(
    over: Mapping[str, Sequence[Any]],
    *,
    model_def: str | None = None,
    data: Files | None = None,
    output: FilePath,
    progress: bool = False,
    on_events: OnEvents | None = None,
    **settings: Any,
) -> "SweepResult":
    """Train with every combination of some settings, one job after another.

    Each job has its own folder in `output`, where `sweep.json` and `sweep.csv` list all results.
    A job that fails does not stop the others. Another call skips finished jobs.

    Args:
        over: Keys to the values that each takes:
            `{"train.learning_rate": [0.1, 0.01], "params.hidden_units": [[10], [20]]}`.
        model_def: Which model in the zoo, unless it is in `over`.
        data: Input files, unless they are in `over`.
        output: Folder of the results.
        progress: Show the progress of the job on stderr.
        on_events: Called with the new events of the job that runs.
        settings: All other settings, the same for all jobs, as in `train`.

    Raises:
        EdlError: The sweep cannot start; `Interrupted` after Ctrl-C. A job's error is in its row.
    """
    from edl_horovod.config.sweep import product
    from edl_horovod.sweeps import run as sweeps

    values = _without_none(model_def=model_def, data=data, output=output)
    overrides, values = from_keywords(values | settings, JobConfig)
    plan = sweeps.make_plan(product(overrides, values, over))

    def run_job(job: "sweeps.SweepJob", config: JobConfig) -> None:
        _run_shown(config, on_events, progress)

    result = sweeps.run(plan, run_job)
    if result.is_interrupted:
        raise Interrupted(
            f"The sweep was interrupted. {result.output}/sweep.json lists the finished jobs; "
            "repeat the call to run the others."
        )
    return result


def submit(task: str, **settings: Any) -> "SubmittedJob":
    """Submit a job to a cluster, as the command does; returns once it exists.

    Args:
        task: `train`, `evaluate` or `predict`.
        settings: As in `train`, for instance `data=..., launch={"kind": "slurm"}`. Without a launch
            target that jobs are submitted to, it is `target.SUBMITTED`.

    Raises:
        EdlError: The job was not created; its objects were removed, or the message names those
            that are left.
    """
    from edl_horovod.config.compose import compose

    overrides, values = from_keywords(settings, JobConfig)
    config = compose(task, overrides, values=values)
    if not target.find(config.launch.kind).is_detached:
        config = replace(config, launch=replace(config.launch, kind=target.SUBMITTED))
    launcher = target.target_of(config)
    submitted: SubmittedJob = launcher.launch(launcher.plan(config))
    return submitted


def run(
    config: JobConfig, *, on_events: OnEvents | None = None, warm: "WarmServer | None" = None
) -> "JobResult":
    """Run a job with composed settings.

    Args:
        config: All settings.
        on_events: Called with the job's new events while it runs.
        warm: Keeps the processes from which workers are forked, for several jobs of a program.

    Raises:
        EdlError: A subclass says what went wrong.
    """
    target.require_attached(config)
    launcher = target.target_of(config)
    try:
        result: JobResult = launcher.launch(launcher.plan(config), on_events=on_events, warm=warm)
        return result
    except KeyboardInterrupt as error:
        # Ctrl-C before the job began, or a second Ctrl-C while it was ending.
        raise Interrupted("The job was interrupted.") from error


def run_prepare(config: PrepareConfig, *, on_progress: OnProgress | None = None) -> "PrepareResult":
    """Prepare records with composed settings.

    Args:
        config: All settings.
        on_progress: Called now and then with the number of finished input files, of all input
            files, and of records so far.

    Raises:
        EdlError: A subclass says what went wrong.
    """
    from edl_horovod import preparation as data_prepare
    from edl_horovod.models import git_zoo

    try:
        zoo = git_zoo.ensure_local(config.model_zoo)
        return data_prepare.run(replace(config, model_zoo=str(zoo.path)), on_progress)
    except KeyboardInterrupt as error:
        raise Interrupted("prepare was interrupted, and all its processes have ended.") from error


def _run_job(
    task: str, settings: dict[str, Any], on_events: OnEvents | None, progress: bool
) -> "JobResult":
    from edl_horovod.config.compose import compose

    overrides, values = from_keywords(settings, JobConfig)
    return _run_shown(compose(task, overrides, values=values), on_events, progress)


def _run_shown(config: JobConfig, on_events: OnEvents | None, progress: bool) -> "JobResult":
    with open_terminal(is_quiet=not progress) as show:
        return run(config, on_events=_combined(on_events, show if progress else None))


def _combined(*hooks: Callable[..., None] | None) -> Callable[..., None] | None:
    """A function that calls all hooks that are not None; None if all are None."""
    present = [hook for hook in hooks if hook is not None]

    def call(*values: Any) -> None:
        for hook in present:
            hook(*values)

    return call if present else None


def _without_none(**named: Any) -> dict[str, Any]:
    """The named settings of a call, without those that are None."""
    return {key: value for key, value in named.items() if value is not None}
