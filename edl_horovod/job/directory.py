"""What a job's directory says about the job from outside: its settings, and whether it runs."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from edl_horovod.config import resolved
from edl_horovod.config.schema import JobConfig
from edl_horovod.errors import ConfigError, OutputError, cure_of
from edl_horovod.files import marker

__all__ = ["claim", "enter", "is_running", "read_config", "writing"]

KIND = "job"
_WRITTEN_BY_WORKERS = (
    "events.jsonl",
    "result.json",
    "checkpoints",
    "ledger",
    "segments",
    "segments.done",
)


def claim(job_dir: Path) -> None:
    """Make a job's directory, or take one that is empty or was a job's before.

    Raises:
        OutputError: It holds something, and nothing says that it is a job's; or it cannot be
            written.
    """
    with writing(job_dir):
        marker.claim(job_dir, KIND, received=f"job_dir={str(job_dir)!r}")


def enter(job_dir: Path, config_file: Path) -> None:
    """Claim a job's directory for a process that may be there before its launcher, or without one.

    Under plain horovodrun the user makes the directory, with the job's config.yaml in it.

    Args:
        job_dir: The directory.
        config_file: The one that the process was started with.

    Raises:
        OutputError: It holds something else than that, and nothing says that it is a job's; or it
            cannot be written.
    """
    with writing(job_dir):
        is_prepared = config_file.parent.resolve() == job_dir.resolve()
        there = {path.name for path in job_dir.iterdir()} if is_prepared else set()
        received = f"job_dir={str(job_dir)!r}"
        marker.claim(job_dir, KIND, received=received, may_hold=there - {*_WRITTEN_BY_WORKERS})


@contextlib.contextmanager
def writing(job_dir: Path) -> Iterator[None]:
    """Turn what the system says against writing there into an `OutputError`.

    Raises:
        OutputError: It cannot be written.
    """
    try:
        yield
    except OSError as error:
        raise OutputError(
            f"The job's directory cannot be written: {error}. Received: job_dir={str(job_dir)!r}. "
            f"{cure_of(error)}"
        ) from error


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
