"""Let a schedule happen to a job on this machine."""

import time
from collections.abc import Callable, Sequence

from edl_horovod.chaos.disturb import ActionResult, disturb
from edl_horovod.chaos.report import Cost, cost_of
from edl_horovod.chaos.schedule import Action
from edl_horovod.chaos.target import Target
from edl_horovod.errors import ConfigError
from edl_horovod.job import events
from edl_horovod.job.directory import JobDir
from edl_horovod.launch import target as targets
from edl_horovod.launch.local_jobs import LocalJobs

__all__ = ["check_disturbable", "disturb_job"]


def check_disturbable(job_dir: JobDir) -> None:
    """Refuse a job to which nothing can happen.

    Raises:
        ConfigError: The ring of the job is static, or the job does not run.
    """
    kind = job_dir.read_config().launch.kind
    if not targets.find(kind).is_elastic:
        raise ConfigError(
            "A static ring does not survive chaos.",
            received=f"launch.kind={kind}",
            hint="Start the job with launch=local.",
        )
    if not job_dir.is_running():
        raise ConfigError(
            "The job is not running, so nothing can happen to it.",
            received=repr(str(job_dir)),
            hint=f"See edl status {job_dir}.",
        )


def disturb_job(
    job_dir: JobDir,
    schedule: Sequence[Action],
    *,
    seconds: float = 0.0,
    on_action: Callable[[ActionResult], None] = lambda _: None,
) -> tuple[list[ActionResult], Cost]:
    """Let a schedule happen to a running job.

    Returns:
        What happened, and what it cost.
    """
    began, jobs, name = time.time(), LocalJobs(), str(job_dir)
    target = Target(
        job_dir,
        slots=lambda: jobs.slots(name),
        set_slots=lambda slots: jobs.scale(name, slots),
    )
    results = disturb(target, schedule, seconds=seconds, on_action=on_action)
    recorded = events.read(job_dir.events)
    last = recorded[-1].time if target.is_over else time.time()
    first = min((r.time for r in results if r.is_done), default=began)
    return results, cost_of(recorded, first=first, last=last)
