"""What becomes of the checkpoints that a job finds in its directory."""

import json
from pathlib import Path

from edl_horovod.config.schema import JobConfig
from edl_horovod.errors import ConfigError, OutputError
from edl_horovod.job import checkpoint_files

__all__ = ["has_ended_well", "settle", "where_it_goes_on"]


def settle(config: JobConfig, job_dir: Path) -> None:
    """Keep an earlier job's checkpoints, remove them, or refuse to do either.

    Called before anything else of the earlier job is removed.

    Args:
        config: The new job.
        job_dir: Its directory, which no other job uses now.

    Raises:
        OutputError: They would be lost and nobody said that they may be.
        ConfigError: There must be some, and there are none.
    """
    folder = checkpoint_files.folder_of(job_dir)
    steps = checkpoint_files.steps_in(folder)
    if config.resume == "must" and not steps:
        raise ConfigError(
            f"There is no checkpoint to go on from. Received: resume=must, job_dir="
            f"{str(job_dir)!r}. Give the output or job_dir of the job that was ended, or "
            "resume=auto, which begins at step 0 where there is none."
        )
    if config.resume != "never" or not folder.exists():
        return
    if steps and not config.overwrite and not has_ended_well(job_dir):
        raise OutputError(
            "An earlier job that did not end well left checkpoints. Received: resume=never, "
            f"job_dir={str(job_dir)!r} with checkpoints up to step {steps[-1]}. Go on from there "
            "with resume=auto, or remove them and begin anew with overwrite=true."
        )
    checkpoint_files.remove_all(folder)


def where_it_goes_on(config: JobConfig, job_dir: Path) -> str:
    """What is left of a job whose launcher was lost with the ring that it had started, for people.

    Args:
        config: The job.
        job_dir: Its directory.
    """
    if has_ended_well(job_dir):
        return "an earlier launcher was lost when the job was done already"
    lost = "an earlier launcher of this job was lost, and its ring with it"
    if config.task != "train":
        return f"{lost}; {config.task} begins again"
    if steps := checkpoint_files.steps_in(checkpoint_files.folder_of(job_dir)):
        return f"{lost}; training goes on from the checkpoint of step {steps[-1]}"
    return (
        f"{lost}, before there was a checkpoint; training begins at step 0 again "
        f"(checkpoint.every_seconds={config.checkpoint.every_seconds:g}, "
        f"checkpoint.every_steps={config.checkpoint.every_steps})"
    )


def has_ended_well(job_dir: Path) -> bool:
    """Whether the earlier job delivered its result, so that its checkpoints may go.

    Args:
        job_dir: Of that job.
    """
    try:
        result = json.loads((job_dir / "result.json").read_text())
    except (OSError, ValueError):
        return False
    return bool(result.get("state") == "finished")
