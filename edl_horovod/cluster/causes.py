"""Why a job does not progress: the objects that are missing, the reasons, and hints."""

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from edl_horovod.cluster import objects

_REFUSED = ("FailedCreate", "MPIJobFailed", "ErrResourceExists", "ValidationError")
"""Reasons of events about objects that cannot be created: the first is Kubernetes' own, the others
mpi-operator's, whose events about such pods refer to the MPIJob."""
_IS_IT_THERE = (
    "If this lasts, check that mpi-operator runs in the cluster and looks after this namespace; "
    "its log says what it lacks."
)
GRANT = (
    "Have an administrator allow it to update and patch jobs.batch/status: "
    "kubectl patch clusterrole mpi-operator --type=json -p "
    """'[{"op": "add", "path": "/rules/-", "value": {"apiGroups": ["batch"], """
    """"resources": ["jobs/status"], "verbs": ["update", "patch"]}}]'."""
)
"""The hint for an operator without the right to resume a launcher that has run before."""
_NO_HINT = "It is tried again and again; edl events {name} shows what else was said."


@dataclass(frozen=True, kw_only=True)
class EventView:
    """An event of Kubernetes about an object."""

    time: str
    """When it last occurred, in RFC 3339."""
    kind: str
    """`Normal` or `Warning`."""
    object: str
    """Kind and name of the object that it is about: `Pod/job-worker-0`."""
    text: str


@dataclass(frozen=True)
class Cause:
    """A reason why a job does not progress."""

    object: str
    """Kind and name of the object that it is about: `MPIJob/mnist`."""
    reason: str
    """The reason: a message of the cluster, or a conclusion from its objects."""
    hint: str = ""
    """What to do about it; empty if the reason says that already."""

    def __str__(self) -> str:
        said = f"{self.object}: {self.reason}"
        return f"{said.removesuffix('.')}. {self.hint}" if self.hint else said


@dataclass(frozen=True, kw_only=True)
class Missing:
    """The pods that a job should have and does not have."""

    workers: Collection[str] = ()
    """Their names."""
    launcher: bool = False
    launcher_seen: float = 0.0
    """When the newest failed launcher pod was created, in seconds since the epoch."""

    def __bool__(self) -> bool:
        return bool(self.workers) or self.launcher


_POD = re.compile(r'\bpods? "([^"]+)"', re.IGNORECASE)

_HINTS = tuple(
    (re.compile(pattern), hint)
    for pattern, hint in (
        (
            "exceeded quota",
            "Ask for less (kubernetes.worker, kubernetes.launcher), scale the job down with edl "
            "scale, end other jobs in the namespace, or have the quota raised.",
        ),
        (
            "failed quota",
            "The quota counts a resource that these pods do not ask for: have a LimitRange give "
            "it to them by default, or have the quota changed.",
        ),
        (
            "violates PodSecurity.*hostPath",
            "Mount a claim instead of kubernetes.volumes.NAME.host_path, or submit to a namespace "
            "whose label pod-security.kubernetes.io/enforce is privileged.",
        ),
        (
            "violates PodSecurity",
            "Change what it names, or submit to a namespace whose label "
            "pod-security.kubernetes.io/enforce allows it.",
        ),
        (
            r"looking up service account (?P<namespace>[^/]+)/(?P<name>[^:]+): .*not found",
            "Create it: kubectl create serviceaccount {name} -n {namespace}",
        ),
        (
            "no PriorityClass with name",
            "Choose one of kubectl get priorityclasses for kubernetes.priority_class and "
            "kubernetes.launcher_priority_class, or have this one created.",
        ),
        (
            r"(maximum|minimum) .* usage per |max limit to request ratio",
            "A LimitRange of the namespace says so: change kubernetes.worker and "
            "kubernetes.launcher, or have the LimitRange changed.",
        ),
        ("admission webhook", "Ask the owner of this webhook in the cluster what it requires."),
        (
            'User "system:serviceaccount:.* cannot ',
            "Have an administrator add this right to mpi-operator's ClusterRole.",
        ),
        (
            "because it is being terminated",
            "Submit to another namespace: this one is being deleted.",
        ),
        (
            "already exists and is not managed by MPIJob",
            "Remove that object, or delete the job and submit it under another kubernetes.name.",
        ),
        (
            "^ValidationError",
            "Delete the job. If edl made it as it is, the operator is not mpi-operator 0.8.",
        ),
        (
            r'" is invalid: ',
            "Change the setting that it names, and submit again under another kubernetes.name.",
        ),
    )
)
"""Patterns of event texts and their hints, which use the groups; the first match counts."""


_WORKLOAD = re.compile(r"\bWorkload(?:/|: \S+/)(\S+)")
"""The object of Kueue's events, and what it says of the MPIJob."""

Lag = Literal["job", "pods", "launcher", "stop", "resume"]
"""The step that mpi-operator has not done yet."""

_LAGS: dict[Lag, tuple[str, str]] = {
    "job": ("mpi-operator has not seen it yet", _IS_IT_THERE),
    "pods": ("mpi-operator has seen it, and made none of its pods yet", _IS_IT_THERE),
    "stop": ("mpi-operator has not acted on the stop yet", _IS_IT_THERE),
    "resume": ("mpi-operator has not acted on the resume yet", _IS_IT_THERE),
    "launcher": (
        "mpi-operator has not resumed the launcher, although all workers are there",
        "Below Kubernetes 1.36, mpi-operator 0.8.1 and later need a right for it that their own "
        f"ClusterRole does not give. {GRANT} The operator then tries again within 17 minutes.",
    ),
}


def lag_of_operator(job: str, lag: Lag) -> Cause:
    """The cause for a job about which the operator does nothing, although nothing is refused."""
    about = f"Job/{job}-launcher" if lag == "launcher" else f"MPIJob/{job}"
    return Cause(about, *_LAGS[lag])


def end_of_lost_pod(pod: str, node: str, *, is_launcher: bool) -> str:
    """The hint for a pod on a lost node: how to get a replacement for it."""
    tell = (
        f"If the node is lost, have an administrator tell the cluster: kubectl taint node {node} "
        f"node.kubernetes.io/out-of-service=nodeshutdown:NoExecute, or kubectl delete node {node}."
    )
    if is_launcher:
        return (
            f"{tell} Only then another launcher is made; kubectl delete pod --force does not help. "
            "The ring of an elastic job keeps training in the meantime, for at most "
            "elastic.coordinator_away_seconds."
        )
    return f"{tell} Another worker pod is also made after kubectl delete pod {pod} --force."


def held_by_kueue(queue: str, events: Iterable[EventView]) -> Cause:
    """The cause for a job that Kueue holds, with Kueue's last event if it still exists.

    Its events name the Workload that it made for the job. Asking for that would take a right more,
    in a version of its API that differs between releases.
    """
    workload, said = "", ""
    for event in events:
        if named := _WORKLOAD.search(f"{event.object} {event.text}"):
            workload = named[1]
        if event.kind == "Warning" and event.object.startswith("Workload/"):
            said = f": {event.text}"
    reason = f"Kueue has not admitted the job{said}"
    return Cause(f"LocalQueue/{queue}", reason, f"See kubectl describe workload {workload}".strip())


def refusals(job: str, events: Iterable[EventView], missing: Missing) -> Iterator[Cause]:
    """Yield why pods are not created: the last event of each object about missing pods.

    Args:
        job: Name of the MPIJob.
        events: Those of the job, the oldest first.
        missing: What the job lacks. What was refused once and is there by now is no cause.
    """
    warnings = (event for event in events if event.kind == "Warning")
    refused = (event for event in warnings if event.text.partition(":")[0] in _REFUSED)
    last = {event.object: event for event in refused if _is_about(event, missing)}
    for event in last.values():
        yield Cause(event.object, event.text, _hint(event.text, job))


def _is_about(event: EventView, missing: Missing) -> bool:
    if event.object.startswith("Job/") or "launcher pod created failed" in event.text:
        return missing.launcher and seconds_of(event.time) >= missing.launcher_seen
    named = _POD.search(event.text)
    return named[1] in missing.workers if named else bool(missing)


def _hint(text: str, job: str) -> str:
    for pattern, hint in _HINTS:
        if match := pattern.search(text):
            return hint.format(**match.groupdict())
    return _NO_HINT.format(name=job)


Object = dict[str, Any]


def events_of(job: Object, events: Iterable[Object]) -> list[EventView]:
    """The events of a namespace about a job, oldest first; none of an earlier job of that name."""
    name, created = job["metadata"]["name"], seconds_of(job["metadata"].get("creationTimestamp"))
    ours = (event for event in events if objects.is_of_job(name, event["involvedObject"]))
    times = [(seconds_of(event.time), event) for event in map(_event_view, ours)]
    times.sort(key=lambda pair: pair[0])
    return [event for seconds, event in times if seconds >= created]


def _event_view(event: Object) -> EventView:
    """Extract the facts of an event of the API server."""
    about, created = event["involvedObject"], event["metadata"].get("creationTimestamp")
    return EventView(
        # The field of the time depends on the version of the sender.
        time=str(event.get("lastTimestamp") or event.get("eventTime") or created or ""),
        kind=event.get("type") or "",
        object=f"{about.get('kind')}/{about.get('name')}",
        text=": ".join(filter(None, (event.get("reason"), event.get("message")))),
    )


def seconds_of(stamp: str | None) -> float:
    """Convert a time of the API server to seconds since the epoch; 0 for None."""
    return datetime.fromisoformat(stamp).timestamp() if stamp else 0.0
