"""Waiting until a job reaches a state."""

import logging
import time
from collections.abc import Callable
from contextlib import suppress

from edl_horovod.errors import ConfigError, JobFailed, MissingDependency, NoCluster, TimedOut
from edl_horovod.launch.jobs import Jobs, JobStatus, OnStatus

__all__ = ["CONDITIONS", "wait", "wait_until_at_rest"]

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
    limit = _Limit(timeout_seconds, f"job {job} to be {condition}")
    if condition != "deleted":
        most = START_SECONDS if timeout_seconds is None else min(START_SECONDS, timeout_seconds)
        _wait_until_exists(find, job, most)
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
        limit.sleep(now)
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
    limit = _Limit(timeout_seconds, f"the processes of job {job} to end")
    while not (now := jobs.status(job, is_brief=True)).is_at_rest:
        if on_status is not None:
            on_status(now)
        limit.sleep(now)


class _Limit:
    """The time limit of a wait."""

    def __init__(self, seconds: float | None, event: str) -> None:
        self._end = None if seconds is None else time.monotonic() + seconds
        self._seconds, self._event = seconds, event

    def sleep(self, now: JobStatus) -> None:
        """Sleep until the next check.

        Raises:
            TimedOut: The limit comes before it.
        """
        if self._end is not None and time.monotonic() + POLL_SECONDS > self._end:
            raise TimedOut(
                f"It took longer than {self._seconds:g} s for {self._event}.",
                received=f"its state is {now}",
                hint="\n  ".join(["It waits for:", *now.waits_for]) if now.waits_for else "",
            )
        time.sleep(POLL_SECONDS)
