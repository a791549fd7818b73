"""Waiting until a job reaches a state."""

import logging
import math
import time
from collections.abc import Callable
from contextlib import suppress

from edl_horovod.errors import ConfigError, JobFailed, MissingDependency, NoCluster, TimedOut
from edl_horovod.launch.jobs import Jobs, JobStatus, OnStatus

log = logging.getLogger(__name__)

CONDITIONS = ("running", "finished", "ended", "deleted")
"""Conditions that a wait can have."""
POLL_SECONDS = 1.0
START_SECONDS = 30.0
"""How long a job that does not exist yet may take to start."""

_FAILED = {"failed": "has failed", "lost": "is lost"}
_REACHED = {
    # A job that has finished has been running.
    "running": ("running", "finished"),
    "finished": ("finished",),
    "ended": ("finished", *_FAILED),
    "deleted": (),
}


def wait(
    find: Callable[[], Jobs],
    job: str,
    condition: str,
    *,
    timeout_seconds: float | None = None,
    on_status: OnStatus | None = None,
) -> JobStatus | None:
    """Wait until a job reaches a state; see `Client.wait`.

    `find` returns the jobs among which the job is; until it exists, the result may change.
    """
    if condition not in CONDITIONS:
        raise ConfigError(
            f"condition must be one of {', '.join(CONDITIONS)}.", received=repr(condition)
        )
    limit = math.inf if timeout_seconds is None else timeout_seconds
    end = time.monotonic() + limit
    if condition != "deleted":
        _wait_until_exists(find, job, min(START_SECONDS, limit))
    jobs = find()
    while condition != "deleted" or jobs.exists(job):
        now = jobs.status(job, is_brief=True)
        if on_status is not None:
            on_status(now)
        reached = _REACHED[condition]
        is_stopped = now.state == "suspended" and now.is_at_rest
        if now.state in reached or (is_stopped and condition == "ended"):
            return now
        if now.state in _FAILED and condition != "deleted":
            reason = f": {now.message.removesuffix('.')}" if now.message else ""
            raise JobFailed(f"Job {job} {_FAILED[now.state]}{reason}.", hint=f"See edl logs {job}.")
        _sleep_until_next(now, end, f"{limit:g} s for job {job} to be {condition}")
    return None


def _wait_until_exists(find: Callable[[], Jobs], job: str, seconds: float) -> None:
    """Wait until a job exists, or for `seconds`; logs a warning first."""
    end = time.monotonic() + seconds
    was_logged = False
    while True:
        with suppress(NoCluster, MissingDependency):
            if find().exists(job):
                return
        if (left := end - time.monotonic()) <= 0:
            return
        if not was_logged:
            log.warning("There is no job %s yet; waiting up to %g s for its start.", job, seconds)
        was_logged = True
        time.sleep(min(POLL_SECONDS, left))


def wait_until_at_rest(
    jobs: Jobs, job: str, *, timeout_seconds: float, on_status: OnStatus | None = None
) -> None:
    """Wait until no process or pod of a job is left; see `Client.stop`."""
    end = time.monotonic() + timeout_seconds
    while not (now := jobs.status(job, is_brief=True)).is_at_rest:
        if on_status is not None:
            on_status(now)
        _sleep_until_next(now, end, f"{timeout_seconds:g} s for the processes of job {job} to end")


def _sleep_until_next(now: JobStatus, end: float, limit: str) -> None:
    """Sleep until the next check.

    Raises:
        TimedOut: The end of the wait comes before it.
    """
    if time.monotonic() + POLL_SECONDS > end:
        raise TimedOut(
            f"It took longer than {limit}.",
            received=f"its state is {now}",
            hint="\n  ".join(["It waits for:", *now.waits_for]) if now.waits_for else "",
        )
    time.sleep(POLL_SECONDS)
