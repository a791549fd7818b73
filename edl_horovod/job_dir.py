"""What a job's directory says about the job from outside: its settings, and whether it runs."""

import fcntl
import os
from pathlib import Path

from edl_horovod.config import resolved
from edl_horovod.config.schema import JobConfig
from edl_horovod.errors import ConfigError

__all__ = ["is_running", "read_config"]


def read_config(job_dir: Path) -> JobConfig:
    """The job's resolved settings.

    Raises:
        ConfigError: This is not the directory of a job.
    """
    path = job_dir / "config.yaml"
    if not path.is_file():
        raise ConfigError(
            f"There is no config.yaml in {job_dir}, so it is no job's directory. "
            f"Received: {str(job_dir)!r}. "
            "Give a job's directory: unless job_dir was set it is the output with .job at its end."
        )
    return resolved.load(path)


def is_running(job_dir: Path) -> bool:
    """Whether the job's launcher is alive: its process is there and holds its pid file's lock."""
    try:
        with (job_dir / "launcher.pid").open() as stream:
            os.kill(int(stream.read()), 0)
            return _is_locked(stream.fileno())
    except (FileNotFoundError, ProcessLookupError, ValueError):
        return False
    except PermissionError:
        return True


def _is_locked(descriptor: int) -> bool:
    """A number alone may be another process' by now, where the launcher was killed."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False
