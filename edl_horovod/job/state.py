"""What a job's events add up to: one value that the progress display and `edl status` both show."""

import functools
import itertools
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from edl_horovod.files.json_text import numbers

__all__ = ["JobState", "WorkerState", "advance", "summarize"]

_NUM_RECENT = 20


@dataclass(frozen=True)
class WorkerState:
    """The last that was said about one worker."""

    state: str
    since: float
    """Seconds since the epoch."""
    message: str = ""


@dataclass(frozen=True)
class JobState:
    """Where a job is."""

    state: str = "unknown"
    task: str = ""
    message: str = ""
    output: str = ""
    step: int = 0
    total_steps: int = 0
    """0 while nobody has said it."""
    epoch: int = 0
    loss: float | None = None
    records: int = 0
    total_records: int = 0
    made: int | None = None
    """Records made, where `records` counts the files of `prepare`."""
    records_per_second: float | None = None
    size: int = 0
    """Ranks in the ring."""
    generation: int = 0
    num_resets: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    """Of the last evaluation, or of the finished job."""
    members: tuple[str, ...] = ()
    """Workers of the ring that was formed last."""
    workers: dict[str, WorkerState] = field(default_factory=dict)
    recent: tuple[tuple[float, int], ...] = ()
    """Time and step (or records, where nothing is trained) of the last events that moved."""

    @property
    def is_over(self) -> bool:
        """Whether nothing works for the job now."""
        return self.state in ("finished", "failed", "lost", "suspended")

    @property
    def done(self) -> int:
        """Steps, or records where nothing is trained."""
        return self.records if self.total_records else self.step

    @property
    def total(self) -> int:
        """All steps, or all records; 0 while nobody has said it."""
        return self.total_records or self.total_steps

    @property
    def spares(self) -> list[str]:
        """Workers that are warm and in no ring."""
        if self.is_over:
            return []
        warm = [name for name, worker in self.workers.items() if worker.state == "warm"]
        return sorted(set(warm) - set(self.members))

    @property
    def seconds_left(self) -> float | None:
        """How long the rest takes at the pace of the last events; None while that is not known."""
        if not self.total or len(self.recent) < 2:
            return None
        (first_time, first), (last_time, last) = self.recent[0], self.recent[-1]
        if last <= first or last_time <= first_time:
            return None
        return max(self.total - self.done, 0) * (last_time - first_time) / (last - first)


def summarize(events: Iterable[dict[str, Any]]) -> JobState:
    """The state after all of the events."""
    return functools.reduce(advance, _telling(events), JobState())


def _telling(events: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Leave out all but the last steps of a row: those alone make the state, and logs are long."""
    for kind, row in itertools.groupby(events, lambda event: event["kind"]):
        yield from deque(row, maxlen=_NUM_RECENT if kind in ("step", "progress") else None)


def advance(state: JobState, event: dict[str, Any]) -> JobState:
    """The state after one more event; kinds that say nothing about it change nothing."""
    match event["kind"]:
        case "job":
            changed = replace(
                state, **_given(event, "state", "task", "message", "output", "total_steps")
            )
            return replace(changed, metrics=numbers(event.get("metrics", state.metrics)))
        case "worker":
            worker = WorkerState(event["state"], event["time"], event.get("message", ""))
            return replace(state, workers={**state.workers, event["worker"]: worker})
        case "generation":
            changed = replace(state, **_given(event, "generation", "size"))
            if event.get("is_formed"):
                changed = replace(changed, members=tuple(event["members"]))
            return changed
        case "reset":
            # The first forming of a ring is none of its changes.
            num_resets = state.num_resets + (event["old_size"] > 0)
            changed = replace(state, **_given(event, "generation", "step"), num_resets=num_resets)
            return replace(changed, size=event["new_size"], recent=())
        case "step":
            names = ("step", "epoch", "loss", "records_per_second", "size", "total_steps")
            changed = replace(state, state="running", message="", **_given(event, *names))
            return _moved(changed, event["time"], event["step"])
        case "evaluation":
            return replace(state, metrics=numbers(event["metrics"]))
        case "progress":
            changed = replace(
                state, state="running", **_given(event, "records", "total_records", "made", "size")
            )
            changed = _moved(changed, event["time"], event["records"])
            return replace(changed, records_per_second=_pace(changed))
    return state


def _given(event: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: event[name] for name in names if name in event}


def _moved(state: JobState, time: float, done: int) -> JobState:
    return replace(state, recent=(*state.recent, (time, done))[-_NUM_RECENT:])


def _pace(state: JobState) -> float | None:
    (first_time, first), (last_time, last) = state.recent[0], state.recent[-1]
    return (last - first) / (last_time - first_time) if last_time > first_time else None
