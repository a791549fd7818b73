"""The directory of a running job: emptied of an earlier job's traces, held for one launcher."""

import contextlib
import fcntl
import hashlib
import os
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TextIO

from edl_horovod.config import resolved
from edl_horovod.config.schema import JobConfig
from edl_horovod.errors import ConfigError
from edl_horovod.files import whole_file
from edl_horovod.job import earlier
from edl_horovod.job import hosts as hosts_file
from edl_horovod.job.directory import JobDir

__all__ = ["hold", "is_of_job"]

_RESULT_BYTES = 64 << 10
"""Room that is kept for how the job ended."""


def is_of_job(job_dir: JobDir, secret_file: Path | None) -> bool:
    """Whether a launcher of the job that has this secret filled the directory."""
    if secret_file is None:
        return False
    try:
        return job_dir.job_id.read_text() == _identity(secret_file)
    except FileNotFoundError:
        return False


@contextlib.contextmanager
def hold(
    job_dir: JobDir,
    config: JobConfig,
    *,
    hosts: Mapping[str, int],
    secret_file: Path | None,
    is_left: bool,
    has_coordinator: bool,
) -> Iterator[None]:
    """Hold the directory for the job's launcher, filled with what the job starts from.

    Args:
        job_dir: The directory.
        config: The job.
        hosts: Host name to slots, as the job starts.
        secret_file: Where the job's workers have its secret; None makes one in the directory.
        is_left: Whether an earlier launcher of this very job left the directory. Then a ring with
            a coordinator trains on, and nothing is changed; one that another program
            starts has ended with that launcher, and the next one goes on from its checkpoint.
        has_coordinator: Whether the job's ring has one.

    Raises:
        ConfigError: Another launcher holds the directory.
        OutputError: It holds something that is not an earlier job's, or is another model's; or it
            cannot be written.
    """
    job_dir.claim()
    with job_dir.writing():
        # Opened for appending: another job's number must stay readable until the lock is ours.
        lock = job_dir.launcher_pid.open("a+")
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ConfigError(
                f"Another job runs in {job_dir}.",
                received={"job_dir": str(job_dir)},
                hint="Wait for it, or choose another output or job_dir.",
            ) from error
        if not _is_still_there(lock, job_dir):
            raise ConfigError(
                f"{job_dir} was removed while this job began to use it.",
                received={"job_dir": str(job_dir)},
                hint="Start the job again.",
            )
        try:
            with job_dir.writing():
                lock.truncate(0)
                os.write(lock.fileno(), f"{os.getpid()}\n".encode())  # `close` must find nothing.
                if not is_left:
                    earlier.require_same_model(config, job_dir)
                    earlier.settle_checkpoints(config, job_dir)
                    _fill(job_dir, config, hosts, secret_file)
                elif not has_coordinator and not earlier.has_ended_well(job_dir):
                    job_dir.clear("at_takeover")
                    hosts_file.write(job_dir.hosts, hosts)
            yield
        finally:
            job_dir.clear("at_end")


def _is_still_there(lock: TextIO, job_dir: JobDir) -> bool:
    """Whether the lock that is held is that of the directory, which may have been removed."""
    try:
        return os.path.samestat(os.fstat(lock.fileno()), job_dir.launcher_pid.stat())
    except FileNotFoundError:
        return False


def _fill(
    job_dir: JobDir, config: JobConfig, hosts: Mapping[str, int], secret_file: Path | None
) -> None:
    job_dir.clear("at_start")
    job_dir.logs.mkdir()
    whole_file.reserve(job_dir.result, _RESULT_BYTES)
    if secret_file is not None:
        job_dir.job_id.write_text(_identity(secret_file))
    else:
        _write_secret(job_dir.secret)
    hosts_file.write(job_dir.hosts, hosts)
    # Parameters and variables of pods may be anything, also what is private.
    resolved.dump(config, job_dir.config, is_private=True)


def _write_secret(path: Path) -> None:
    path.unlink(missing_ok=True)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as stream:
        stream.write(secrets.token_bytes(32))


def _identity(secret_file: Path) -> str:
    return hashlib.sha256(secret_file.read_bytes()).hexdigest()
