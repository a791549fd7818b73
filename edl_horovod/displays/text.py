"""Texts about a job for people: its state and facts, its workers, its notable events."""

import dataclasses
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

from edl_horovod.errors import JobFailed
from edl_horovod.job import outcome
from edl_horovod.job.account import LOST, Account
from edl_horovod.job.directory import JobDir
from edl_horovod.job.events import (
    CheckpointEvent,
    EvaluationEvent,
    Event,
    JobEvent,
    LogEvent,
    PrivacyEvent,
    Recorded,
    ResetEvent,
    WorkerEvent,
)
from edl_horovod.job.outcome import Failure, Success
from edl_horovod.job.resets import Reset
from edl_horovod.job.state import JobState, TargetDetails, advance
from edl_horovod.job.stops import Stops

_ENDED = ("finished", "failed", "suspended")
_ENDED_WITH_JOB = "ended"
_NUM_CAUSES = 4
"""Causes that are named for each process."""
_NOTEWORTHY = 0.02
"""Share of all rank-seconds from which on a cause is explained."""
_ADVICE = {
    "importing": "The workers of one launcher that start later are forked, and have this done.",
    "building": "A spare worker that is warm already takes a lost rank's place at once:"
    " elastic.spares (with plain horovodrun keep_warm).",
    "warm": "These are spare workers, or processes that waited for their first ring.",
    "below_min_np": "The ring may not be smaller than elastic.min_np: lower it, or keep spare"
    " workers warm (elastic.spares).",
    "coordinator_away": "Ranks outside of a ring waited for the coordinator. Its log says why it"
    " was away.",
    "forming": "Look at the resets below, and at hosts that do not answer.",
    "state": "A larger elastic.join_share sends the state faster, a smaller one disturbs steps"
    " less.",
    "input": "The ranks waited for examples. Raise data_plan.prefetch_steps, let PyTorch decode in"
    " processes (data_plan.processes), or make the model's feed faster.",
    "exchange": "The ranks waited for the sums of all ranks. Either some ranks are slower, or the"
    " network is: train.compression halves the bytes, local rounds exchange less often.",
    "redone": "These steps were lost with a rank, and done again.",
    "broken": "The ranks waited for one that was lost, until their ring broke."
    " elastic.stall_seconds is how long they wait for one that hangs.",
    "evaluation": "Evaluate less often (train.evaluate_steps), or on fewer examples.",
    "callbacks": "Ranks wait for the leader while the model's callbacks run.",
    "checkpoint": "Save less often: checkpoint.every_seconds.",
    "between": "After each step the ranks count and report: there are fewer steps with a larger"
    " train.batch_size.",
    "writing": "The ranks waited until their predictions were written.",
    "hung": "Below is what hung, and where. elastic.stall_seconds is how long it may.",
    "ending": "This is a fixed cost at the end of a job.",
    LOST: "These processes ended without a last account, as one that is killed does.",
}
"""What to do about a cause, or what it means."""
_ADVICE_WITHOUT_RESETS = {
    "building": "Each process does this once, before its first step: it is a smaller share of a"
    " longer job.",
    "forming": "This is the first ring. Look at the network, and at hosts that do not answer.",
}
"""The same for a job whose ring has never changed, such as a static one."""


def job_facts(state: JobState, details: TargetDetails | None, *, now: float) -> dict[str, str]:
    """The facts of a job by name; unknown facts are empty texts.

    Args:
        state: The state from the job's events.
        details: What the job's launch target tells; None where it tells nothing.
        now: Seconds since the epoch.
    """
    view = details or state
    facts = {"state": f"{view.state}: {view.message}" if view.message else view.state}
    if details is not None:
        facts |= {**details.facts, "age": ago(details.created, now)}
    return facts | _training_facts(state)


class JobTable(NamedTuple):
    """A table about a job."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]


def job_table(state: JobState, details: TargetDetails | None, *, now: float) -> JobTable | None:
    """The table of a job's launch target, or else of its workers; None while there are none."""
    if details is not None and details.header:
        return JobTable(details.title, details.header, details.rows)
    rows = []
    for name, worker in sorted(state.workers.items()):
        shown = _worker_state(name, state)
        # No event says when a worker ended with its job.
        since = "" if shown == _ENDED_WITH_JOB else ago(worker.since, now)
        rows.append((name, shown, since, worker.message))
    return JobTable("Workers", ("WORKER", "STATE", "SINCE", "MESSAGE"), rows) if rows else None


def account_tables(account: Account) -> list[JobTable]:
    """The tables of where the time of a job's ranks went, by cause and by process."""
    seconds = account.seconds
    total = sum(seconds.values())
    causes = [(cause, f"{spent:,.1f}", f"{spent / total:.1%}") for cause, spent in seconds.items()]
    processes = [
        (
            rank.worker,
            str(rank.pid),
            f"{sum(rank.seconds.values()):,.1f}",
            rank.doing or "ended",
            ", ".join(f"{cause} {spent:,.1f}" for cause, spent in _longest(rank.seconds)),
        )
        for rank in account.ranks
    ]
    return [
        JobTable("Where the time went", ("CAUSE", "RANK-SECONDS", "SHARE"), causes),
        JobTable("Processes", ("WORKER", "PID", "SECONDS", "DOING", "MOST OF IT"), processes),
    ]


def stops_table(stops: Stops) -> JobTable:
    """The table of the ranks that the rings of a job have lost."""
    rows = [(clock(stop.time), str(stop)) for stop in stops.losses]
    return JobTable("Why it stopped", (time_header(), "STOP"), rows)


def cost_sentences(state: JobState) -> list[str]:
    """What cost the most beside the work of steps, with its number, and what to change."""
    advice = _ADVICE if state.num_resets else {**_ADVICE, **_ADVICE_WITHOUT_RESETS}
    seconds = state.account.seconds
    total = sum(seconds.values())
    # The steps' own work is what the job is for.
    costs = {it: spent for it, spent in seconds.items() if it not in ("computing", "applying")}
    return [
        f"{cause}: {spent / total:.1%} of all rank-seconds ({spent:,.1f} s)."
        f" {advice.get(cause, '')}".rstrip()
        for cause, spent in sorted(costs.items(), key=lambda cost: -cost[1])
        if spent / total >= _NOTEWORTHY
    ]


_RESET_PARTS = ("notice", "rendezvous", "sync", "first step")


def resets_table(resets: Sequence[Reset]) -> JobTable:
    """The table of changes of a job's ring, with the seconds of their parts."""
    header = (time_header(), "RANKS", "STEP", "STALL", *map(str.upper, _RESET_PARTS), "REASON")
    return JobTable("Resets", header, list(map(_reset_row, resets)))


def _reset_row(reset: Reset) -> tuple[str, ...]:
    event = reset.event
    parts = reset.part_seconds
    return (
        clock(reset.time),
        f"{event.old_size} to {event.new_size}",
        f"{event.step:,}",
        f"{event.seconds:.3f} s",
        *(f"{parts[name]:.3f} s" if name in parts else "" for name in _RESET_PARTS),
        event.reason,
    )


def clock(seconds: float) -> str:
    """A time, in seconds since the epoch, as a clock here shows it."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def zone() -> str:
    """The time zone of `clock`."""
    return time.strftime("%Z")


def time_header() -> str:
    """The header of a column of times, which says their zone."""
    return f"TIME ({zone()})"


def goodput_text(account: Account) -> str:
    """The job's goodput; empty where no rank has written an account yet."""
    if account.goodput is None:
        return ""
    return f"{account.goodput:.1%} of {sum(account.seconds.values()):,.1f} rank-seconds"


def _longest(seconds: Mapping[str, float]) -> list[tuple[str, float]]:
    return sorted(seconds.items(), key=lambda pair: -pair[1])[:_NUM_CAUSES]


def _worker_state(name: str, state: JobState) -> str:
    worker_state = state.workers[name].state
    if state.is_over and worker_state in ("started", "warm", "returned"):
        return _ENDED_WITH_JOB
    is_in_ring = worker_state in ("warm", "returned") and name in state.members
    return "in the ring" if is_in_ring else worker_state


def notable(event: Event) -> str:
    """A line for an event that users should see; empty for other events."""
    match event:
        case EvaluationEvent():
            return f"evaluation at step {event.step:,}: {metrics_text(event.metrics)}"
        case ResetEvent(old_size=0):
            at = f" at step {event.step:,}" if event.step else ""
            return f"ring of {event.new_size} formed{at}"
        case ResetEvent():
            return (
                f"ring {event.old_size} -> {event.new_size} after step {event.step:,} "
                f"({event.reason.rstrip('.')}, {event.seconds:.3f} s)"
            )
        case WorkerEvent(state="left" | "lost" | "returned" | "failed" | "waiting" | "hung"):
            return f"worker {event.worker} {event.state}{_because(event.message)}"
        case CheckpointEvent(state="failed" | "damaged"):
            return f"the checkpoint of step {event.step:,} {event.message}"
        case JobEvent(state="waiting"):
            return f"waiting{_because(event.message)}"
        case LogEvent():
            return event.message
    return ""


def metrics_text(metrics: dict[str, float]) -> str:
    """Metrics on one line."""
    return ", ".join(f"{name} {value:.4g}" for name, value in metrics.items()) or "no metrics"


def privacy_text(event: PrivacyEvent | None) -> str:
    """What a party has used up, on one line; empty for a job without `federated.privacy`."""
    if event is None:
        return ""
    return f"epsilon {event.epsilon:.4g} at delta {event.delta:g} (passes: {event.passes})"


def ago(then: float, now: float) -> str:
    """The time between two moments as text; both are seconds since the epoch."""
    return str(timedelta(seconds=round(max(now - then, 0))))


def _training_facts(state: JobState) -> dict[str, str]:
    if not state.task:
        return {}  # The job has not reported anything yet.
    done = f"{state.done:,} of {state.total:,}" if state.total else f"{state.done:,}"
    return {
        "task": state.task,
        "records" if state.total_records else "step": done,
        "time left": time_left(state),
        "epoch": f"{state.epoch + 1}" if state.step and not state.total_records else "",
        "loss": "" if state.loss is None else f"{state.loss:.4g}",
        "records/s": "" if state.records_per_second is None else f"{state.records_per_second:,.0f}",
        "local steps": "" if state.local_steps is None else f"{state.local_steps:,} in a round",
        "metrics": metrics_text(state.metrics) if state.metrics else "",
        **{f"metrics of {name}": metrics_text(state.parties[name]) for name in state.parties},
        "privacy": privacy_text(state.privacy),
        "ring": f"{count(state.size, 'rank')}, generation {state.generation}, "
        f"{count(state.num_resets, 'reset')}",
        "spares": ", ".join(state.spares),
        "goodput": goodput_text(state.account),
        "last stop": "" if state.stops.last is None else str(state.stops.last),
        "output": state.output,
    }


def time_left(state: JobState) -> str:
    """The estimated time to a job's end as text; empty while it is not known."""
    left = None if state.is_over else state.seconds_left
    return "" if left is None else str(timedelta(seconds=round(left)))


def _because(message: str) -> str:
    return f": {message}" if message else ""


def printable(text: str) -> str:
    """A text that cannot steer a terminal, and can be encoded, whatever a job has written."""
    return "".join(char if char.isprintable() else " " for char in text)


def count(number: int, thing: str) -> str:
    """A number of things: `1 rank`, `2 ranks`."""
    return f"{number} {thing}{'' if number == 1 else 's'}"


def local_state(
    job_dir: JobDir, state: JobState, *, is_ours: bool, is_running: bool, last_time: float | None
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
    task, output = state.task or config.task, state.output or config.output
    state = dataclasses.replace(state, task=task, output=output)
    if state.state in _ENDED:
        return state
    if not is_ours:
        return dataclasses.replace(state, message=_age_of_events(last_time))
    if is_running:
        return state
    # Nothing says when the job ended, but not before the last of its processes wrote something.
    ended = max([last_time or 0.0, *(rank.until for rank in state.account.ranks)])
    return _state_after_lost_launcher(job_dir, state, ended=ended)


def _state_after_lost_launcher(job_dir: JobDir, state: JobState, *, ended: float) -> JobState:
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
    return advance(state, Recorded(ended, "launcher", event))


def as_json(state: JobState, details: TargetDetails | None) -> dict[str, Any]:
    """The whole state, for programs, with the facts from the job's launch target."""
    # What is written below may be large, and is not copied here.
    values = dataclasses.asdict(dataclasses.replace(state, account=Account(), stops=Stops()))
    del values["recent"], values["has_formed"]
    values |= {"seconds_left": state.seconds_left, "spares": state.spares}
    values["account"] = state.account.for_programs()
    values["stops"] = state.stops.for_programs()
    return values if details is None else {**values, **details.fields}


def _age_of_events(last_time: float | None) -> str:
    """A note on a job that plain horovodrun launched, which cannot be asked for its state."""
    if last_time is None:
        return "nothing has happened yet"
    age = ago(last_time, time.time())
    return f"edl did not launch it, so only its events are known; the last one is {age} old"
