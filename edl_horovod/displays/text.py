"""What people read of a job: its facts, its workers or pods, and what happened to it, in words."""

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from edl_horovod.files.json_text import numbers
from edl_horovod.job.state import JobState

if TYPE_CHECKING:
    from edl_horovod.cluster.status import JobView

__all__ = [
    "POD_HEADER",
    "WORKER_HEADER",
    "ago",
    "job_facts",
    "metrics_text",
    "notable",
    "other_waits",
    "pod_rows",
    "worker_rows",
]

POD_HEADER = ("POD", "STATE", "RESTARTS", "NODE", "MESSAGE")
WORKER_HEADER = ("WORKER", "STATE", "SINCE", "MESSAGE")


def job_facts(state: JobState, job: "JobView | None", *, now: float) -> dict[str, str]:
    """The facts by name; one that is not known is empty.

    Args:
        state: Where the training is.
        job: What the cluster has of it; None for a job on this machine.
        now: Seconds since the epoch.
    """
    said = state if job is None else job
    facts = {"state": f"{said.state}: {said.message}" if said.message else said.state}
    if job is not None:
        facts["workers"] = f"{job.num_warm} of {job.num_wanted} pods warm"
        facts["age"] = ago(job.created, now)
    return facts | _training_facts(state)


def worker_rows(state: JobState, now: float) -> list[tuple[str, ...]]:
    """What each worker did last, under `WORKER_HEADER`."""
    return [
        (name, _worker_state(name, state), ago(worker.since, now), worker.message)
        for name, worker in sorted(state.workers.items())
    ]


def _worker_state(name: str, state: JobState) -> str:
    said = state.workers[name].state
    if state.is_over and said in ("started", "warm"):
        return "ended"
    return "in the ring" if said == "warm" and name in state.members else said


def pod_rows(job: "JobView") -> list[tuple[str, ...]]:
    """What each pod does, under `POD_HEADER`."""
    return [(pod.name, pod.state, str(pod.restarts), pod.node, pod.message) for pod in job.pods]


def other_waits(job: "JobView") -> list[str]:
    """What a job waits for beside what its pods say."""
    pods = {f"Pod/{pod.name}" for pod in job.pods}
    return [str(cause) for cause in job.waits_for if cause.object not in pods]


def notable(event: dict[str, Any]) -> str:
    """A line for an event that people should not miss; empty for the others."""
    match event:
        case {"kind": "evaluation", "metrics": metrics, "step": step}:
            return f"evaluation at step {step:,}: {metrics_text(numbers(metrics))}"
        case {"kind": "reset", "old_size": 0, "new_size": new_size}:
            at = f" at step {event['step']:,}" if event["step"] else ""
            return f"ring of {new_size} formed{at}"
        case {"kind": "reset"}:
            return (
                f"ring {event['old_size']} -> {event['new_size']} after step {event['step']:,} "
                f"({event['reason']}, {event['seconds']:.1f} s)"
            )
        case {"kind": "worker", "state": "left" | "lost" | "failed" | "waiting" | "hung"}:
            return f"worker {event['worker']} {event['state']}{_because(event)}"
        case {"kind": "checkpoint", "state": "failed" | "damaged", "step": step}:
            return f"the checkpoint of step {step:,} {event['message']}"
        case {"kind": "job", "state": "waiting"}:
            return f"waiting{_because(event)}"
        case {"kind": "log", "message": message}:
            return str(message)
    return ""


def metrics_text(metrics: dict[str, float]) -> str:
    """Metrics on one line."""
    return ", ".join(f"{name} {value:.4g}" for name, value in metrics.items()) or "no metrics"


def ago(then: float, now: float) -> str:
    """How long something is ago, as text; both are seconds since the epoch."""
    return str(timedelta(seconds=round(max(now - then, 0))))


def _training_facts(state: JobState) -> dict[str, str]:
    if not state.task:
        return {}  # Nothing has been heard of it yet.
    done = f"{state.done:,} of {state.total:,}" if state.total else f"{state.done:,}"
    return {
        "task": state.task,
        "records" if state.total_records else "step": done,
        "epoch": f"{state.epoch + 1}" if state.step and not state.total_records else "",
        "loss": "" if state.loss is None else f"{state.loss:.4g}",
        "records/s": "" if state.records_per_second is None else f"{state.records_per_second:,.0f}",
        "metrics": metrics_text(state.metrics) if state.metrics else "",
        "ring": f"{_count(state.size, 'rank')}, generation {state.generation}, "
        f"{_count(state.num_resets, 'reset')}",
        "spares": ", ".join(state.spares),
        "output": state.output,
    }


def _because(event: dict[str, Any]) -> str:
    message = event.get("message", "")
    return f": {message}" if message else ""


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"
