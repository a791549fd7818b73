"""Locks a job's directory for its launcher, and decides on an earlier job's files in it.

Checkpoints of an earlier job are kept, removed, or a reason to refuse the directory. A resumed
training takes its lanes from its checkpoint, because the order of records depends on them.
"""

import contextlib
import hashlib
import json
import logging
import os
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TextIO

from edl_horovod.config import resolved
from edl_horovod.config.schema import JobConfig
from edl_horovod.config.tasks import TASKS, num_lanes
from edl_horovod.errors import ConfigError, JobFailed, OutputError
from edl_horovod.files import whole_file
from edl_horovod.job import checkpoint_files, outcome, privacy_accounts
from edl_horovod.job import hosts as hosts_file
from edl_horovod.job.checkpoint_files import read_metadata
from edl_horovod.job.directory import JobDir, lock_alone
from edl_horovod.job.outcome import Success

log = logging.getLogger(__name__)

_RESULT_BYTES = 64 << 10
"""Disk space that is reserved for the job's result."""
_LOST_LOCK_SECONDS = 300.0
"""How long a network file system may keep the lock of a launcher whose machine was lost."""


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

    Without checkpoints a training of one party alone also has a new account of its privacy. The
    accounts of a party of several and the note of its secure sums stay: it has sent what it
    computed.

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
    if config.resume != "never":
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
    if not config.federated.party:
        _forget_lone_training(job_dir.privacy)
    if job_dir.checkpoints.exists():
        checkpoint_files.remove_all(job_dir.checkpoints)


def _forget_lone_training(accounts: Path) -> None:
    """Remove what a training of one party alone has used up of its privacy, and nothing else."""
    # A training with privacy refuses a damaged file itself.
    with contextlib.suppress(JobFailed):
        trainings = privacy_accounts.read(accounts)
        of_parties = [spent for spent in trainings if spent.training]
        if not of_parties:
            accounts.unlink(missing_ok=True)
        elif len(of_parties) < len(trainings):
            privacy_accounts.write(accounts, of_parties)


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


def was_filled_by(job_dir: JobDir, secret_file: Path | None) -> bool:
    """Whether a launcher of the job with this secret has filled the directory."""
    if secret_file is None or not job_dir.job_id.exists():
        return False
    return has_id(job_dir, _secret_digest(secret_file))


def has_id(job_dir: JobDir, job_id: str) -> bool:
    """Whether a launcher of the job with this identity has filled the directory."""
    try:
        return job_dir.job_id.read_text() == job_id
    except FileNotFoundError:
        return False


@contextlib.contextmanager
def hold(
    job_dir: JobDir,
    config: JobConfig,
    *,
    hosts: Mapping[str, int],
    secret_file: Path | None,
    job_id: str = "",
    is_takeover: bool,
    has_coordinator: bool,
) -> Iterator[None]:
    """Lock the directory for the job's launcher, and write the files that the job starts from.

    Args:
        job_dir: The directory.
        config: The settings of the job.
        hosts: Host name to slots at the start of the job.
        secret_file: The file with the job's secret; None creates one in the directory.
        job_id: Distinguishes a job without a secret of its own from others, for `has_id`; empty for
            a job that no other launcher goes on with.
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
        with job_dir.writing():
            is_ours = lock_alone(lock.fileno())
            if not is_ours and is_takeover:
                log.info("the lock of the earlier launcher is still there; waiting for its end")
                is_ours = lock_alone(lock.fileno(), seconds=_LOST_LOCK_SECONDS)
        if not is_ours:
            raise ConfigError(
                f"Another job runs in {job_dir}.",
                received={"job_dir": str(job_dir)},
                hint="Wait for it, or choose another output or job_dir.",
            )
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
                    require_same_model(config, job_dir)
                    settle_checkpoints(config, job_dir)
                    if secret_file is not None:
                        job_id = _secret_digest(secret_file)
                    _write_start_files(job_dir, config, hosts, job_id)
                    if secret_file is None:
                        _write_secret(job_dir.secret)
                elif not has_coordinator and not has_succeeded(job_dir):
                    job_dir.clear("at_takeover")
                    hosts_file.write(job_dir.hosts, hosts)
            yield
        finally:
            # Workers that have the secret from elsewhere may go on, and wait for another launcher.
            job_dir.clear("at_end", of_workers=secret_file is None)


def _locks_directory(lock: TextIO, job_dir: JobDir) -> bool:
    """Whether the locked file is still in the directory, which may have been removed."""
    try:
        return os.path.samestat(os.fstat(lock.fileno()), job_dir.launcher_pid.stat())
    except FileNotFoundError:
        return False


def _write_start_files(
    job_dir: JobDir, config: JobConfig, hosts: Mapping[str, int], job_id: str
) -> None:
    job_dir.clear("at_start")
    job_dir.logs.mkdir()
    whole_file.reserve(job_dir.result, _RESULT_BYTES)
    if job_id:
        whole_file.write_text(job_dir.job_id, job_id)
    else:
        job_dir.job_id.unlink(missing_ok=True)
    hosts_file.write(job_dir.hosts, hosts)
    # The parameters of models and the variables of pods may be private.
    resolved.dump(config, job_dir.config, is_private=True)


def _write_secret(path: Path) -> None:
    path.unlink(missing_ok=True)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as stream:
        stream.write(secrets.token_bytes(32))


def _secret_digest(secret_file: Path) -> str:
    return hashlib.sha256(secret_file.read_bytes()).hexdigest()
