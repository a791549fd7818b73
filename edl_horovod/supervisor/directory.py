"""The directory of a running job: emptied of an earlier job's traces, held for one launcher."""

import contextlib
import fcntl
import hashlib
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from edl_horovod.config import resolved
from edl_horovod.config.schema import JobConfig
from edl_horovod.coordinator import hosts
from edl_horovod.errors import ConfigError, OutputError
from edl_horovod.job import checkpoint_files
from edl_horovod.job import directory as job_dirs
from edl_horovod.supervisor import checkpoints
from edl_horovod.supervisor.plan import LaunchPlan

__all__ = ["is_left_by_this_job", "is_of_job", "job_directory"]

JOB_ID = "job.id"
"""Tells a job from every other one that had its directory; only jobs that may be left have it."""


def is_left_by_this_job(plan: LaunchPlan) -> bool:
    """Whether an earlier launcher of this very job, known by its secret, filled the directory."""
    return plan.secret_file is not None and is_of_job(plan.job_dir, plan.secret_file)


def is_of_job(job_dir: Path, secret_file: Path) -> bool:
    """Whether a launcher of the job that has this secret filled the directory."""
    try:
        return (job_dir / JOB_ID).read_text() == _identity(secret_file)
    except FileNotFoundError:
        return False


@contextlib.contextmanager
def job_directory(plan: LaunchPlan, *, is_left: bool) -> Iterator[None]:
    """The job's directory, held for this launcher.

    Args:
        plan: Of the job.
        is_left: Whether an earlier launcher of this very job left it. Then a ring with a
            coordinator trains on meanwhile, and nothing is changed; one that another program
            starts has ended with that launcher, and the next one goes on from its checkpoint.

    Raises:
        ConfigError: Another launcher holds the directory.
        OutputError: It holds something that is not an earlier job's, or is another model's; or it
            cannot be written.
    """
    job_dir = plan.job_dir
    job_dirs.claim(job_dir)
    with job_dirs.writing(job_dir):
        # Opened for appending: another job's number must stay readable until the lock is ours.
        lock = (job_dir / "launcher.pid").open("a+")
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ConfigError(
                f"Another job runs in {job_dir}. Received: job_dir={str(job_dir)!r}. "
                "Wait for it, or choose another output or job_dir."
            ) from error
        try:
            with job_dirs.writing(job_dir):
                lock.truncate(0)
                os.write(lock.fileno(), f"{os.getpid()}\n".encode())  # `close` must find nothing.
                if not is_left:
                    _check_earlier_job(plan)
                    if plan.config.task == "train":
                        checkpoints.settle(plan.config, job_dir)
                    _fill_job_directory(plan)
                elif plan.ring is not None:
                    _remove_what_ended_with_its_ring(plan)
            yield
        finally:
            (job_dir / "secret").unlink(missing_ok=True)
            # Never removed: who opened the file meanwhile would lock one that nobody else sees.
            lock.truncate(0)


def _check_earlier_job(plan: LaunchPlan) -> None:
    """Refuse to take the directory from another model's job that left something of use there.

    Raises:
        OutputError: It is there, and nobody said that it may go.
    """
    config, job_dir = plan.config, plan.job_dir
    steps = checkpoint_files.steps_in(checkpoint_files.folder_of(job_dir))
    if config.overwrite or not (steps or checkpoints.has_ended_well(job_dir)):
        return
    now = _model_of(config)
    try:
        before = _model_of(resolved.load(job_dir / "config.yaml"))
    except ConfigError as error:
        before = {"config.yaml": str(error)}
    if before == now:
        return
    shown = [f"{key}={value!r}" for key, value in before.items() if now.get(key) != value]
    left = f"checkpoints up to step {steps[-1]}" if steps else "its result"
    raise OutputError(
        f"The job's directory is that of another model's job, which left {left} there:"
        f" {', '.join(shown)}. Received: job_dir={str(job_dir)!r},"
        f" {', '.join(f'{key}={value!r}' for key, value in now.items())}."
        " Give another output or job_dir, or overwrite=true if what is there may go."
    )


def _model_of(config: JobConfig) -> dict[str, str]:
    """What a job works on: two jobs that differ in it have nothing in common."""
    if config.task != "train":
        return {"task": config.task, "trained_model": config.trained_model}
    zoo = config.model_zoo_source or config.model_zoo
    return {"task": config.task, "model_zoo": zoo, "model_def": config.model_def}


def _fill_job_directory(plan: LaunchPlan) -> None:
    job_dir = plan.job_dir
    with contextlib.suppress(FileNotFoundError):
        # Emptied, not removed: in a cluster a worker may have it open before its launcher runs.
        os.truncate(job_dir / "events.jsonl", 0)
    for name in ("coordinator.json", "result.json", "hosts", JOB_ID):
        (job_dir / name).unlink(missing_ok=True)
    old = ["logs", "segments"]
    if not checkpoint_files.steps_in(checkpoint_files.folder_of(job_dir)):
        old.append("ledger")  # A job that goes on goes on with its ledger.
    for name in old:
        shutil.rmtree(job_dir / name, ignore_errors=True)
    (job_dir / "logs").mkdir()
    _settle_secret(plan)
    hosts.write(job_dir / "hosts", plan.hosts)
    # Parameters and variables of pods may be anything, also what is nobody else's business.
    resolved.dump(plan.config, job_dir / "config.yaml", is_private=True)


def _remove_what_ended_with_its_ring(plan: LaunchPlan) -> None:
    """Keep what the job's next ring goes on from, or what says that there need be none."""
    job_dir = plan.job_dir
    if checkpoints.has_ended_well(job_dir):
        return
    (job_dir / "result.json").unlink(missing_ok=True)  # That ring's failure.
    hosts.write(job_dir / "hosts", plan.hosts)
    if not checkpoint_files.steps_in(checkpoint_files.folder_of(job_dir)):
        shutil.rmtree(job_dir / "ledger", ignore_errors=True)


def _settle_secret(plan: LaunchPlan) -> None:
    if plan.secret_file is not None:
        (plan.job_dir / JOB_ID).write_text(_identity(plan.secret_file))
        return
    secret = plan.job_dir / "secret"
    secret.unlink(missing_ok=True)
    with open(os.open(secret, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as stream:
        stream.write(secrets.token_bytes(32))


def _identity(secret_file: Path) -> str:
    return hashlib.sha256(secret_file.read_bytes()).hexdigest()
