"""The objects of a job in a cluster: their kinds, names and labels, with those of mpi-operator."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import quote


@dataclass(frozen=True)
class Kind:
    """A kind of object, in one version of its API."""

    name: str
    """The name in manifests."""
    plural: str
    """The name in paths."""
    api_version: str = "v1"
    is_namespaced: bool = True
    """Whether such an object belongs to a namespace."""

    @property
    def resource(self) -> str:
        """The name in RBAC and kubectl: `pods`, `mpijobs.kubeflow.org`."""
        group = self.api_version.rpartition("/")[0]
        return f"{self.plural}.{group}" if group else self.plural


KINDS = {
    kind.name: kind
    for kind in (
        Kind("ConfigMap", "configmaps"),
        Kind("Event", "events"),
        Kind("PersistentVolumeClaim", "persistentvolumeclaims"),
        Kind("Pod", "pods"),
        Kind("ResourceQuota", "resourcequotas"),
        Kind("Secret", "secrets"),
        Kind("Service", "services"),
        Kind("ServiceAccount", "serviceaccounts"),
        Kind("Job", "jobs", "batch/v1"),
        Kind("Lease", "leases", "coordination.k8s.io/v1"),
        Kind("NetworkPolicy", "networkpolicies", "networking.k8s.io/v1"),
        Kind("Role", "roles", "rbac.authorization.k8s.io/v1"),
        Kind("RoleBinding", "rolebindings", "rbac.authorization.k8s.io/v1"),
        Kind("LocalSubjectAccessReview", "localsubjectaccessreviews", "authorization.k8s.io/v1"),
        Kind(
            "SelfSubjectAccessReview",
            "selfsubjectaccessreviews",
            "authorization.k8s.io/v1",
            is_namespaced=False,
        ),
        Kind("Namespace", "namespaces", is_namespaced=False),
        Kind("MPIJob", "mpijobs", "kubeflow.org/v2beta1"),
    )
}
VERSION = Kind("Version", "version", "")
"""The version of the server; it belongs to no API and no namespace."""


def kind_of(name: str, api_version: str = "") -> Kind:
    """Find the kind of a manifest; if it has an API version, that must be the one in use here."""
    kind = KINDS[name]
    assert api_version in ("", kind.api_version), f"{name} {api_version} is not {kind.api_version}"
    return kind


def path_of(kind: Kind, namespace: str | None, name: str = "", subresource: str = "") -> str:
    """Path at the API server of an object, of a subresource, or without `name` of the collection.

    Without a namespace it is the collection of all namespaces, or what belongs to none.
    """
    if not kind.api_version:
        return f"/{kind.plural}"
    root = "/apis/" if "/" in kind.api_version else "/api/"
    parts = [root + kind.api_version]
    if namespace is not None:
        parts += ["namespaces", quote(namespace, safe="")]
    parts += [kind.plural, *(quote(part, safe="") for part in (name, subresource) if part)]
    return "/".join(parts)


LAUNCHER = "launcher"
WORKER = "worker"

_NAME = "app.kubernetes.io/name"
_INSTANCE = "app.kubernetes.io/instance"
_MANAGED_BY = "app.kubernetes.io/managed-by"
_OURS = {_NAME: "edl-horovod", _MANAGED_BY: "edl"}

# mpi-operator puts these on the pods of a job, and finds them by them.
_OPERATOR = "training.kubeflow.org/operator-name"
_JOB_NAME = "training.kubeflow.org/job-name"
_JOB_ROLE = "training.kubeflow.org/job-role"

# Kueue suspends and releases the jobs with this label.
_QUEUE = "kueue.x-k8s.io/queue-name"


def owned_name(job: str) -> str:
    """Name of each object that edl creates for a job, whatever its kind, except the MPIJob.

    mpi-operator makes `<job>`, `<job>-config`, `<job>-ssh`, `<job>-launcher` and `<job>-worker-N`.
    """
    return f"{job}-edl"


def coordinator_service(job: str) -> str:
    """Name of the Service at which workers find the job's coordinator."""
    return f"{job}-coordinator"


def worker_pod(job: str, index: int) -> str:
    """Name of a worker pod, as mpi-operator chooses it."""
    return f"{job}-worker-{index}"


def worker_index(pod: str) -> int:
    """Number of a worker pod in its job; mpi-operator removes the highest numbers first."""
    return int(pod.rpartition("-")[2])


def is_of_job(job: str, reference: Mapping[str, str]) -> bool:
    """Whether an event's `involvedObject` belongs to a job, by its kind and name."""
    name = reference.get("name", "")
    if reference.get("kind") == "Workload":  # An object of Kueue.
        return re.fullmatch(f"mpijob-{re.escape(job)}-[0-9a-f]+", name) is not None
    parts = "-(edl|coordinator|config|ssh)|-(launcher|worker)(-.*)?"
    return re.fullmatch(f"{re.escape(job)}({parts})?", name) is not None


def job_labels(job: str) -> dict[str, str]:
    """Labels of every object that edl creates for a job."""
    return {**_OURS, _INSTANCE: job}


def job_name_of(labels: Mapping[str, str]) -> str:
    """The job of an object of edl or mpi-operator, by its labels; empty for other objects."""
    return labels.get(_INSTANCE) or labels.get(_JOB_NAME, "")


def role_of(labels: Mapping[str, str]) -> str:
    """`LAUNCHER` or `WORKER`, by the labels of mpi-operator; empty for any other pod."""
    return labels.get(_JOB_ROLE, "")


def pod_labels(job: str, role: str) -> dict[str, str]:
    """Labels of mpi-operator on a job's pods, by which Services and policies select them."""
    return {_OPERATOR: "mpi-operator", _JOB_NAME: job, _JOB_ROLE: role}


def queue_of(labels: Mapping[str, str]) -> str:
    """The queue of Kueue that an MPIJob is in, by its labels; empty for none."""
    return labels.get(_QUEUE, "")


def selector(labels: Mapping[str, str]) -> str:
    """The label selector for objects that have all these labels."""
    return ",".join(f"{key}={value}" for key, value in labels.items())


def pods_selector(job: str, role: str = "") -> str:
    """The label selector for a job's pods, of one role or of both."""
    return selector(pod_labels(job, role) if role else {_JOB_NAME: job})


def jobs_selector() -> str:
    """The label selector for the MPIJobs that edl created."""
    return selector(_OURS)
