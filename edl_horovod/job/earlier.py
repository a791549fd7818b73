"""What an earlier job or an earlier launcher left in a job's directory, and what becomes of it.

Checkpoints of an earlier job are kept, removed, or a reason to refuse the directory. A resumed
training takes its lanes from its checkpoint, because the order of records depends on them.
"""

import json
from dataclasses import replace
from pathlib import Path

from edl_horovod.config import resolved
from edl_horovod.config.schema import JobConfig
from edl_horovod.config.tasks import TASKS, num_lanes
from edl_horovod.errors import ConfigError, JobFailed, OutputError
from edl_horovod.files.safetensors_header import read_metadata
from edl_horovod.job import checkpoint_files, outcome
from edl_horovod.job.directory import JobDir
from edl_horovod.job.outcome import Success

__all__ = [
    "has_succeeded",
    "resume_hint",
    "require_same_model",
    "settle_checkpoints",
    "takeover_message",
    "with_checkpoint_lanes",
]


def require_same_model(config: JobConfig, job_dir: JobDir) -> None:
    """Refuse a directory with checkpoints or a result of another model's job.

    Raises:
        OutputError: There are such files, and overwrite is not set.
    """
    steps = checkpoint_files.steps_in(job_dir.checkpoints)
    if config.overwrite or not (steps or has_succeeded(job_dir)):
        return
    now = _model_of(config)
    try:
        before = _model_of(resolved.load(job_dir.config))
    except ConfigError as error:
        before = {job_dir.config.name: str(error)}
    if before == now:
        return
    shown = [f"{key}={value!r}" for key, value in before.items() if now.get(key) != value]
    left = f"checkpoints up to step {steps[-1]}" if steps else "its result"
    raise OutputError(
        f"The job's directory contains {left} of a job with another model: {', '.join(shown)}.",
        received={"job_dir": str(job_dir), **now},
        hint="Give another output or job_dir, or set overwrite=true to remove these files.",
    )


def settle_checkpoints(config: JobConfig, job_dir: JobDir) -> None:
    """Keep or remove an earlier training's checkpoints as `resume` and `overwrite` say.

    It must be called before other files of the earlier job are removed. Tasks without checkpoints
    leave them alone.

    Raises:
        OutputError: The checkpoints of an unfinished job would be lost, and overwrite is not set.
        ConfigError: There is no checkpoint, and resume=must.
    """
    if not TASKS[config.task].keeps_state:
        return
    steps = checkpoint_files.steps_in(job_dir.checkpoints)
    if config.resume == "must" and not steps:
        raise ConfigError(
            "There is no checkpoint to go on from.",
            received=f"resume=must, job_dir={str(job_dir)!r}",
            hint=(
                "Give the output or job_dir of the interrupted job, or resume=auto, which begins at"
                " step 0 where there is no checkpoint."
            ),
        )
    if config.resume != "never" or not job_dir.checkpoints.exists():
        return
    if steps and not config.overwrite and not has_succeeded(job_dir):
        raise OutputError(
            f"An earlier job that did not finish left checkpoints up to step {steps[-1]}.",
            received=f"resume=never, job_dir={str(job_dir)!r}",
            hint=(
                "Go on from there with resume=auto, or remove them and start over with"
                " overwrite=true."
            ),
        )
    checkpoint_files.remove_all(job_dir.checkpoints)


def resume_hint(config: JobConfig, job_dir: JobDir) -> str:
    """A line on how to continue a job that was interrupted; empty if that is not possible."""
    if not TASKS[config.task].keeps_state:
        return ""
    if not (steps := checkpoint_files.steps_in(job_dir.checkpoints)):
        return ""
    return (
        f"\nThe checkpoint of step {steps[-1]} is in {job_dir}: the same command with resume=auto"
        " goes on from there."
    )


def takeover_message(config: JobConfig, job_dir: JobDir) -> str:
    """Where a job goes on whose launcher was lost together with its ring, as a clause."""
    if has_succeeded(job_dir):
        return "an earlier launcher was lost when the job was done already"
    lost = "an earlier launcher of this job was lost, and its ring with it"
    if not TASKS[config.task].keeps_state:
        return f"{lost}; {config.task} begins again"
    if steps := checkpoint_files.steps_in(job_dir.checkpoints):
        return f"{lost}; training goes on from the checkpoint of step {steps[-1]}"
    return (
        f"{lost}, before there was a checkpoint; training begins at step 0 again "
        f"(checkpoint.every_seconds={config.checkpoint.every_seconds:g}, "
        f"checkpoint.every_steps={config.checkpoint.every_steps})"
    )


def has_succeeded(job_dir: JobDir) -> bool:
    """Whether the earlier job finished with a result, so that its checkpoints may be removed."""
    try:
        return isinstance(outcome.load(job_dir.result), Success)
    except (OSError, JobFailed):
        return False


def with_checkpoint_lanes(config: JobConfig) -> JobConfig:
    """The settings with the lanes of the job's newest checkpoint, unless the user set lanes.

    This lets a job go on with another launch.np or elastic.max_np. Launcher, coordinator and ranks
    each call it and get the same result: all checkpoints in a job's directory have the same lanes.
    """
    may_choose = config.data_plan.lanes == 0 and config.resume != "never"
    if not may_choose or not TASKS[config.task].keeps_state:
        return config
    saved_lanes = _checkpoint_lanes(JobDir.of(config).checkpoints, config)
    if not saved_lanes or saved_lanes == num_lanes(config):
        return config
    return replace(config, data_plan=replace(config.data_plan, lanes=saved_lanes))


def _model_of(config: JobConfig) -> dict[str, str]:
    """The settings that name a job's task and model; jobs that differ in them share no files."""
    if not TASKS[config.task].takes_zoo:
        return {"task": config.task, "trained_model": config.trained_model}
    zoo = config.model_zoo_source or config.model_zoo
    return {"task": config.task, "model_zoo": zoo, "model_def": config.model_def}


def _checkpoint_lanes(folder: Path, config: JobConfig) -> int:
    """The lanes of the newest readable checkpoint; 0 if there is none with this batch size."""
    batch = config.train.batch_size, config.elastic.batching
    for step in reversed(checkpoint_files.steps_in(folder)):
        try:
            with checkpoint_files.path_of(folder, step).open("rb") as stream:
                facts = json.loads(read_metadata(stream)["facts"])
            saved = facts["train.batch_size"], facts.get("elastic.batching", "global")
            # The training refuses a checkpoint with another batch size, so its lanes do not count.
            return int(facts["data_plan.lanes"]) if saved == batch else 0
        except (OSError, ValueError, KeyError, TypeError):
            continue  # Damaged, or just removed: the ranks use the previous checkpoint, too.
    return 0
