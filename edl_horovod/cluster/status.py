"""The state of a job in a cluster, derived from its objects, for list, status and wait."""

import dataclasses
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edl_horovod.cluster import causes, objects
from edl_horovod.cluster.causes import Cause, EventView, Lag, Missing
from edl_horovod.errors import meaning_of
from edl_horovod.job.state import TargetDetails

Object = dict[str, Any]

ENDED = ("finished", "failed")
"""States that a job does not leave."""

_STARTING = ("ContainerCreating", "PodInitializing")
"""Reasons of a container that is starting as usual."""
_MAX_EXIT_SIGNAL = 128
_OVERDUE_SECONDS = 30.0
"""Time beyond the grace period after which a deleted pod counts as stuck: a working kubelet removes
it earlier, and the clocks of cluster and client differ by less."""

EVICTED = "MPIJobEvicted"
"""The operator's reason for a condition that does not hold."""


@dataclass(frozen=True, kw_only=True)
class PodView:
    """The state of a pod of a job."""

    name: str
    role: str
    """`launcher` or `worker`."""
    state: str
    """`pending`, `starting`, `warm` (could join the ring at once, or is in it), `running` (the
    launcher), `leaving`, `succeeded` or `failed`."""
    restarts: int
    node: str
    message: str
    """Why it does not work; empty for one that works, or is starting."""
    created: float
    """Seconds since the epoch."""


@dataclass(frozen=True, kw_only=True)
class JobView:
    """One job."""

    name: str
    namespace: str
    state: str
    """`waiting`, `running`, `stopping`, `suspended`, `finished` or `failed`."""
    message: str
    """The reason for the state; empty if it is not known."""
    created: float
    """Seconds since the epoch."""
    num_wanted: int
    """Number of requested worker pods."""
    num_warm: int
    """Number of worker pods that are in the ring or could join it at once."""
    slots_per_worker: int
    queue: str = ""
    """The queue of Kueue that it is in; empty for none."""
    pods: tuple[PodView, ...] = ()
    waits_for: tuple[Cause, ...] = ()
    """What prevents pods from being created or from working; each cause once."""

    def details(self) -> TargetDetails:
        """What displays show."""
        pods = {f"Pod/{pod.name}" for pod in self.pods}
        others = (cause for cause in self.waits_for if cause.hint or cause.object not in pods)
        warm = f"{self.num_warm} of {self.num_wanted}"
        return TargetDetails(
            state=self.state,
            message=self.message,
            created=self.created,
            summary=f"{warm} worker pods warm",
            facts={"workers": f"{warm} pods warm"},
            title="Pods",
            header=("POD", "STATE", "RESTARTS", "NODE", "MESSAGE"),
            rows=tuple(
                (pod.name, pod.state, str(pod.restarts), pod.node, pod.message) for pod in self.pods
            ),
            waits_for=tuple(map(str, self.waits_for)),
            other_waits=tuple(map(str, others)),
            has_started=any(pod.state != "pending" for pod in self.pods),
            fields=dataclasses.asdict(self),
        )

    @property
    def missing(self) -> Missing:
        """The pods that it should have by now and does not have."""
        if self.state not in ("waiting", "running"):
            return Missing()
        present = {pod.name for pod in self.pods}
        wanted = (objects.worker_pod(self.name, index) for index in range(self.num_wanted))
        launchers = _launchers(self.pods)
        return Missing(
            workers=frozenset(wanted) - present,
            launcher=all(pod.state == "failed" for pod in launchers),
            launcher_seen=max((pod.created for pod in launchers), default=0.0),
        )


def view(
    job: Object,
    pods: Iterable[Object] = (),
    events: Sequence[EventView] = (),
    *,
    now: float | None = None,
) -> JobView:
    """Derive the state of a job; its events, oldest first, tell why pods are not created.

    What runs is counted here: the operator's own counts are as old as its last look. `now` is in
    seconds since the epoch; None takes the clock's.
    """
    seen_at = time.time() if now is None else now
    views = tuple(sorted((pod_view(pod, now=seen_at) for pod in pods), key=_place))
    spec = job["spec"]
    queue = objects.queue_of(job["metadata"].get("labels") or {})
    state, message = _state(job, views, queue)
    seen = JobView(
        name=job["metadata"]["name"],
        namespace=job["metadata"]["namespace"],
        state=state,
        message=message,
        created=causes.seconds_of(job["metadata"].get("creationTimestamp")),
        num_wanted=spec["mpiReplicaSpecs"].get("Worker", {}).get("replicas", 0),
        num_warm=sum(pod.role == objects.WORKER and pod.state == "warm" for pod in views),
        slots_per_worker=spec.get("slotsPerWorker", 1),
        queue=queue,
        pods=views,
    )
    return dataclasses.replace(seen, waits_for=tuple(_causes(seen, job, events)))


def views(jobs: Sequence[Object], pods: Iterable[Object]) -> list[JobView]:
    """Derive the states of several jobs from the jobs and the pods of all of them."""
    pods_of: defaultdict[tuple[str, str], list[Object]] = defaultdict(list)
    for pod in pods:
        meta = pod["metadata"]
        pods_of[meta["namespace"], objects.job_name_of(meta["labels"])].append(pod)
    places = ((job["metadata"]["namespace"], job["metadata"]["name"]) for job in jobs)
    return [view(job, pods_of[place]) for job, place in zip(jobs, places, strict=True)]


def pod_view(pod: Object, *, now: float) -> PodView:
    """Derive the state of a pod, and its problem; `now` is in seconds since the epoch."""
    meta, status = pod["metadata"], pod.get("status") or {}
    role = objects.role_of(meta.get("labels") or {})
    containers = status.get("containerStatuses") or []
    return PodView(
        name=meta["name"],
        role=role,
        state=_pod_state(pod, role),
        restarts=sum(int(container.get("restartCount", 0)) for container in containers),
        node=pod["spec"].get("nodeName") or "",
        message=_hold(pod, now) if "deletionTimestamp" in meta else _trouble(status, role),
        created=causes.seconds_of(meta.get("creationTimestamp")),
    )


def _state(job: Object, pods: Sequence[PodView], queue: str) -> tuple[str, str]:
    conditions = _conditions(job)
    if "Succeeded" in conditions:
        return "finished", ""
    if "Failed" in conditions:
        # The operator appends the launcher pod's message, which is empty after a plain exit.
        said = conditions["Failed"].removesuffix(": ")
        ends = [f"{pod.name} {pod.message}" for pod in _launchers(pods) if pod.state == "failed"]
        return "failed", ": ".join(filter(None, [said, *ends[-1:]]))
    if _is_suspended(job):
        # Suspension was requested; the pods show whether it is complete.
        if left := sum(pod.state not in ("succeeded", "failed") for pod in pods):
            return "stopping", f"{left} {'pod is' if left == 1 else 'pods are'} still there"
        return ("waiting", f"in queue {queue} of Kueue") if queue else ("suspended", "")
    # The operator reports Running only once all workers run, and keeps it from then on.
    is_running = any(pod.state in ("running", "succeeded") for pod in _launchers(pods))
    return "running" if is_running else "waiting", ""


def _is_suspended(job: Object) -> bool:
    return bool((job["spec"].get("runPolicy") or {}).get("suspend"))


def _launchers(pods: Iterable[PodView]) -> list[PodView]:
    """Launcher pods, oldest first; of two of the same second, a failed one counts as older."""
    launchers = (pod for pod in pods if pod.role == objects.LAUNCHER)
    return sorted(launchers, key=lambda pod: (pod.created, pod.state != "failed", pod.name))


def _conditions(job: Object) -> dict[str, str]:
    """The conditions that hold for a job, by type, each with its message or else its reason."""
    status = job.get("status") or {}
    return {
        condition["type"]: str(condition.get("message") or condition.get("reason") or "")
        for condition in status.get("conditions") or []
        # The operator reports a job as failed when a worker is evicted, although the job continues
        # without it (https://github.com/kubeflow/mpi-operator/issues/647). A completion time shows
        # that the job has really ended.
        if condition["status"] == "True"
        and (condition.get("reason") != EVICTED or status.get("completionTime"))
    }


def _causes(seen: JobView, job: Object, events: Sequence[EventView]) -> Iterator[Cause]:
    """Yield what a job waits for: its pods, a refusal of pods, or else the operator."""
    if seen.state in ENDED:
        return
    if seen.queue and seen.state == "waiting" and _is_suspended(job):
        yield causes.held_by_kueue(seen.queue, events)
        return
    replaced = _launchers(seen.pods)[:-1]
    for pod in seen.pods:
        if pod.message and pod not in replaced:
            hint, is_launcher = "", pod.role == objects.LAUNCHER
            if pod.state == "leaving":
                hint = causes.end_of_lost_pod(pod.name, pod.node, is_launcher=is_launcher)
            yield Cause(f"Pod/{pod.name}", pod.message, hint)
    refused = list(causes.refusals(seen.name, events, seen.missing))
    lag = None if refused else _lag(seen, job, is_seen=bool(events))
    yield from refused if lag is None else [causes.lag_of_operator(seen.name, lag)]


def _lag(seen: JobView, job: Object, *, is_seen: bool) -> Lag | None:
    """The step that the operator has not done yet; None if that is not known."""
    is_marked = "Suspended" in _conditions(job)
    if seen.state == "stopping":
        return None if is_marked else "stop"
    if not seen.missing:
        return None
    if is_marked:
        has_workers = any(pod.state in ("starting", "warm") for pod in seen.pods)
        return "launcher" if has_workers and not seen.missing.workers else "resume"
    if not seen.pods and not (job.get("status") or {}).get("conditions"):
        return "pods" if is_seen else "job"
    return None


def _pod_state(pod: Object, role: str) -> str:
    status = pod.get("status") or {}
    phase = status.get("phase", "Pending")
    if phase in ("Succeeded", "Failed"):
        return str(phase).lower()
    if "deletionTimestamp" in pod["metadata"]:
        return "leaving"
    if phase != "Running":
        return "pending"
    if role == objects.LAUNCHER:
        return "running"
    return "warm" if _condition(status, "Ready").get("status") == "True" else "starting"


def _hold(pod: Object, now: float) -> str:
    """Why a deleted pod still exists; empty while its grace period lasts."""
    meta, status = pod["metadata"], pod.get("status") or {}
    if status.get("phase") in ("Succeeded", "Failed"):
        return ""
    # A cluster deletes the pods of a node that has not reported for some time.
    disruption, ready = _condition(status, "DisruptionTarget"), _condition(status, "Ready")
    is_lost = disruption.get("reason") == "DeletionByTaintManager" and ready.get("status") != "True"
    if is_lost or now > causes.seconds_of(meta["deletionTimestamp"]) + _OVERDUE_SECONDS:
        return f"it is being deleted, but its node {pod['spec'].get('nodeName')} does not end it"
    return ""


def _trouble(status: Mapping[str, Any], role: str) -> str:
    """Why a pod does not work; empty for one that works, or is starting."""
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
            before = f"; before that it {_end(last, role)}" if last else ""
            return _words(waiting["reason"], waiting.get("message")) + before
        if ended and ended.get("exitCode"):
            return _end(ended, role)
    return ""


def _end(terminated: Mapping[str, Any], role: str) -> str:
    code, reason = int(terminated["exitCode"]), terminated.get("reason")
    if role == objects.LAUNCHER and reason == "Error":
        reason = meaning_of(code)  # It ends with the job's exit code.
    more = f" ({reason})" if reason and reason != "Error" else ""
    if code > _MAX_EXIT_SIGNAL:
        return f"was killed by signal {code - _MAX_EXIT_SIGNAL}{more}"
    return f"ended with {code}{more}"


def _words(reason: str | None, message: str | None) -> str:
    return ": ".join(filter(None, (reason, message)))


def _condition(status: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    conditions = status.get("conditions") or []
    return next((condition for condition in conditions if condition["type"] == kind), {})


def _place(pod: PodView) -> tuple[bool, int, str]:
    """Sort key: the launcher first, then the workers by their numbers."""
    is_worker = pod.role == objects.WORKER
    return is_worker, objects.worker_index(pod.name) if is_worker else 0, pod.name
