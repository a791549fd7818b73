"""What a job's objects in a cluster add up to: one value that list, status and wait show."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from edl_horovod.cluster import labels

__all__ = [
    "CONDITIONS",
    "ENDED",
    "EventView",
    "JobView",
    "PodView",
    "event_view",
    "events_of",
    "pod_view",
    "view",
    "views",
]

Object = dict[str, Any]

ENDED = ("finished", "failed")
"""States that a job does not leave."""
CONDITIONS = ("running", "finished", "ended", "deleted")
"""What can be waited for of a job."""

_STARTING = ("ContainerCreating", "PodInitializing")
"""Reasons of a container that waits for nothing but its turn."""
_MAX_EXIT_SIGNAL = 128

EVICTED = "MPIJobEvicted"
"""The operator's reason for a condition that is wrong."""


@dataclass(frozen=True, kw_only=True)
class PodView:
    """One pod of a job."""

    name: str
    role: str
    """`launcher` or `worker`."""
    state: str
    """`pending`, `starting`, `warm` (could join the ring at once, or is in it), `running` (the
    launcher), `leaving`, `succeeded` or `failed`."""
    restarts: int
    node: str
    message: str
    """Why it is not where it should be; empty if it is."""


@dataclass(frozen=True, kw_only=True)
class EventView:
    """One thing that Kubernetes said of an object."""

    time: str
    """When it was last said, in RFC 3339."""
    kind: str
    """`Normal` or `Warning`."""
    object: str
    """Kind and name of what it is about: `Pod/job-worker-0`."""
    text: str


@dataclass(frozen=True, kw_only=True)
class JobView:
    """One job."""

    name: str
    namespace: str
    state: str
    """`waiting`, `running`, `suspended`, `finished` or `failed`."""
    message: str
    """What the state's reason is, where somebody said it."""
    created: float
    """Seconds since the epoch."""
    num_wanted: int
    """Worker pods that were asked for."""
    num_warm: int
    """Worker pods that are in the ring or could join it at once."""
    slots_per_worker: int
    pods: tuple[PodView, ...] = ()
    waits_for: tuple[str, ...] = ()
    """What keeps pods from working, each reason once."""


def view(job: Object, pods: Iterable[Object] = (), events: Iterable[Object] = ()) -> JobView:
    """What one job is doing.

    Args:
        job: The MPIJob.
        pods: Those of the job; without them the numbers are the operator's.
        events: Those about the job's objects; they say why a pod could not even be made.
    """
    views = tuple(sorted((pod_view(pod) for pod in pods), key=_place))
    spec, status = job["spec"], job.get("status") or {}
    num_wanted = spec["mpiReplicaSpecs"].get("Worker", {}).get("replicas", 0)
    workers = [pod for pod in views if pod.role == labels.WORKER]
    warm = sum(pod.state == "warm" for pod in workers)
    state, message = _state(job, is_ringing=any(pod.state == "running" for pod in views))
    waits = [f"{pod.name}: {pod.message}" for pod in views if pod.message]
    if state == "waiting" and len(workers) < num_wanted:
        waits += _refusals(events)
        if not status.get("conditions"):
            waits.append("mpi-operator, which has not seen the job yet")
    return JobView(
        name=job["metadata"]["name"],
        namespace=job["metadata"]["namespace"],
        state=state,
        message=message,
        created=_time(job["metadata"].get("creationTimestamp")),
        num_wanted=num_wanted,
        num_warm=warm if views else _active(status, "Worker"),
        slots_per_worker=spec.get("slotsPerWorker", 1),
        pods=views,
        waits_for=tuple(waits),
    )


def views(jobs: Sequence[Object], pods: Iterable[Object]) -> list[JobView]:
    """What several jobs are doing.

    Args:
        jobs: The MPIJobs.
        pods: Those of all of them, each with our labels.
    """
    pods_of: dict[tuple[str, str], list[Object]] = {}
    for pod in pods:
        meta = pod["metadata"]
        place = meta["namespace"], labels.job_name_of(meta["labels"])
        pods_of.setdefault(place, []).append(pod)
    places = ((job["metadata"]["namespace"], job["metadata"]["name"]) for job in jobs)
    return [view(job, pods_of.get(place, ())) for job, place in zip(jobs, places, strict=True)]


def pod_view(pod: Object) -> PodView:
    """What one pod is doing, and what keeps it from that.

    Args:
        pod: As the API server has it.
    """
    meta, status = pod["metadata"], pod.get("status") or {}
    role = labels.role_of(meta.get("labels") or {})
    containers = status.get("containerStatuses") or []
    return PodView(
        name=meta["name"],
        role=role,
        state=_pod_state(pod, role),
        restarts=sum(int(one.get("restartCount", 0)) for one in containers),
        node=pod["spec"].get("nodeName") or "",
        message="" if "deletionTimestamp" in meta else _trouble(status),
    )


def events_of(job: Object, events: Iterable[Object]) -> list[Object]:
    """The events about a job's objects, not those of an earlier job of its name.

    Args:
        job: The MPIJob.
        events: Those of its namespace.
    """
    name, created = job["metadata"]["name"], _time(job["metadata"].get("creationTimestamp"))
    return [
        event
        for event in events
        if labels.is_of_job(name, event["involvedObject"])
        and _time(event_view(event).time) >= created
    ]


def event_view(event: Object) -> EventView:
    """One event, reduced.

    Args:
        event: As the API server has it.
    """
    about, made = event["involvedObject"], event["metadata"].get("creationTimestamp")
    return EventView(
        # Older and newer senders differ in where the time is.
        time=str(event.get("lastTimestamp") or event.get("eventTime") or made or ""),
        kind=event.get("type") or "",
        object=f"{about.get('kind')}/{about.get('name')}",
        text=_words(event.get("reason"), event.get("message")),
    )


def _state(job: Object, *, is_ringing: bool) -> tuple[str, str]:
    status = job.get("status") or {}
    holds = {
        one["type"]: str(one.get("message") or one.get("reason") or "")
        for one in status.get("conditions") or []
        # The operator calls a job failed that goes on without an evicted worker, until it ends well
        # (https://github.com/kubeflow/mpi-operator/issues/647); one that has ended has a time.
        if one["status"] == "True"
        and (one.get("reason") != EVICTED or status.get("completionTime"))
    }
    if "Succeeded" in holds:
        return "finished", ""
    if "Failed" in holds:
        return "failed", holds["Failed"]
    if (job["spec"].get("runPolicy") or {}).get("suspend"):
        return "suspended", ""
    # The operator says Running only once all workers run, and an elastic job needs not all.
    return ("running" if is_ringing or "Running" in holds else "waiting"), ""


def _pod_state(pod: Object, role: str) -> str:
    status = pod.get("status") or {}
    phase = status.get("phase", "Pending")
    if phase in ("Succeeded", "Failed"):
        return str(phase).lower()
    if "deletionTimestamp" in pod["metadata"]:
        return "leaving"
    if phase != "Running":
        return "pending"
    if role == labels.LAUNCHER:
        return "running"
    is_ready = _condition(status, "Ready").get("status") == "True"
    return "warm" if is_ready else "starting"


def _trouble(status: Mapping[str, Any]) -> str:
    """Why a pod cannot work; empty for one that works, or that only needs its time."""
    scheduled = _condition(status, "PodScheduled")
    if status.get("phase") == "Pending" and scheduled.get("status") == "False":
        return _words(scheduled.get("reason"), scheduled.get("message"))
    if status.get("phase") == "Failed" and status.get("reason"):  # For instance Evicted.
        return _words(status["reason"], status.get("message"))
    for container in status.get("containerStatuses") or []:
        state = container.get("state") or {}
        waiting, ended = state.get("waiting"), state.get("terminated")
        if waiting and waiting.get("reason") not in (None, *_STARTING):
            last = (container.get("lastState") or {}).get("terminated")
            before = f"; before that it {_end(last)}" if last else ""
            return _words(waiting["reason"], waiting.get("message")) + before
        if ended and ended.get("exitCode"):
            return _end(ended)
    return ""


def _end(terminated: Mapping[str, Any]) -> str:
    code, reason = int(terminated["exitCode"]), terminated.get("reason")
    more = f" ({reason})" if reason and reason != "Error" else ""
    if code > _MAX_EXIT_SIGNAL:
        return f"was killed by signal {code - _MAX_EXIT_SIGNAL}{more}"
    return f"ended with {code}{more}"


def _refusals(events: Iterable[Object]) -> Iterator[str]:
    """Why pods could not be made, as with a quota: the last word of each object that tried."""
    last = {
        event["involvedObject"].get("name", ""): _words(event.get("reason"), event.get("message"))
        for event in events
        if event.get("type") == "Warning" and event.get("reason") == "FailedCreate"
    }
    yield from last.values()


def _words(reason: str | None, message: str | None) -> str:
    return ": ".join(filter(None, (reason, message)))


def _condition(status: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    found = (one for one in status.get("conditions") or [] if one["type"] == kind)
    return next(found, {})


def _active(status: Mapping[str, Any], role: str) -> int:
    return int(((status.get("replicaStatuses") or {}).get(role) or {}).get("active", 0))


def _place(pod: PodView) -> tuple[bool, int, str]:
    """The launcher first, then the workers by their numbers."""
    is_worker = pod.role == labels.WORKER
    return is_worker, labels.worker_index(pod.name) if is_worker else 0, pod.name


def _time(stamp: str | None) -> float:
    return datetime.fromisoformat(stamp).timestamp() if stamp else 0.0
