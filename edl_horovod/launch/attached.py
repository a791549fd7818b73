"""Runs a job elsewhere for a command that needs its result: submit, wait, remove.

The job's files are on a file system that this machine and the job have at the same path.
"""

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, closing, suppress
from dataclasses import dataclass
from pathlib import Path

from edl_horovod import errors
from edl_horovod.config.schema import JobConfig
from edl_horovod.job import outcome
from edl_horovod.job.directory import JobDir
from edl_horovod.job.outcome import Success
from edl_horovod.launch import target, waiting
from edl_horovod.launch.jobs import Jobs, JobStatus, OnStatus
from edl_horovod.launch.target import SubmittedJob
from edl_horovod.supervisor.run import JobResult

log = logging.getLogger(__name__)

MAX_UNREACHABLE_SECONDS = 600.0
"""How long the wait for a job continues without an answer from the cluster."""
ENDED = ("finished", "failed")
"""States that a job does not leave."""
RETRY_SECONDS = 5.0
VISIBLE_SECONDS = 60.0
"""How long a network file system may take to show the files of a pod on this machine."""


@dataclass(frozen=True, kw_only=True)
class AttachedJob:
    """The name and place of a job that runs elsewhere."""

    kind: str
    """Its launch target."""
    name: str
    place: Mapping[str, str]
    """Where it is, as `LaunchTarget.jobs` takes it."""

    def jobs(self) -> AbstractContextManager[Jobs]:
        """Open the jobs of its launch target; leaving the context closes them."""
        return closing(target.find(self.kind).jobs(self.place))


def check_attached(config: JobConfig, *, is_dry_run: bool = False) -> None:
    """Check that a job can be submitted, as far as this machine can tell.

    Args:
        config: The settings of the job.
        is_dry_run: Whether nothing will be submitted, so that no cluster is needed.

    Raises:
        EdlError: A path is on no volume, the job has no image, or there is no cluster.
    """
    launch_target = target.target_of(config)
    plan = launch_target.plan(config)
    _, place = launch_target.name_of(plan)
    launch_target.describe(plan)
    if not is_dry_run:
        launch_target.jobs(place).close()


def run_attached(
    config: JobConfig, *, note: Callable[[AttachedJob | None], None], on_status: OnStatus
) -> JobResult:
    """Submit a job, return when it has finished, and remove it from its launch target.

    A failed job is not removed, for its logs. If `on_status` raises, or Ctrl-C ends the wait, the
    job is removed first.

    Args:
        config: The job.
        note: Called with the job before it is submitted, and with None when it has ended. Until
            then the job may run.
        on_status: Called with the job's status every second.

    Raises:
        EdlError: The job was not submitted, or it failed; or its result is not on this machine.
    """
    launch_target = target.target_of(config)
    plan = launch_target.plan(config)
    name, place = launch_target.name_of(plan)
    job = AttachedJob(kind=config.launch.kind, name=name, place=place)
    note(job)
    try:
        submitted: SubmittedJob = launch_target.launch(plan)
    except BaseException:
        note(None)  # A job that could not be removed is suspended, and the error names it.
        raise
    try:
        _wait(job, on_status)
        result = _result(submitted)
    except errors.JobFailed as e:
        note(None)
        raise e.with_more_hint(f" edl delete {job.name} removes it.") from e
    except BaseException:
        try:
            remove_attached(job)
            note(None)
        except errors.EdlError as e:
            log.warning("Job %s may still run: %s", job.name, e)
        raise
    remove_attached(job)
    note(None)
    return result


def remove_attached(job: AttachedJob) -> None:
    """End a job in good order, wait until nothing of it runs, and remove it; it may be gone.

    Raises:
        EdlError: It could not be removed.
    """
    # It may be removed already, in part or as a whole, or be ending at this moment.
    with job.jobs() as jobs, suppress(errors.ObjectNotFound):
        if jobs.status(job.name, is_brief=True).state not in ENDED:
            with suppress(errors.ConfigError, errors.ObjectNotFound):
                jobs.stop(job.name)
                seconds = jobs.stop_seconds(job.name)
                waiting.wait_until_at_rest(jobs, job.name, timeout_seconds=seconds)
        jobs.delete(job.name)


def _wait(job: AttachedJob, on_status: OnStatus) -> None:
    """Wait until the job has finished, even if its cluster cannot be reached for a while.

    Raises:
        JobFailed: The job failed.
        ClusterUnreachable: The cluster has not answered for `MAX_UNREACHABLE_SECONDS`.
    """
    last_answer_at = time.monotonic()

    def on_answer(status: JobStatus) -> None:
        nonlocal last_answer_at
        last_answer_at = time.monotonic()
        on_status(status)

    with job.jobs() as jobs:
        while True:
            try:
                waiting.wait(lambda: jobs, job.name, "finished", on_status=on_answer)
            except errors.ClusterUnreachable as e:
                if time.monotonic() - last_answer_at > MAX_UNREACHABLE_SECONDS:
                    raise
                log.warning("The cluster does not answer; trying again. %s", e)
                time.sleep(RETRY_SECONDS)
            else:
                return


def _result(submitted: SubmittedJob) -> JobResult:
    """Read the result of a finished job from its directory.

    Raises:
        OutputError: The directory is not visible on this machine.
    """
    file = JobDir(Path(submitted.job_dir)).result
    deadline = time.monotonic() + VISIBLE_SECONDS
    while True:
        if isinstance(ended := outcome.load(file), Success):
            output, job_dir = submitted.output, submitted.job_dir
            return JobResult(
                output=output, job_dir=job_dir, steps=ended.steps, metrics=dict(ended.metrics)
            )
        if time.monotonic() > deadline:
            raise errors.OutputError(
                f"Job {submitted.name} has finished, but its files are not on this machine.",
                received={"job_dir": submitted.job_dir},
                hint="Have the folder at the same path here as where the job runs.",
            )
        time.sleep(1)
