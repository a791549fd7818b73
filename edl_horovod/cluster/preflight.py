"""Checks before a job is submitted that a cluster can run it.

Its quotas must have room for the pods that the job starts with: mpi-operator creates the launcher
only when every worker pod is created, so the job would wait without a word, whatever elastic.min_np
says.
"""

import logging
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from edl_horovod.cluster.causes import GRANT
from edl_horovod.cluster.client import Cluster
from edl_horovod.cluster.styles import style_of
from edl_horovod.config.schema import JobConfig
from edl_horovod.errors import ClusterError, ClusterForbidden, ObjectNotFound, QuotaExceeded

log = logging.getLogger(__name__)

OLDEST_KUBERNETES = (1, 24)
"""The first version in which a launcher's Job can be suspended with any feature gates."""
_REMOVES_START_TIME = (1, 36)
"""The first version whose Job controller removes the start time of a suspended Job."""
_OPERATOR_NAMESPACES = ("mpi-operator", "kubeflow")
"""Namespaces of the operator in its own manifests: alone, and as a part of Kubeflow."""
Object = Mapping[str, Any]

_SCOPES = {"NotTerminating", "NotBestEffort"}
"""Scopes of quotas that contain all pods of a job; for other scopes that is not known here."""
_WITHOUT_PREFIX = ("cpu", "memory")
"""Resources that a quota may also name without the prefix `requests.`."""
_QUANTITY = re.compile(r"([-+]?[0-9.]+)(?:[eE]([-+]?[0-9]+)|([numkKMGTPE]i?)?)")
_FACTORS: dict[str | None, Decimal] = {
    None: Decimal(1),
    **{unit: Decimal(1000) ** power for power, unit in enumerate("num", start=-3)},
    **{unit: Decimal(1000) ** power for power, unit in enumerate("kMGTPE", start=1)},
    **{f"{unit}i": Decimal(1024) ** power for power, unit in enumerate("KMGTPE", start=1)},
}


def check_version(cluster: Cluster) -> None:
    """Check that a cluster is new enough to run jobs.

    Raises:
        ClusterError: Its Kubernetes is too old, or it cannot be asked.
    """
    version, said = _version(cluster)
    if version is not None and version < OLDEST_KUBERNETES:
        oldest = ".".join(map(str, OLDEST_KUBERNETES))
        raise ClusterError(
            f"Kubernetes {oldest} is the oldest version that can carry a job: older ones cannot"
            " suspend the launcher.",
            received=f"{cluster.server} runs Kubernetes {said}",
            hint="Have the cluster upgraded, or choose another context.",
        )


def warn_of_resume(cluster: Cluster, *, job: str = "", is_dry_run: bool) -> None:
    """Log a warning if the operator could not resume a stopped job.

    To resume a launcher that has run before, mpi-operator removes the start time from the status of
    its Job. The ClusterRole in its own manifests does not allow that
    (https://github.com/kubeflow/mpi-operator/blob/v0.8.2/manifests/base/cluster-role.yaml). It need
    not do so where Kubernetes has removed that time already, and 0.8.0 goes on without.

    Args:
        cluster: The namespace of the job.
        job: Its name, if it exists already.
        is_dry_run: Say also where this cannot be found out.
    """
    try:
        version, _ = _version(cluster)
        if version is not None and version >= _REMOVES_START_TIME:
            return
        for home in _OPERATOR_NAMESPACES:
            # An account that may not even update Jobs does not belong to a working operator.
            if not _may_update(cluster, home):
                continue
            if not _may_update(cluster, home, "status") and not _goes_on_without(cluster, job):
                log.warning(
                    "mpi-operator 0.8.1 and later cannot resume a job here once it was stopped: %s "
                    "may not update jobs.batch/status in namespace %s. %s",
                    _account(home),
                    cluster.namespace,
                    GRANT,
                )
            return
        why = "None of its usual service accounts may update Jobs in this namespace."
    except ClusterError as error:  # A failed check must not prevent the stop.
        why = str(error)
    if is_dry_run:
        log.warning(
            "Whether mpi-operator can resume a job that was stopped could not be checked: %s Below "
            "Kubernetes 1.36, release 0.8.1 and later need a right for it. An administrator can "
            "check it: kubectl auth can-i update jobs.batch --subresource=status --as=%s -n %s",
            why,
            _account(_OPERATOR_NAMESPACES[0]),
            cluster.namespace,
        )


def _version(cluster: Cluster) -> tuple[tuple[int, ...] | None, str]:
    """The version of Kubernetes, or None if it cannot be parsed; and as text."""
    try:
        said = cluster.server_version()
    except ClusterForbidden as error:
        log.debug("the version of Kubernetes is not known: %s", error)
        return None, ""
    match = re.match(r"v(\d+)\.(\d+)", said)
    return (tuple(map(int, match.groups())) if match else None), said


def _goes_on_without(cluster: Cluster, job: str) -> bool:
    """Whether the operator resumes launchers without that right, as far as is known.

    Releases that do not are the ones that wait for a launcher pod's last phase.
    """
    try:
        launcher = cluster.get("Job", f"{job}-launcher") if job else {}
    except (ClusterForbidden, ObjectNotFound) as error:
        log.debug("the release of mpi-operator is not known: %s", error)
        return False
    return launcher.get("spec", {}).get("podReplacementPolicy") not in (None, "Failed")


def _account(home: str) -> str:
    return f"system:serviceaccount:{home}:mpi-operator"


def _may_update(cluster: Cluster, home: str, subresource: str = "") -> bool:
    """Whether the operator in namespace `home` may update Jobs, or a subresource, in the job's."""
    asked = {"namespace": cluster.namespace, "verb": "update", "group": "batch"}
    asked |= {"resource": "jobs", "subresource": subresource}
    groups = ["system:authenticated", "system:serviceaccounts", f"system:serviceaccounts:{home}"]
    spec = {"user": _account(home), "groups": groups, "resourceAttributes": asked}
    review = {"apiVersion": "authorization.k8s.io/v1", "kind": "LocalSubjectAccessReview"}
    metadata = {"namespace": cluster.namespace}
    answer = cluster.create({**review, "metadata": metadata, "spec": spec})
    return bool(answer["status"]["allowed"])


@dataclass(frozen=True)
class Shortage:
    """A limit of a quota that the pods of a job would exceed."""

    quota: str
    resource: str
    """The resource in the quota: `pods`, `requests.cpu`."""
    needed: Decimal
    allowed: str
    used: str
    is_final: bool
    """Whether the pods would exceed it even in an otherwise empty namespace."""

    def __str__(self) -> str:
        return (
            f"resourcequota/{self.quota} allows {self.resource}={self.allowed}, {self.used} of it "
            f"are used, and the job needs {_text(self.resource, self.needed)}"
        )


def check_quotas(cluster: Cluster, mpijob: Object, config: JobConfig) -> None:
    """Check the quotas of the namespace; warn about a job that must wait for others to end.

    Raises:
        QuotaExceeded: A quota is below what the pods need together that the job starts with.
        ClusterError: The cluster cannot be asked. Who may not read quotas is not refused.
    """
    try:
        quotas = cluster.find("ResourceQuota")
    except ClusterForbidden as error:
        log.debug("the quotas of the namespace are not known: %s", error)
        return
    short_of = shortages(quotas, mpijob)
    short = "; ".join(map(str, short_of))
    if any(shortage.is_final for shortage in short_of):
        raise QuotaExceeded(
            f"The quotas of namespace {cluster.namespace} never have room for all pods that the"
            " job starts with, and mpi-operator starts no launcher before it has created all"
            " worker pods.",
            received=f"launch.np={config.launch.np}; {short}",
            hint=f"{_hint(quotas, mpijob, config)} or have the quota raised.",
        )
    if short:
        log.warning(
            "The quotas of namespace %s have no room now for all pods that the job starts with. "
            "mpi-operator starts no launcher before it has created all worker pods, so the job "
            "waits until other pods there have ended: %s.",
            cluster.namespace,
            short,
        )


def shortages(quotas: Iterable[Object], mpijob: Object) -> list[Shortage]:
    """The limits of a namespace's ResourceQuotas that the pods of a job would exceed."""
    needed = _needed(mpijob, mpijob["spec"]["mpiReplicaSpecs"]["Worker"]["replicas"])
    found_shortages = []
    for quota in filter(_holds_for_our_pods, quotas):
        status = quota.get("status") or {}
        for resource, allowed in (status.get("hard") or quota["spec"].get("hard") or {}).items():
            used, amount = (status.get("used") or {}).get(resource, "0"), needed[resource]
            if amount > quantity(allowed) - quantity(used):
                is_final = amount > quantity(allowed)
                name = quota["metadata"]["name"]
                found_shortages.append(Shortage(name, resource, amount, allowed, used, is_final))
    return found_shortages


def num_workers_with_room(quotas: Iterable[Object], mpijob: Object) -> int:
    """The largest number of worker pods that fit, with the launcher, in an empty namespace."""
    allowed = [
        (resource, quantity(amount))
        for quota in filter(_holds_for_our_pods, quotas)
        for resource, amount in (quota["spec"].get("hard") or {}).items()
    ]

    def fit(num_workers: int) -> bool:
        needed = _needed(mpijob, num_workers)
        return all(needed[resource] <= amount for resource, amount in allowed)

    most = mpijob["spec"]["mpiReplicaSpecs"]["Worker"]["replicas"]
    return next(filter(fit, range(most, 0, -1)), 0)


def quantity(text: str) -> Decimal:
    """Parse a quantity of Kubernetes: `500m`, `2Gi`, `1e3`."""
    match = _QUANTITY.fullmatch(str(text))
    assert match is not None, f"{text!r} is no quantity"
    number, exponent, unit = match.groups()
    return Decimal(number).scaleb(int(exponent or 0)) * _FACTORS[unit]


def _needed(mpijob: Object, num_workers: int) -> defaultdict[str, Decimal]:
    """The resources of a job's pods, by their names in quotas."""
    needed: defaultdict[str, Decimal] = defaultdict(Decimal)
    for role, count in (("Launcher", 1), ("Worker", num_workers)):
        pod = mpijob["spec"]["mpiReplicaSpecs"][role]["template"]["spec"]
        for name, amount in _of_pod(pod).items():
            needed[name] += amount * count
    return needed


def _of_pod(pod: Object) -> defaultdict[str, Decimal]:
    amounts = defaultdict(Decimal, {"pods": Decimal(1), "count/pods": Decimal(1)})
    for container in pod["containers"]:
        for kind in ("requests", "limits"):
            for name, text in container["resources"].get(kind, {}).items():
                amounts[f"{kind}.{name}"] += quantity(text)
                if kind == "requests" and name in _WITHOUT_PREFIX:
                    amounts[name] += quantity(text)
    return amounts


def _holds_for_our_pods(quota: Object) -> bool:
    spec = quota["spec"]
    return not spec.get("scopeSelector") and _SCOPES.issuperset(spec.get("scopes") or ())


def _hint(quotas: Iterable[Object], mpijob: Object, config: JobConfig) -> str:
    slots = config.kubernetes.slots_per_worker
    num_ranks = num_workers_with_room(quotas, mpijob) * slots
    if num_ranks < max(config.elastic.min_np, slots) or style_of(config).is_static:
        return "Ask for less: launch.np, elastic.min_np, kubernetes.worker, kubernetes.launcher;"
    return (
        f"Start with launch.np={num_ranks}, for which there is room, and let the ring grow later "
        "with `edl scale`;"
    )


def _text(resource: str, amount: Decimal) -> str:
    if "memory" in resource:
        return f"{amount / 1024**2:.0f}Mi"
    return f"{amount.normalize():f}"
