"""What an earlier job, or an earlier launcher of the same one, left in a job's directory."""

from edl_horovod.config import resolved
from edl_horovod.config.schema import JobConfig
from edl_horovod.config.tasks import TASKS
from edl_horovod.errors import ConfigError, JobFailed, OutputError
from edl_horovod.job import checkpoint_files, outcome
from edl_horovod.job.directory import JobDir
from edl_horovod.job.outcome import Success

__all__ = [
    "has_ended_well",
    "how_to_go_on",
    "require_same_model",
    "settle_checkpoints",
    "where_it_goes_on",
]


def require_same_model(config: JobConfig, job_dir: JobDir) -> None:
    """Refuse to take the directory from another model's job that left something of use there.

    Raises:
        OutputError: It is there, and no setting says that it may go.
    """
    steps = checkpoint_files.steps_in(job_dir.checkpoints)
    if config.overwrite or not (steps or has_ended_well(job_dir)):
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
        f"The job's directory is that of another model's job, which left {left} there:"
        f" {', '.join(shown)}.",
        received={"job_dir": str(job_dir), **now},
        hint="Give another output or job_dir, or overwrite=true if what is there may go.",
    )


def settle_checkpoints(config: JobConfig, job_dir: JobDir) -> None:
    """Keep an earlier training's checkpoints, remove them, or refuse to do either.

    Called before anything else of the earlier job is removed; other tasks leave them alone.

    Raises:
        OutputError: They would be lost, and no setting says that they may be.
        ConfigError: There must be some, and there are none.
    """
    if not TASKS[config.task].keeps_state:
        return
    steps = checkpoint_files.steps_in(job_dir.checkpoints)
    if config.resume == "must" and not steps:
        raise ConfigError(
            "There is no checkpoint to go on from.",
            received=f"resume=must, job_dir={str(job_dir)!r}",
            hint=(
                "Give the output or job_dir of the job that was ended, or resume=auto, which begins"
                " at step 0 where there is none."
            ),
        )
    if config.resume != "never" or not job_dir.checkpoints.exists():
        return
    if steps and not config.overwrite and not has_ended_well(job_dir):
        raise OutputError(
            f"An earlier job that did not end well left checkpoints up to step {steps[-1]}.",
            received=f"resume=never, job_dir={str(job_dir)!r}",
            hint=(
                "Go on from there with resume=auto, or remove them and start over with"
                " overwrite=true."
            ),
        )
    checkpoint_files.remove_all(job_dir.checkpoints)


def how_to_go_on(config: JobConfig, job_dir: JobDir) -> str:
    """What to do to continue a job that ended before its end, as a line; empty if it cannot."""
    if not TASKS[config.task].keeps_state:
        return ""
    if not (steps := checkpoint_files.steps_in(job_dir.checkpoints)):
        return ""
    return (
        f"\nThe checkpoint of step {steps[-1]} is in {job_dir}: the same command with resume=auto"
        " goes on from there."
    )


def where_it_goes_on(config: JobConfig, job_dir: JobDir) -> str:
    """What is left of a job whose launcher was lost together with its ring, for people."""
    if has_ended_well(job_dir):
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


def has_ended_well(job_dir: JobDir) -> bool:
    """Whether the earlier job delivered its result, so that its checkpoints may go."""
    try:
        return isinstance(outcome.load(job_dir.result), Success)
    except (OSError, JobFailed):
        return False


def _model_of(config: JobConfig) -> dict[str, str]:
    """What a job works on: two jobs that differ in it have nothing in common."""
    if not TASKS[config.task].takes_zoo:
        return {"task": config.task, "trained_model": config.trained_model}
    zoo = config.model_zoo_source or config.model_zoo
    return {"task": config.task, "model_zoo": zoo, "model_def": config.model_def}
