"""What is known of a job from outside: what `edl status` and the dashboard show."""

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
    """What a job's events add up to, with what its directory tells beyond them.

    Args:
        job_dir: Of the job.
        state: What the events add up to.
        is_ours: A launcher of ours has written some of them.
        is_running: Whether that launcher lived before the events were read.
        last_time: When the last one was written; None where there is none.

    Raises:
        ConfigError: This is not the directory of a job.
    """
    config = job_dir.read_config()
    state = dataclasses.replace(
        state, task=state.task or config.task, output=state.output or config.output
    )
    if state.state in _ENDED:
        return state
    if not is_ours:
        return dataclasses.replace(state, message=_last_sign(last_time))
    return state if is_running else _ended_unseen(job_dir, state)


def _ended_unseen(job_dir: JobDir, state: JobState) -> JobState:
    """The state of a job whose launcher is gone and wrote no last event, as on a full disk."""
    try:
        ended = outcome.load(job_dir.result)
    except JobFailed:
        ended = None
    match ended:
        case Success():
            event = JobEvent(
                state="finished", steps=ended.steps, metrics=ended.metrics, output=ended.output
            )
        case Failure():
            event = JobEvent(state="failed", message=ended.message)
        case None:
            message = "the launcher is gone and did not say how the job ended"
            event = JobEvent(state="lost", message=message)
    return advance(state, Recorded(time.time(), "launcher", event))


def as_json(state: JobState, job: "JobView | None") -> dict[str, Any]:
    """All that is known, for programs; without a view it is a job on this machine."""
    values = dataclasses.asdict(state)
    del values["recent"]
    values |= {"seconds_left": state.seconds_left, "spares": state.spares}
    return values if job is None else {**values, **dataclasses.asdict(job)}


def _last_sign(last_time: float | None) -> str:
    """What is known of a job that plain horovodrun launched: it cannot be asked."""
    if last_time is None:
        return "nothing has happened yet"
    age = ago(last_time, time.time())
    return f"edl did not launch it, so its events are all that is known; the last is {age} old"
