"""Summarize a job's events in one value, which the progress display and `edl status` show."""

import functools
import itertools
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from edl_horovod.job.account import Account
from edl_horovod.job.events import (
    AccountEvent,
    EvaluationEvent,
    GenerationEvent,
    JobEvent,
    PrivacyEvent,
    ProgressEvent,
    Recorded,
    ResetEvent,
    StepEvent,
    SummaryEvent,
    TraceEvent,
    WorkerEvent,
)
from edl_horovod.job.stops import Stops

__all__ = ["JobState", "TargetDetails", "advance", "summarize", "summary_of"]

_NUM_RECENT = 20
_MOST_SECONDS_LEFT = 1e9
"""A longer estimate is that of a clock that has jumped."""
_ENDS = ("finished", "failed", "lost", "suspended")
"""States in which no process of a job is running."""


@dataclass(frozen=True)
class WorkerState:
    """The last reported state of one worker."""

    state: str
    since: float
    """Seconds since the epoch."""
    message: str = ""


@dataclass(frozen=True)
class JobState:
    """The state and the progress of a job."""

    state: str = "unknown"
    task: str = ""
    message: str = ""
    output: str = ""
    step: int = 0
    total_steps: int = 0
    """Steps of the whole job; 0 until the number is known."""
    epoch: int = 0
    loss: float | None = None
    records: int = 0
    """Records that were done; of a training those of its completed steps."""
    total_records: int = 0
    made: int | None = None
    """Records made, where `records` counts the files of `prepare`."""
    records_per_second: float | None = None
    local_steps: int | None = None
    """Local steps of the last round; None without rounds."""
    size: int = 0
    """Ranks in the ring; 0 while there is none."""
    generation: int = 0
    num_resets: int = 0
    has_formed: bool = False
    """Whether the job has had a ring: forming the first one is not a reset."""
    metrics: dict[str, float] = field(default_factory=dict)
    """The metrics of the last evaluation, or of the finished job."""
    parties: dict[str, dict[str, float]] = field(default_factory=dict)
    """The metrics of the last evaluation by party, of those that share them."""
    privacy: PrivacyEvent | None = None
    """What a party with `federated.privacy` has used up; None for any other job."""
    members: tuple[str, ...] = ()
    """Workers of the ring that was formed last; none while the job waits for workers."""
    workers: dict[str, WorkerState] = field(default_factory=dict)
    recent: tuple[tuple[float, int], ...] = ()
    """Time and step (records for other tasks than training) of the last progress events."""
    account: Account = field(default_factory=Account)
    """Where the time of the ranks went."""
    stops: Stops = field(default_factory=Stops)
    """The ranks that the rings have lost."""

    @property
    def is_over(self) -> bool:
        """Whether no process of the job is running."""
        return self.state in _ENDS

    @property
    def done(self) -> int:
        """The finished steps of a training, or the finished records of another task."""
        return self.records if self.total_records else self.step

    @property
    def total(self) -> int:
        """All steps, or all records; 0 until the number is known."""
        return self.total_records or self.total_steps

    @property
    def spares(self) -> list[str]:
        """Warm workers that are not in a ring."""
        if self.is_over:
            return []
        states = ("warm", "returned")
        warm = [name for name, worker in self.workers.items() if worker.state in states]
        return sorted(set(warm) - set(self.members))

    @property
    def seconds_left(self) -> float | None:
        """The estimated time to the end, from the last events; None while it is not known."""
        if not self.total or len(self.recent) < 2:
            return None
        (first_time, first), (last_time, last) = self.recent[0], self.recent[-1]
        if last <= first or last_time <= first_time:
            return None
        left = max(self.total - self.done, 0) * (last_time - first_time) / (last - first)
        return left if left < _MOST_SECONDS_LEFT else None


@dataclass(frozen=True, kw_only=True)
class TargetDetails:
    """What a launch target tells of a job beside its events; displays show it as it is."""

    state: str
    """Replaces the state that the events tell."""
    message: str = ""
    """The reason of the state; empty where it is not known."""
    created: float
    """Seconds since the epoch."""
    summary: str = ""
    """What there is of the job, for a line: `2 of 3 worker pods warm`."""
    facts: Mapping[str, str] = field(default_factory=dict)
    title: str = ""
    """What the rows are: `Pods`."""
    header: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    waits_for: tuple[str, ...] = ()
    """What keeps the job from going on."""
    other_waits: tuple[str, ...] = ()
    """Those of `waits_for` that the rows do not show."""
    has_started: bool = True
    """Whether a process of the job may have written something."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    """All of it for programs."""


def summarize(events: Iterable[Recorded], state: JobState | None = None) -> JobState:
    """The state after all of the events, which follow those of `state`; None for the beginning."""
    return functools.reduce(advance, _relevant(events), JobState() if state is None else state)


def _relevant(events: Iterable[Recorded]) -> Iterator[Recorded]:
    """Drop all but the last steps of each run of step events: earlier ones have no effect."""
    for kind, row in itertools.groupby(events, lambda recorded: type(recorded.event)):
        yield from deque(row, maxlen=_NUM_RECENT if kind in (StepEvent, ProgressEvent) else None)


def advance(state: JobState, recorded: Recorded) -> JobState:
    """The state after one more event; kinds that do not concern the state have no effect."""
    time, _, event = recorded
    match event:
        case JobEvent():
            # The events of the last steps may be missing, as on a full disk.
            step = max(state.step, event.steps or 0) if state.total_steps else state.step
            # The members of the former ring have left it.
            ring: dict[str, Any] = {"size": 0, "members": ()} if event.state == "waiting" else {}
            return replace(
                state,
                account=state.account.after(recorded),
                state=event.state,
                task=state.task if event.task is None else event.task,
                message=event.message,
                output=state.output if event.output is None else event.output,
                metrics=state.metrics if event.metrics is None else event.metrics,
                # Plain horovodrun appends its next job in the same directory.
                has_formed=state.has_formed and event.state not in _ENDS,
                step=step,
                # The training may have stopped early.
                total_steps=step if event.steps else state.total_steps,
                **ring,
            )
        case WorkerEvent():
            worker = WorkerState(event.state, time, event.message)
            workers = {**state.workers, event.worker: worker}
            account, stops = state.account.after(recorded), state.stops.after(recorded)
            return replace(state, workers=workers, account=account, stops=stops)
        case AccountEvent():
            return replace(state, account=state.account.after(recorded))
        case GenerationEvent():
            return replace(
                state,
                generation=event.generation,
                size=event.size if event.is_formed else 0,
                members=event.members if event.is_formed else (),
                stops=state.stops.after(recorded),
            )
        case TraceEvent():
            return replace(state, stops=state.stops.after(recorded))
        case ResetEvent():
            return replace(
                state,
                generation=event.generation,
                step=event.step,
                size=event.new_size,
                # After the loss of all ranks, the new leader has had no ring either.
                num_resets=state.num_resets + (event.old_size > 0 or state.has_formed),
                has_formed=True,
                recent=(),
            )
        case StepEvent():
            of_step = ("step", "total_steps", "local_steps", "epoch", "loss")
            names = (*of_step, "records_per_second", "size")
            changes = {name: getattr(event, name) for name in names}
            changes["records"] = event.records_seen
            recent = _recent(state, time, event.step)
            return replace(state, state="running", message="", recent=recent, **changes)
        case EvaluationEvent():
            return replace(state, metrics=event.metrics, parties=event.parties or {})
        case PrivacyEvent():
            return replace(state, privacy=event)
        case ProgressEvent():
            recent = _recent(state, time, event.records)
            rate = _records_per_second(recent)
            changes = {**vars(event), "recent": recent, "records_per_second": rate}
            return replace(state, state="running", message="", **changes)
        case SummaryEvent():
            stops = state.stops
            if event.members and not state.members:  # The beginning of the log was not read.
                stops = stops.after(recorded._replace(event=_ring_of(event)))
            return replace(state, stops=stops, **vars(event))
    return state


def summary_of(state: JobState) -> SummaryEvent:
    """The event that tells the state to readers who have not seen the events before it."""
    names = (field.name for field in fields(SummaryEvent))
    return SummaryEvent(**{name: getattr(state, name) for name in names})


def _ring_of(summary: SummaryEvent) -> GenerationEvent:
    return GenerationEvent(
        generation=summary.generation,
        size=summary.size,
        members=summary.members,
        reason="",
        is_formed=True,
    )


def _recent(state: JobState, time: float, done: int) -> tuple[tuple[float, int], ...]:
    return (*state.recent, (time, done))[-_NUM_RECENT:]


def _records_per_second(recent: Sequence[tuple[float, int]]) -> float | None:
    (first_time, first), (last_time, last) = recent[0], recent[-1]
    return (last - first) / (last_time - first_time) if last_time > first_time else None
