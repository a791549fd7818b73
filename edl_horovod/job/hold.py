"""Lock the directory of a job for its launcher, and clear it of an earlier job's files."""

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

__all__ = ["hold", "was_filled_by"]

_RESULT_BYTES = 64 << 10
"""Disk space that is reserved for the job's result."""


def was_filled_by(job_dir: JobDir, secret_file: Path | None) -> bool:
    """Whether a launcher of the job with this secret has filled the directory."""
    if secret_file is None:
        return False
    try:
        return job_dir.job_id.read_text() == _secret_digest(secret_file)
    except FileNotFoundError:
        return False


@contextlib.contextmanager
def hold(
    job_dir: JobDir,
    config: JobConfig,
    *,
    hosts: Mapping[str, int],
    secret_file: Path | None,
    is_takeover: bool,
    has_coordinator: bool,
) -> Iterator[None]:
    """Lock the directory for the job's launcher, and write the files that the job starts from.

    Args:
        job_dir: The directory.
        config: The settings of the job.
        hosts: Host name to slots at the start of the job.
        secret_file: The file with the job's secret; None creates one in the directory.
        is_takeover: Whether an earlier launcher of the same job left the directory. A ring with a
            coordinator is still training then, so nothing is changed. A ring without one ended
            with its launcher, and the next ring goes on from its checkpoint.
        has_coordinator: Whether the job's ring has a coordinator.

    Raises:
        ConfigError: Another launcher holds the directory.
        OutputError: The directory holds files that are not a job's, or files of another model's
            job, or it cannot be written.
    """
    job_dir.claim()
    with job_dir.writing():
        # Open it for appending: another job's process id must stay readable until we have the lock.
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
        if not _locks_directory(lock, job_dir):
            raise ConfigError(
                f"{job_dir} was removed while this job began to use it.",
                received={"job_dir": str(job_dir)},
                hint="Start the job again.",
            )
        try:
            with job_dir.writing():
                lock.truncate(0)
                # Unbuffered, so that closing the file writes nothing.
                os.write(lock.fileno(), f"{os.getpid()}\n".encode())
                if not is_takeover:
                    earlier.require_same_model(config, job_dir)
                    earlier.settle_checkpoints(config, job_dir)
                    _write_start_files(job_dir, config, hosts, secret_file)
                elif not has_coordinator and not earlier.has_succeeded(job_dir):
                    job_dir.clear("at_takeover")
                    hosts_file.write(job_dir.hosts, hosts)
            yield
        finally:
            job_dir.clear("at_end")


def _locks_directory(lock: TextIO, job_dir: JobDir) -> bool:
    """Whether the locked file is still in the directory, which may have been removed."""
    try:
        return os.path.samestat(os.fstat(lock.fileno()), job_dir.launcher_pid.stat())
    except FileNotFoundError:
        return False


def _write_start_files(
    job_dir: JobDir, config: JobConfig, hosts: Mapping[str, int], secret_file: Path | None
) -> None:
    job_dir.clear("at_start")
    job_dir.logs.mkdir()
    whole_file.reserve(job_dir.result, _RESULT_BYTES)
    if secret_file is not None:
        job_dir.job_id.write_text(_secret_digest(secret_file))
    else:
        _write_secret(job_dir.secret)
    hosts_file.write(job_dir.hosts, hosts)
    # The parameters of models and the variables of pods may be private.
    resolved.dump(config, job_dir.config, is_private=True)


def _write_secret(path: Path) -> None:
    path.unlink(missing_ok=True)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as stream:
        stream.write(secrets.token_bytes(32))


def _secret_digest(secret_file: Path) -> str:
    return hashlib.sha256(secret_file.read_bytes()).hexdigest()
