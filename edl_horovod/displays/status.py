"""The state of a job that `edl status` and the dashboard show."""

import dataclasses
import time
from typing import TYPE_CHECKING, Any

from edl_horovod.displays.text import ago
from edl_horovod.errors import JobFailed
from edl_horovod.job import outcome
from edl_horovod.job.directory import JobDir
from edl_horovod.job.events import JobEvent, Recorded
from edl_horovod.job.outcome import Failure, Success
from edl_horovod.job.state import JobState, advance

if TYPE_CHECKING:
    from edl_horovod.cluster.status import JobView

__all__ = ["as_json", "local_state"]

_ENDED = ("finished", "failed", "suspended")


def local_state(
    job_dir: JobDir,
    state: JobState,
    *,
    is_ours: bool,
    is_running: bool,
    last_time: float | None,
) -> JobState:
    """Complete the state from a job's events with information from its directory.

    Args:
        job_dir: The directory of the job.
        state: The state from the events.
        is_ours: Whether one of our launchers has written some of the events.
        is_running: Whether this launcher was running before the events were read.
        last_time: Time of the last event; None without events.

    Raises:
        ConfigError: The directory is not a job's.
    """
    config = job_dir.read_config()
    state = dataclasses.replace(
        state, task=state.task or config.task, output=state.output or config.output
    )
    if state.state in _ENDED:
        return state
    if not is_ours:
        return dataclasses.replace(state, message=_age_of_events(last_time))
    return state if is_running else _state_after_lost_launcher(job_dir, state)


def _state_after_lost_launcher(job_dir: JobDir, state: JobState) -> JobState:
    """The state of a job whose launcher died before its last event, for example on a full disk."""
    try:
        result = outcome.load(job_dir.result)
    except JobFailed:
        result = None
    match result:
        case Success():
            event = JobEvent(
                state="finished", steps=result.steps, metrics=result.metrics, output=result.output
            )
        case Failure():
            event = JobEvent(state="failed", message=result.message)
        case None:
            message = "the launcher died and did not record how the job ended"
            event = JobEvent(state="lost", message=message)
    return advance(state, Recorded(time.time(), "launcher", event))


def as_json(state: JobState, job: "JobView | None") -> dict[str, Any]:
    """The whole state, for programs; `job` is None for a job on this machine."""
    values = dataclasses.asdict(state)
    del values["recent"]
    values |= {"seconds_left": state.seconds_left, "spares": state.spares}
    return values if job is None else {**values, **dataclasses.asdict(job)}


def _age_of_events(last_time: float | None) -> str:
    """A note on a job that plain horovodrun launched, which cannot be asked for its state."""
    if last_time is None:
        return "nothing has happened yet"
    age = ago(last_time, time.time())
    return f"edl did not launch it, so only its events are known; the last one is {age} old"
